"""Spark, read by us or by its own connector: `python -m benchmarks.engines.spark READER ...`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.nexmark import STATE_SETTINGS, rate, rows_of
from benchmarks.spark import CONNECTOR, spark_session, with_settings
from millstream.pipelines.running.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3  # the first two are for the compiler


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


@contextmanager
def our_session() -> Iterator[SparkSession]:
    """As `millstream run` has it."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        spark = create_session("local[2]", {}, "benchmark", Path(directory) / "spark.log")
        try:
            yield spark
        finally:
            spark.stop()


def main() -> None:
    reader, bootstrap, count, *queries = sys.argv[1:]
    session = spark_session() if reader == CONNECTOR else our_session()
    with session as spark, with_settings(spark, STATE_SETTINGS):
        from examples.nexmark.queries import QUERIES

        say(ready=True)
        for query in (QUERIES[name] for name in queries):
            if reader == CONNECTOR:
                query = query.plain or query
            rates = [rate(spark, reader, query, bootstrap, int(count)) for _ in range(ROUNDS)]
            rows = rows_of(query, int(count))
            say(query=query.name, rows=rows, seconds=rows / max(rates))


if __name__ == "__main__":
    main()
