"""The Python interpreters of this machine that the package supports, one of each minor version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

MINOR_MIN = 11
_NAME = re.compile(r"python3\.(\d+)")
_ASK = "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.version_info.releaselevel)"


def candidates() -> list[Path]:
    """Executables named python3.N: on the path, and where pyenv and uv put theirs."""
    home = Path.home()
    directories = [Path(it) for it in os.environ.get("PATH", "").split(os.pathsep) if it]
    directories += sorted((home / ".pyenv" / "versions").glob("*/bin"))
    directories += sorted((home / ".local" / "share" / "uv" / "python").glob("cpython-*/bin"))
    found = [Path(sys.executable)]
    for directory in directories:
        if directory.is_dir():
            found += sorted(it for it in directory.glob("python3.*") if _NAME.fullmatch(it.name))
    return found


def version_of(python: Path) -> tuple[int, int, int] | None:
    """The version of an interpreter that runs and is a final release."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2 or words[1] != "final":
        return None
    major, minor, micro = map(int, words[0].split("."))
    return major, minor, micro


def find_pythons() -> dict[str, Path]:
    """An interpreter for each minor version ("3.12"), this one first."""
    found: dict[str, Path] = {}
    for python in candidates():
        name = _NAME.fullmatch(python.name)
        if name is not None and f"3.{name[1]}" in found:
            continue
        version = version_of(python)
        if version is not None and version >= (3, MINOR_MIN, 0):
            found.setdefault(f"3.{version[1]}", python)
    return found
