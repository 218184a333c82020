"""Where fetched and built peers live, and how several test workers share them.

    $XDG_CACHE_HOME/millstream/peers/<name>-<fingerprint>/

A directory appears under its final name only when it is complete (it is built beside it and
renamed), and one worker builds while the others wait on a file lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = Path(__file__).parent
_BUILD_SECONDS_MAX = 600


class PeerMissing(Exception):
    """A peer cannot be had on this machine; the message says what is missing and how to get it."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "millstream" / "peers"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def fingerprint(*parts: str | bytes | Path) -> str:
    """A short hash of texts and of files' contents: a changed source gets a fresh directory."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part
        digest.update(content.encode() if isinstance(content, str) else content)
        digest.update(b"\0")
    return digest.hexdigest()[:12]


def cached(name: str, key: str, build: Callable[[Path], None]) -> Path:
    """The complete directory `name-key`; `build` fills it if nobody has done so yet."""
    target = cache_directory() / f"{name}-{key}"
    if target.exists():
        return target
    with _locked(target.with_suffix(".lock")):
        if target.exists():
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_directory()))
        try:
            build(scratch)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def require_command(command: str, how_to_get_it: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise PeerMissing(f"`{command}` is not installed: {how_to_get_it}")
    return path


def run_build(command: Sequence[str | Path], cwd: Path) -> None:
    """Run one step of a build; a failure means that the peer is missing, with its last words."""
    try:
        result = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_BUILD_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"`{command[0]}` took over {_BUILD_SECONDS_MAX} s") from error
    if result.returncode != 0:
        words = " ".join((result.stdout + result.stderr).split())[-400:]
        raise PeerMissing(f"`{' '.join(map(str, command[:3]))}` failed in {cwd}: {words}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
