"""A Spark driver with a pipeline of standing queries, which is killed by a test.

    python -m tests.pipelines.standing.crashing BOOTSTRAP OFFERS SEARCHES DIRECTORY [once]

It appends every match to the table `alerts`, so that a match that is written twice is there twice.
"""

from __future__ import annotations

import sys
from typing import Any

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.session import spark_settings
from millstream.pipelines.standing import match_queries

NAME = "alerts"
SCHEMA = "offer long, price double, at timestamp"
RECORDS_PER_BATCH = 7


def declare(offers: str, searches: str) -> Pipeline:
    options = {"maxOffsetsPerTrigger": RECORDS_PER_BATCH}

    @pipeline(
        name=NAME,
        reads=topic(offers, schema=SCHEMA, queries=searches, options=options),
        writes=table("alerts"),
    )
    def alerts(events: Any) -> Any:
        matched = events.transform(match_queries, time="at")
        return matched.selectExpr("offer", "_query AS query", "_version AS version")

    return alerts


def main(bootstrap: str, offers: str, searches: str, directory: str, *once: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for key, value in spark_settings("local[2]").items():
        builder = builder.config(key, value)
    query = declare(offers, searches).start(
        builder.getOrCreate(),
        broker=bootstrap,
        store=f"sqlite:///{directory}/store.db",
        checkpoint=f"{directory}/checkpoints",
        once=bool(once),
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
