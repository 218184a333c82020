"""sdist and wheels, built from the tree.

The sdist and the wheel of this interpreter are built with the setuptools and Cython of the
development environment, so that no network is needed. Wheels for other interpreters are built in
environments of their own, which uv makes.

A wheel of Linux is named for the oldest glibc that its extensions need (PEP 600); an index refuses
one that says only `linux`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tools.install import find_uv
from tools.release import ReleaseError
from tools.release.checks import check_libraries

GLIBC = (2, 17)


def copy_tree(root: Path, files: Iterable[str], directory: Path) -> None:
    """The files of a release, without anything that lies around beside them."""
    for file in files:
        target = directory / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, target)


def build_sdist(tree: Path, dist: Path) -> Path:
    _run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", dist, tree])
    return _only(dist, "*.tar.gz")


def build_wheel(sdist: Path, python: Path, dist: Path, scratch: Path) -> Path:
    """A wheel for the interpreter, from the sdist, as an index or a distribution builds it."""
    source = unpack(sdist, scratch)
    built = scratch / "wheel"
    # Symbols for a debugger are three quarters of an extension.
    environment = os.environ | {"CFLAGS": f"{os.environ.get('CFLAGS', '')} -g0".strip()}
    tag = []
    if sys.platform == "linux":
        name = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
        tag = [f"--config-setting=--build-option=--plat-name={name}"]
    if python == Path(sys.executable):
        tool = [sys.executable, "-m", "build", "--no-isolation"]
    else:
        tool = [find_uv(Path(sys.prefix)), "build", "--quiet", "--python", str(python)]
    _run([*tool, "--wheel", *tag, "-o", built, source], environment)
    wheel = _only(built, "*.whl")
    if sys.platform == "linux":
        check_libraries(wheel, GLIBC)
    return wheel.rename(dist / wheel.name)


def unpack(sdist: Path, directory: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return directory / sdist.name.removesuffix(".tar.gz")


def _only(directory: Path, pattern: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise ReleaseError(f"{directory} has {len(found)} files {pattern}, not one")
    return found[0]


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"failed: {' '.join(map(str, command))}\n{done.stdout}")
