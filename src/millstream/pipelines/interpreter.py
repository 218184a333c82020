"""The Python that Spark's workers run, which must have millstream.

Spark runs `python3` from the PATH unless PYSPARK_PYTHON names another one, also to find data
sources such as `format("millstream")`. A script that is run as `.venv/bin/python script.py`, or a
notebook in an environment that is not on the PATH, would get DATA_SOURCE_NOT_FOUND. Importing
`millstream.pipelines` before the session is made names the interpreter that imports it.

    from millstream import pipelines
    pipelines.register(spark)       for a session that was made before the import

The server of Spark Connect runs its own Python, which a client cannot choose: set PYSPARK_PYTHON
where the server is started. `register` checks that this Python has millstream.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS_PYTHON = "PYSPARK_PYTHON"
STARTED_BY_SUBMIT = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose settings name the Python


def use_this_python() -> None:
    """Have Spark's workers run this interpreter, unless another one is chosen."""
    if STARTED_BY_SUBMIT not in os.environ:
        os.environ.setdefault(WORKERS_PYTHON, sys.executable)


def register(spark: SparkSession) -> None:
    """Make `format("millstream")` known to a session that was created before `millstream.pipelines`
    was imported, and have its workers run this interpreter. In Spark Connect, raise `ConfigError`
    if the Python of the server has no millstream."""
    from millstream.pipelines.source import MillstreamSource

    context: Any = getattr(spark, "_sc", None)  # none in Spark Connect
    if context is not None:
        context.pythonExec = os.environ.get(WORKERS_PYTHON, sys.executable)
    spark.dataSource.register(MillstreamSource)
    if context is None:
        _check_server(spark)


def _check_server(spark: SparkSession) -> None:
    """Resolve the columns of a source: the server starts its Python for it, and asks no broker."""
    from pyspark.errors import PySparkException

    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}
    try:
        _ = spark.read.format("millstream").options(**options).load().columns
    except PySparkException as error:
        raise ConfigError(
            "the Python of the Spark Connect server has no millstream: install it there, and start "
            f"the server with {WORKERS_PYTHON} set to that Python. Spark reports: "
            + str(error).strip().splitlines()[0]
        ) from error
