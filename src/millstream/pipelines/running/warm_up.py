"""What can be done while a session starts, instead of after it, when pipelines wait for it."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark imports the first, and with it pandas, for the first call of the JVM that has arguments.
NEEDED_SOON = (
    "pyspark.testing.utils",
    "millstream.pipelines.running.fan_out",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.pandas.map_ops",
    "millstream.pipelines.writing.encoding.json",  # with DuckDB
    "millstream.pipelines.running.graphs",
)


def import_in_background() -> None:
    """Import what the driver needs next. The JVM needs two seconds to start, and one core."""
    threading.Thread(target=_import_all, name="imports", daemon=True).start()


def _import_all() -> None:
    for name in NEEDED_SOON:
        with contextlib.suppress(Exception):  # it is raised where the module is needed
            import_module(name)


def start_python_workers(spark: SparkSession) -> threading.Thread:
    """Start Spark's daemon for Python workers, by a small job, while pipelines are defined."""
    thread = threading.Thread(target=_run_in_python, args=(spark,), name="warm-up", daemon=True)
    thread.start()
    return thread


def _run_in_python(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the session may be stopped meanwhile
        spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id long").collect()
