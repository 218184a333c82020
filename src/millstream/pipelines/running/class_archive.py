"""An archive of classes for Spark's JVM: pipelines start with 40 % less CPU time.

In the first seconds of Spark, its JVM mostly loads, verifies and links 20,000 classes. A JVM can
write them to an archive when it exits, and later ones map it into memory. `millstream prepare` does
so once per installation (a Python environment), with a small run of pipelines (`class_training`).
From then on, our sessions in `local` mode use the archive, and are started by a command that has
been prepared too (`jvm_command`).

Up to Java 24 it is an archive for class data sharing. From Java 25 on it is an ahead-of-time cache:
classes are already linked in it, and a JVM knows from it what runs often. So the newest Java is
chosen that Spark supports (`javas`).

A JVM ignores an archive of another Java version or of other jars, also of the same jars written
again. `archive_path` changes with them, so that `millstream prepare` writes another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.errors import ConfigError
from millstream.pipelines.running.javas import Java, choose_java
from millstream.pipelines.running.jvm_command import (
    VECTORS,
    plain_environment,
    variables,
    write_command,
)
from millstream.pipelines.running.light_jars import jars_fingerprint
from millstream.pipelines.running.light_submit import PREPARED
from millstream.pipelines.running.prerequisites import check_spark
from millstream.pipelines.running.spark_home import (
    JARS,
    environment,
    installation_directory,
    linked_home,
)

TRAINING = "millstream.pipelines.running.class_training"
PREFIX, COMMAND = "spark-classes-", ".json"


class Kind(NamedTuple):
    """A kind of archive; options end with the path of the archive."""

    suffix: str
    write: tuple[str, ...]
    use: str
    left_out: tuple[str, ...] = ()  # of the launcher's options


# Quick to start rather than fast in the long run.
SHARING = Kind(
    ".jsa",
    ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ArchiveClassesAtExit="),
    "-XX:SharedArchiveFile=",
)
# Only this collector can write objects to a cache; all can read them. All compilers, to learn what
# runs often.
CACHE = Kind(".aot", ("-XX:+UseG1GC", "-XX:AOTCacheOutput="), "-XX:AOTCache=", (VECTORS,))
CACHE_SINCE = (25,)
# A JVM that cannot use an archive, or a part of it, says so where Spark's log is.
WARNINGS = ("-Xlog:disable", "-Xlog:all=warning:stderr")


@contextlib.contextmanager
def prepared_jvm() -> Iterator[None]:
    """Start a JVM meanwhile by the prepared command, if there is one, with its archive; unless
    another command is set, as it is for the run that writes an archive."""
    command = archive_path().with_suffix(COMMAND)
    is_chosen = PREPARED not in os.environ and command.exists()
    with environment(variables(command) if is_chosen else {}):
        yield


def would_help(master: str, *, shortcuts: bool) -> bool:
    """Whether such a session would use an archive, but there is none."""
    return shortcuts and master.startswith("local") and not is_prepared(archive_path())


def is_prepared(archive: Path) -> bool:
    return archive.exists() and archive.with_suffix(COMMAND).exists()


def archive_path() -> Path:
    """The path of the archive for this Java and this Spark."""
    return _path_for(choose_java())


def prepare() -> bool:
    """Write the archive if there is none; returns whether it did."""
    check_spark()
    java = choose_java()
    archive = _path_for(java)
    if java is None or is_prepared(archive):
        return False
    directory = archive.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        archive.with_suffix(COMMAND).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix="preparing-") as scratch:
            command = Path(scratch) / f"prepared{COMMAND}"
            _write_command(command, java, [f"{_kind(java).use}{archive}"])
            _train(Path(scratch), java).replace(archive)
            command.replace(archive.with_suffix(COMMAND))
    except OSError as error:
        raise ConfigError(
            f"cannot write to {directory} ({error.strerror}): run `millstream prepare` as the "
            "owner of this Python environment, with 500 MB free"
        ) from error
    for outdated in directory.glob(f"{PREFIX}*"):
        if outdated.stem != archive.stem:
            outdated.unlink(missing_ok=True)
    return True


def _train(scratch: Path, java: Java) -> Path:
    """Run pipelines in a process whose JVM writes the archive when it exits."""
    kind = _kind(java)
    archive, log = scratch / f"classes{kind.suffix}", scratch / "training.log"
    command = scratch / f"command{COMMAND}"
    _write_command(command, java, [*kind.write[:-1], f"{kind.write[-1]}{archive}"])
    with log.open("wb") as file:
        code = subprocess.run(
            [sys.executable, "-m", TRAINING, str(scratch / "home")],
            env={**plain_environment(), **variables(command)},
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        ).returncode
    if code != 0 or not archive.exists():
        last_lines = log.read_text(errors="replace").strip().splitlines()[-5:]
        raise ConfigError(
            f"the run that collects Spark's classes ended with {code}: {' / '.join(last_lines)}"
        )
    return archive


def _write_command(path: Path, java: Java, archive: Sequence[str]) -> None:
    home = linked_home(installation_directory())
    options = [*WARNINGS, *archive]
    write_command(path, java.program, home, options, without=_kind(java).left_out)


def _kind(java: Java) -> Kind:
    return CACHE if java.version >= CACHE_SINCE else SHARING


def _path_for(java: Java | None) -> Path:
    """Its name has a hash of what an archive depends on, as far as it is known without a JVM."""
    import pyspark

    java = java or Java(Path("java"), ())
    changed = java.program.stat().st_mtime_ns if java.program.exists() else 0
    # A JVM also compares the paths of the jars, and when they were written: PySpark may have been
    # installed again.
    installed = Path(pyspark.__file__).parent
    parts = (pyspark.__version__, installed, jars_fingerprint(installed / JARS), java, changed)
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
    return installation_directory() / f"{PREFIX}{digest}{_kind(java).suffix}"
