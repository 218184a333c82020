"""The Java of prepared sessions on one machine: the newest that Spark supports.

Java 25 keeps more of a JVM's start in its archive than Java 17 does: linked classes, and profiles
of what runs often. `JAVA_HOME` chooses another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SUPPORTED = (17, 21, 25)  # by Spark 4.3
# Spark's documentation advises against earlier ones: their default collector may corrupt memory.
EARLIEST_25 = (25, 0, 3)
ROOT = Path("/")
PLACES = ("usr/lib/jvm/*", "opt/java/*", "Library/Java/JavaVirtualMachines/*/Contents/Home")


class Java(NamedTuple):
    program: Path
    version: tuple[int, ...]  # empty if it is not known

    @property
    def is_supported(self) -> bool:
        major = self.version[:1]
        return major in [(it,) for it in SUPPORTED] and not (
            major == EARLIEST_25[:1] and self.version < EARLIEST_25
        )

    @property
    def name(self) -> str:
        return f"Java {'.'.join(map(str, self.version)) or '?'}"


def find_java() -> Path | None:
    """Where Spark looks: in JAVA_HOME, or else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        found = shutil.which("java")
        return None if found is None else Path(found)
    java = Path(home) / "bin" / "java"
    return java if java.exists() else None


def choose_java(root: Path = ROOT) -> Java | None:
    """The newest Java that Spark supports; the one in JAVA_HOME if that is set."""
    found = find_java()
    first = None if found is None else java_at(found)
    if os.environ.get("JAVA_HOME"):
        return first
    supported = [it for it in installed_javas(root) if it.is_supported]
    if first is not None and first.is_supported:
        supported.insert(0, first)
    return max(supported, key=lambda it: it.version[0], default=first)


def installed_javas(root: Path = ROOT) -> Iterator[Java]:
    """Those in the usual directories."""
    for place in PLACES:
        for home in sorted(root.glob(place)):
            if (program := home / "bin" / "java").exists():
                yield java_at(program)


def java_at(program: Path) -> Java:
    program = program.resolve()
    try:
        release = (program.parent.parent / "release").read_text()
    except OSError:
        return Java(program, ())
    found = re.search(r'^JAVA_VERSION="(\d+(?:\.\d+)*)', release, re.MULTILINE)
    return Java(program, tuple(map(int, found[1].split("."))) if found else ())


def ask_version(program: Path) -> tuple[int, ...]:
    """As it says itself; it takes a JVM to know it."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr)
    return (int(found[1]),) if found else ()
