"""The Python that Spark's workers run, which must have millstream.

Spark runs `python3` from the PATH unless PYSPARK_PYTHON names another one, also to find data
sources such as `format("millstream")`. A script that is run as `.venv/bin/python script.py`, or a
notebook in an environment that is not on the PATH, would get DATA_SOURCE_NOT_FOUND. Importing
`millstream.pipelines` before the session is made names the interpreter that imports it.

    from millstream import pipelines
    pipelines.register(spark)       for a session that was made before the import

The server of Spark Connect has a Python of its own: set PYSPARK_PYTHON where it is started.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS_PYTHON = "PYSPARK_PYTHON"
STARTED_BY_SUBMIT = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose settings name the Python


def use_this_python() -> None:
    """Have Spark's workers run this interpreter, unless another one is chosen."""
    if STARTED_BY_SUBMIT not in os.environ:
        os.environ.setdefault(WORKERS_PYTHON, sys.executable)


def register(spark: SparkSession) -> None:
    """Make `format("millstream")` known to a session that was made before `millstream.pipelines`
    was imported, and have its workers run this interpreter."""
    from millstream.pipelines.source import MillstreamSource

    context: Any = getattr(spark, "_sc", None)  # none in Spark Connect
    if context is not None:
        context.pythonExec = os.environ.get(WORKERS_PYTHON, sys.executable)
    spark.dataSource.register(MillstreamSource)
