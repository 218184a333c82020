"""A home for Spark in which Python starts quickly.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` before all else that its Python processes import
from. Out of an archive modules are compiled anew in every process: 0.7 s of a core for PySpark,
against 0.15 s from where it is installed, in each of some ten processes that have to start, one
after the other, until the first batches of a few pipelines are done.

A home that consists of links to PySpark's own, and lacks that archive, does without. It is for
sessions of ours on one machine, whose workers have the driver's own Python and so its PySpark.
It lies in the Python environment, so that its path never changes: archives of Spark's classes
(`class_archive`) are valid for one path only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

HOME = "SPARK_HOME"
NAME = "spark-home"
LINKED = ("bin", "jars", "conf")


@contextlib.contextmanager
def light_home(directory: Path) -> Iterator[None]:
    """Set the home for a JVM that is started now, unless the user has chosen one.

    `directory` is for an environment that we must not write to.
    """
    if HOME in os.environ or not is_possible():
        yield
        return
    try:
        home = linked_home(installation_directory())
    except OSError:
        home = linked_home(directory)
    os.environ[HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[HOME]


def installation_directory() -> Path:
    """What we keep for this Python environment, whatever project it runs."""
    return Path(sys.prefix) / "share" / "millstream"


def is_possible() -> bool:
    """Whether workers find in their own Python what this one has."""
    return os.name == "posix" and os.environ.get("PYSPARK_PYTHON") == sys.executable


def linked_home(directory: Path) -> Path:
    """A directory with links to PySpark's; it may be there, from other runs, and in use."""
    import pyspark

    installed, home = Path(pyspark.__file__).parent, (directory / NAME).absolute()
    home.mkdir(parents=True, exist_ok=True)
    for name in (it for it in LINKED if (installed / it).exists()):
        link = home / name
        if not link.exists() or link.resolve() != (installed / name).resolve():
            unfinished = home / f".{name}-{os.getpid()}"
            unfinished.symlink_to(installed / name)
            unfinished.rename(link)
    return home
