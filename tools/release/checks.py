"""What is in the files: everything that belongs there, nothing else, and metadata that is valid."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename
from tools.release import ReleaseError
from tools.release.description import relative_links

# What every Linux has (PEP 600 lists more).
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
# In the repository only: they are about the repository.
NOT_IN_SDIST = (".ci/", ".gitignore", ".pre-commit-config.yaml")
MADE_BY_SETUPTOOLS = re.compile(r"PKG-INFO|setup\.cfg|src/millstream\.egg-info/.*")
LICENCE = re.compile(r"(?:LICENSES?|NOTICE)(?:\.(?:txt|md))?|.+\.LICENSE")
EXTENSION = re.compile(r"\.(?:cpython-\d+-[\w-]+|abi3)\.so$")


def tracked_files(root: Path) -> list[str]:
    """The files of the repository, with those that are about to be added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [it for it in listed.splitlines() if (root / it).is_file()]


def check_sdist(sdist: Path, tracked: Iterable[str]) -> None:
    """The sdist has every file of the repository, and none that is not in it."""
    with tarfile.open(sdist) as archive:
        names = {it.name.partition("/")[2] for it in archive.getmembers() if it.isfile()}
    found = {it for it in names if not MADE_BY_SETUPTOOLS.fullmatch(it)}
    wanted = {it for it in tracked if not it.startswith(NOT_IN_SDIST)}
    _compare(sdist, found, wanted)


def check_wheel(wheel: Path, tracked: Iterable[str], version: str) -> None:
    """The wheel has the files below src/ and their extensions, its licences, and valid metadata."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    info = f"millstream-{version}.dist-info/"
    found = {it for it in contents if not it.startswith(info) and not EXTENSION.search(it)}
    wanted = {it.removeprefix("src/") for it in tracked if it.startswith("src/")}
    _compare(wheel, found, wanted)
    compiled = {EXTENSION.sub(".pyx", it) for it in contents if EXTENSION.search(it)}
    _compare(wheel, compiled, {it for it in wanted if it.endswith(".pyx")})
    _check_metadata(wheel, contents, info, version)
    licences = {it for it in tracked if is_licence(it)}
    _compare(wheel, {it for it in contents if is_licence(it)}, _placed(licences, info))
    _check_record(wheel, contents, f"{info}RECORD")


def is_licence(path: str) -> bool:
    return LICENCE.fullmatch(path.rpartition("/")[2]) is not None


def _placed(licences: Iterable[str], info: str) -> set[str]:
    """Where a wheel has licences: all of its own in one directory, and beside what they are for."""
    own = {it for it in licences if it == "LICENSE" or it.startswith("src/")}
    return {f"{info}licenses/{it}" for it in own} | {
        it.removeprefix("src/") for it in own if it.startswith("src/")
    }


def _check_metadata(wheel: Path, contents: dict[str, bytes], info: str, version: str) -> None:
    metadata = Metadata.from_email(contents[f"{info}METADATA"], validate=True)
    name, in_name, _, tags = parse_wheel_filename(wheel.name)
    if (name, str(in_name), str(metadata.version)) != ("millstream", version, version):
        raise ReleaseError(f"{wheel.name}: the metadata has version {metadata.version}")
    listed = re.findall(r"^Tag: (\S+)$", contents[f"{info}WHEEL"].decode(), re.MULTILINE)
    if {str(it) for it in tags} != set(listed):
        raise ReleaseError(f"{wheel.name}: tagged {listed} within")
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        raise ReleaseError(f"{wheel.name}: no description")
    if broken := relative_links(metadata.description):
        raise ReleaseError(f"{wheel.name}: the description links to {_first(broken)}")
    if not metadata.license_expression or not metadata.summary or not metadata.requires_python:
        raise ReleaseError(f"{wheel.name}: no licence, summary or Python version")


def _check_record(wheel: Path, contents: dict[str, bytes], record: str) -> None:
    """RECORD has each file with its size and hash."""
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(contents[record].decode()))}
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        expected = ["", ""] if name == record else [f"sha256={digest}", str(len(data))]
        if listed.pop(name, None) != expected:
            raise ReleaseError(f"{wheel.name}: wrong entry in RECORD for {name}")
    if listed:
        raise ReleaseError(f"{wheel.name}: RECORD has files that are missing: {sorted(listed)}")


def check_libraries(wheel: Path, glibc: tuple[int, int]) -> None:
    """The extensions need nothing but the C library, and no newer one."""
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not EXTENSION.search(name):
                continue
            path = archive.extract(name, directory)
            command = ["readelf", "--wide", "--dynamic", "--version-info", path]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            problem = library_problem(done.stdout, glibc)
            if problem is not None:
                raise ReleaseError(f"{wheel.name}: {name} {problem}")


def library_problem(listed: str, glibc: tuple[int, int]) -> str | None:
    """What is wrong with an extension, by what readelf prints about it."""
    needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", listed))
    if strange := sorted(needed - SYSTEM_LIBRARIES):
        return f"needs {', '.join(strange)}"
    found = {tuple(map(int, it.split("."))) for it in re.findall(r"GLIBC_([0-9.]+)", listed)}
    newest = max(found, default=(0,))
    if newest[:2] > glibc:
        return f"needs glibc {'.'.join(map(str, newest))}, not {'.'.join(map(str, glibc))}"
    return None


def _compare(file: Path, found: set[str], wanted: set[str]) -> None:
    if missing := sorted(wanted - found):
        raise ReleaseError(f"{file.name} lacks {_first(missing)}")
    if strange := sorted(found - wanted):
        raise ReleaseError(f"{file.name} has {_first(strange)}, which do not belong there")


def _first(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
