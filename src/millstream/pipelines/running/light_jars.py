"""Spark's jars, without an extension that every session would load and few pipelines use.

MLlib extends sessions by two functions, `vector_to_array` and `array_to_vector`. To register them,
Spark starts Scala's reflection, and reads all of its error messages: 1.7 s of a core, on which the
first pipeline waits.

These jars are links to PySpark's own, and a copy of MLlib's in which Spark does not find the
extension. All classes are there. The functions are registered when `pyspark.ml` is imported, whose
`functions` are the way to them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PREFIX = "jars-"
MLLIB = "spark-mllib_*.jar"
EXTENSION = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
REGISTRATION = (
    "org.apache.spark.sql.ml.InternalFunctionRegistration$"  # registers when it is loaded
)
ML = "pyspark.ml"


def light_jars(installed: Path, directory: Path) -> Path:
    """The directory of these jars, made if it does not exist; another one for other jars."""
    made = directory / f"{PREFIX}{jars_fingerprint(installed)}"

    def fill(unfinished: Path) -> None:
        for jar in installed.glob("*.jar"):
            (unfinished / jar.name).symlink_to(jar)
        for jar in installed.glob(MLLIB):
            (unfinished / jar.name).unlink()
            _copy_without(EXTENSION, jar, unfinished / jar.name)

    make_directory(made, PREFIX, fill)
    return made


def make_directory(made: Path, prefix: str, fill: Callable[[Path], None]) -> None:
    """Unless it exists: fill it before it gets its name. Others with the prefix are outdated."""
    if not made.is_dir():
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=f".{prefix}") as scratch:
            unfinished = Path(scratch) / made.name
            unfinished.mkdir()
            fill(unfinished)
            try:
                unfinished.rename(made)
            except OSError:
                if not made.is_dir():  # another process was not faster
                    raise
    for outdated in made.parent.glob(f"{prefix}*"):
        if outdated != made:
            shutil.rmtree(outdated, ignore_errors=True)


def jars_fingerprint(installed: Path) -> str:
    """A hash of what jars there are, and when they were written."""
    jars = sorted((it.name, it.stat().st_mtime_ns) for it in installed.glob("*.jar"))
    return hashlib.sha256(repr((EXTENSION, jars)).encode()).hexdigest()[:16]


def _copy_without(name: str, jar: Path, copy: Path) -> None:
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            if entry.filename != name:
                new.writestr(entry, old.read(entry))
    # An archive of classes is valid for jars of one time.
    written_ns = jar.stat().st_mtime_ns
    os.utime(copy, ns=(written_ns, written_ns))


def register_ml_functions_when_needed(spark: SparkSession) -> None:
    """Register MLlib's functions in the session's JVM, as soon as `pyspark.ml` is imported."""
    sys.meta_path[:] = [it for it in sys.meta_path if not isinstance(it, _Registration)]
    if ML in sys.modules:
        _register(spark)
    else:
        sys.meta_path.insert(0, _Registration(spark))


class _Registration(MetaPathFinder):
    """Finds no module, but sees which are imported."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == ML and self in sys.meta_path:
            sys.meta_path.remove(self)
            _register(self._spark)


def _register(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Class.forName(REGISTRATION)
    except Py4JError as error:
        logger.warning("vector_to_array and array_to_vector may be missing: %s", error)
