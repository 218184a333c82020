"""The Spark session of the benchmarks: one for all, with Spark's own Kafka connector beside us."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.peers.spark_connector import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "connector"  # as a measurement calls it
FORMATS = {"millstream": "millstream", CONNECTOR: "kafka"}


@contextmanager
def spark_session(cores: int = 2) -> Iterator[SparkSession]:
    """A new session with Spark's defaults, as far as they have to do with speed."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", ",".join(map(str, connector_jars())))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """These settings for the queries that are started meanwhile."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
