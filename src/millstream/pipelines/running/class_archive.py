"""A class-data-sharing archive for Spark's JVM: pipelines start with 40 % less CPU time.

In the first seconds of Spark, its JVM mostly loads, verifies and links 20,000 classes. A JVM can
write them to an archive when it exits, and later ones map it into memory. `millstream prepare` does
so once per installation (a Python environment), with a small run of pipelines (`class_training`).
From then on, our sessions in `local` mode use the archive.

A JVM ignores an archive of another Java version or of other jars, also of the same jars written
again. `archive_path` changes with them, so that `millstream prepare` writes another one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from millstream.errors import ConfigError
from millstream.pipelines.running.light_jars import jars_fingerprint
from millstream.pipelines.running.prerequisites import check_spark, find_java
from millstream.pipelines.running.spark_home import JARS, installation_directory

TRAINING = "millstream.pipelines.running.class_training"
PREFIX, SUFFIX = "spark-classes-", ".jsa"


def share_classes(options: str = "") -> str:
    """The options of a JVM, with our archive if it exists and they name no other."""
    archive = archive_path()
    if not archive.exists() or "Archive" in options:
        return options
    return f"{options} -XX:SharedArchiveFile={archive}".strip()


def would_help(master: str, *, shortcuts: bool) -> bool:
    """Whether such a session would use an archive, but there is none."""
    return shortcuts and master.startswith("local") and not archive_path().exists()


def archive_path() -> Path:
    """The path of the archive for this Java and this Spark."""
    return installation_directory() / f"{PREFIX}{_fingerprint()}{SUFFIX}"


def prepare() -> bool:
    """Write the archive if there is none; returns whether it did."""
    check_spark()
    archive = archive_path()
    if archive.exists():
        return False
    directory = archive.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix="preparing-") as scratch:
            written = _train(Path(scratch))
            written.replace(archive)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {directory} ({error.strerror}): run `millstream prepare` as the "
            "owner of this Python environment, with 300 MB free"
        ) from error
    for outdated in directory.glob(f"{PREFIX}*{SUFFIX}"):
        if outdated != archive:
            outdated.unlink(missing_ok=True)
    return True


def _train(scratch: Path) -> Path:
    """Run pipelines in a process whose JVM writes the archive when it exits."""
    archive, log = scratch / f"classes{SUFFIX}", scratch / "training.log"
    with log.open("wb") as file:
        code = subprocess.run(
            [sys.executable, "-m", TRAINING, str(archive)],
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


def _fingerprint() -> str:
    """A hash of what an archive depends on, as far as it is known without starting a JVM."""
    import pyspark

    java = Path(find_java() or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    # A JVM also compares the paths of the jars, and when they were written: PySpark may have been
    # installed again.
    installed = Path(pyspark.__file__).parent
    parts = (pyspark.__version__, installed, jars_fingerprint(installed / JARS), java, changed)
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
