"""An archive of the classes that Spark loads, for JVMs that start often: it takes 60 % off a start.

A JVM writes it (class data sharing) at the end of a small query. One that finds an archive made by
another Java, or for other jars, goes without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

import pyspark

from tests.peers.cache import cached, fingerprint
from tests.peers.java_runtime import java_command

ROOT = Path(__file__).parents[2]
# Quick to start rather than quick in the long run.
START_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUERY_SECONDS_MAX = 300
_BATCHES = 2


def quick_start_options() -> str:
    """What JDK_JAVA_OPTIONS should say."""
    told = subprocess.run([java_command(), "-version"], capture_output=True, text=True, check=True)
    key = fingerprint(told.stderr, pyspark.__version__, pyspark.__file__, Path(__file__))
    archive = cached("spark-classes", key, _build) / "classes.jsa"
    return f"{START_OPTIONS} -XX:SharedArchiveFile={archive}"


def _build(directory: Path) -> None:
    archive = directory / "classes.jsa"
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tests.peers.spark_classes"],
            cwd=ROOT,
            env={
                **os.environ,
                "JDK_JAVA_OPTIONS": f"{START_OPTIONS} -XX:ArchiveClassesAtExit={archive}",
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=log,
            stderr=log,
            check=True,
        )


def run_small_query(checkpoint: str) -> None:
    """With what pipelines have: state, Python in tasks, and a function for each batch."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    from millstream.pipelines.running.session import spark_settings

    builder = SparkSession.builder.master("local[2]")
    for name, value in spark_settings("local[2]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    is_enough = Event()

    def use(batch: Any, batch_id: int) -> None:
        kept = batch.persist()
        kept.mapInArrow(lambda rows: rows, kept.schema).toArrow()
        kept.unpersist()
        if batch_id == _BATCHES:
            is_enough.set()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    sums = rows.repartition(2).groupBy((F.col("value") % 7).alias("key")).agg(F.sum("value"))
    writer = sums.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(use).start()
    assert is_enough.wait(_QUERY_SECONDS_MAX), query.exception()
    query.stop()
    java: Any = spark.sparkContext._gateway
    spark.stop()
    java.shutdown()
    java.proc.stdin.close()  # which tells it to end
    java.proc.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run_small_query(directory)
