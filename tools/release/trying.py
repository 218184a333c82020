"""Installed as a user does: into an empty environment, without a compiler, and tried there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.request import Request, urlopen

from tests.doc_blocks import Block, PageRun, blocks_of
from tests.peers.servers import free_port
from tools.install import find_uv
from tools.release import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 120
EDGE = """name = "edge"
broker = "{broker}"

[http]
listen = "127.0.0.1:0"
produce = ["orders"]
"""
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
    for name in ("bash", "sh", "sort", "cat", "env", "printf", "sleep"):
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


def try_servers(python: Path, directory: Path) -> None:
    """Start a broker with the console, and a bridge, and ask both: templates, static files and
    compiled modules are in the wheel. Raises `ReleaseError`."""
    directory.mkdir()
    broker = f"127.0.0.1:{free_port()}"
    (directory / "edge.toml").write_text(EDGE.format(broker=broker), encoding="utf-8")
    servers = [
        Started(python, directory, "serve", "--listen", broker, "--console", "127.0.0.1:0"),
        Started(python, directory, "bridge", "edge.toml"),
    ]
    try:
        console = servers[0].address("console at ")
        page = fetch(f"{console}topics").decode()
        files = sorted(set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page)))
        if not files:
            raise ReleaseError(f"{python}: the console's page has no static files")
        for it in files:
            fetch(f"{console.rstrip('/')}{it}")
        bridge = servers[1].address("edge is ready: ")
        answer = json.loads(fetch(f"{bridge}/topics/orders", b'{"records": [{"value": 1}]}'))
        if answer["offsets"][0].get("offset") != 0:
            raise ReleaseError(f"{python}: the bridge answers {answer}")
    finally:
        for it in reversed(servers):
            it.stop()


class Started:
    """A command of an installed package that runs until it is stopped."""

    def __init__(self, python: Path, directory: Path, *arguments: str) -> None:
        self._log = directory / f"{arguments[0]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python.parent / "millstream", *arguments],
                cwd=directory,
                env=without_compiler(directory),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def address(self, after: str) -> str:
        """What the command prints after these words, once it is ready."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            if found := re.search(rf"{re.escape(after)}(\S+)\n", text):
                return found[1]
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ReleaseError(f"{self._log.stem} is not ready:\n{text}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_SECONDS)


def fetch(url: str, body: bytes | None = None) -> bytes:
    """The answer of a server. Raises `ReleaseError`."""
    headers = {} if body is None else {"content-type": "application/vnd.kafka.json.v2+json"}
    try:
        with urlopen(Request(url, body, headers), timeout=READY_SECONDS) as answer:
            return bytes(answer.read())
    except OSError as error:
        raise ReleaseError(f"{url}: {error}") from error


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
