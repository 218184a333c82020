"""Installed as a user does: into an empty environment, without a compiler, and tried there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.doc_blocks import Block, PageRun, blocks_of
from tests.peers.servers import free_port
from tools.install import find_uv
from tools.release import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
FIRST_AFTER = "## Databases and streams"  # what follows in the README needs databases or Spark


def install(wheel: Path, python: Path, directory: Path, extras: Iterable[str] = ()) -> Path:
    """An environment with the wheel and what it depends on; returns its interpreter."""
    uv = find_uv(Path(sys.prefix))
    _run([uv, "venv", "--quiet", "--no-project", "--python", python, directory])
    own = directory / "bin" / "python"
    wanted = f"millstream[{','.join(extras)}] @ {wheel.resolve().as_uri()}"
    options = ["--only-binary", ":all:", "--no-config"]
    _run([uv, "pip", "install", "--quiet", *options, "--python", own, wanted])
    return own


def without_compiler(directory: Path) -> dict[str, str]:
    """The environment of a machine that has a shell, and no compiler."""
    tools = directory / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "sh", "sort", "cat", "env"):
        found = shutil.which(name)
        if found is not None and not (tools / name).exists():
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": str(tools)}


def first_blocks(readme: Path) -> list[Block]:
    """The programs and commands of the README that need nothing but the package."""
    text = readme.read_text(encoding="utf-8")
    before = text[: text.index(FIRST_AFTER)].count("\n")
    return [it for it in blocks_of(readme) if it.line < before]


def try_readme(python: Path, directory: Path) -> int:
    """Run the README's first blocks with an interpreter; returns how many."""
    directory.mkdir()
    run = PageRun(
        directory,
        f"127.0.0.1:{free_port()}",
        python=python,
        machine=without_compiler(directory),
    )
    blocks = first_blocks(ROOT / "README.md")
    try:
        for block in blocks:
            run.run(block)
    except AssertionError as failed:
        raise ReleaseError(f"{python}: README.md, line {block.line}: {failed}") from None
    finally:
        run.stop()
    return len(blocks)


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
