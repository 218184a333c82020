"""A home for Spark with which its Python processes start faster.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first in the import path of its Python processes.
Modules in an archive are compiled in every process: PySpark takes 0.7 s of a core instead of
0.15 s, in each of about ten processes that start one after the other until a few pipelines have
completed their first batches.

This home consists of links to PySpark's own, without that archive, with jars of which a session
loads less (`light_jars`), and with a `spark-submit` that starts a JVM by a prepared command
(`light_submit`). It is used for our sessions on one machine, whose workers run the driver's Python
and import its PySpark. It is in the Python environment, so that its path does not change: archives
of Spark's classes (`class_archive`) are valid for one path only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from millstream.pipelines.running.light_jars import light_jars, make_directory

HOME = "SPARK_HOME"
NAME = "spark-home"
BIN, JARS, CONF = "bin", "jars", "conf"
PREFIX = "bin-"
SUBMIT = "MILLSTREAM_SUBMIT"  # the path of `light_submit`, if there is a prepared command
SCRIPT = f"""#!/bin/sh
if [ -n "${SUBMIT}" ]; then
  exec "$PYSPARK_PYTHON" -I -S "${SUBMIT}" "$@"
fi
export PYTHONHASHSEED=0
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.SparkSubmit "$@"
"""


@contextlib.contextmanager
def light_home(directory: Path) -> Iterator[bool]:
    """Set the home for a JVM that is started now, unless the user has chosen one; returns whether
    its Python processes import what the driver imports.

    `directory` is for an environment that we must not write to.
    """
    if HOME in os.environ or not is_possible():
        yield False
        return
    try:
        home = linked_home(installation_directory())
    except OSError:
        home = linked_home(directory)
    with environment({HOME: str(home)}):
        yield True


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def installation_directory() -> Path:
    """Our files for this Python environment, shared by all projects that use it."""
    return Path(sys.prefix) / "share" / "millstream"


def is_possible() -> bool:
    """Whether workers run this Python, and so have its packages."""
    return os.name == "posix" and os.environ.get("PYSPARK_PYTHON") == sys.executable


def linked_home(directory: Path) -> Path:
    """A directory with links to PySpark's. It may exist already, and be in use."""
    import pyspark

    installed, home = Path(pyspark.__file__).parent, (directory / NAME).absolute()
    home.mkdir(parents=True, exist_ok=True)
    targets = {BIN: light_bin(installed / BIN, home), JARS: light_jars(installed / JARS, home)}
    if (installed / CONF).exists():
        targets[CONF] = installed / CONF
    for name, target in targets.items():
        link = home / name
        if not link.exists() or link.resolve() != target.resolve():
            unfinished = home / f".{name}-{os.getpid()}"
            unfinished.symlink_to(target)
            unfinished.rename(link)
    return home


def light_bin(installed: Path, directory: Path) -> Path:
    """The directory of Spark's commands, with our `spark-submit`; made if it does not exist."""
    commands = sorted(installed.iterdir())
    digest = hashlib.sha256(repr((SCRIPT, commands)).encode()).hexdigest()[:16]
    made = directory / f"{PREFIX}{digest}"

    def fill(unfinished: Path) -> None:
        for command in commands:
            (unfinished / command.name).symlink_to(command)
        submit = unfinished / "spark-submit"
        submit.unlink(missing_ok=True)
        submit.write_text(SCRIPT)
        submit.chmod(0o755)

    make_directory(made, PREFIX, fill)
    return made
