"""A Spark driver with pipelines into everything that is written exactly once.

    python -m tests.faults.exactly_once_driver settings.json

    topic       a copy, by Spark's writer and the decision topic
    topics      two topics in one sink call, by the decision topic
    sqlite      sums by user, which need state, and a row for each record: two tables
    postgres    the same
    fan         a copy in a topic and a row in SQLite for each record, in one sink call
    pgfan       the same with PostgreSQL
    duckdb, search, redis, delta
                sums and rows as in SQLite, by key, in the store that the settings name
    lakefan     a copy in a topic and a row in Delta for each record, in one sink call

They run until they are killed (`kill_points.py`), or, with `once`, to the end of their source. Then
the result of each pipeline's function over the whole topic, computed as a batch, is written down,
to be compared with what the stream has written. A query that ends by a fault of the test is started
again, in the same session.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.running import locking
from millstream.pipelines.running.failures import passes
from millstream.pipelines.running.launching import make_active
from millstream.pipelines.running.session import spark_settings
from millstream.pipelines.spec import Topic
from tests.faults.kill_points import FAULT, current_batch

ALL = ("topic", "topics", "sqlite", "postgres", "fan", "pgfan")
FANS = ("fan", "pgfan", "lakefan")
BY_KEY = ("duckdb", "search", "redis", "delta", "lakefan")
TURN_SECONDS_MAX = 20
SCHEMA = "id long, user string, amount long"

_turns = Semaphore(2)


@dataclass(frozen=True)
class Settings:
    bootstrap: str
    source: str
    checkpoints: str
    sqlite: str
    postgres: str | None
    pipelines: tuple[str, ...]
    records_per_batch: int = 60
    tasks: int | None = None  # None: as many as the source has
    once: bool = False
    timeout_ms: int | None = None  # of tasks' transactions
    locks: bool = True  # False: as on file systems that have no locks
    master: str = "local[8]"  # a task that stands still keeps its place
    spark: dict[str, str] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)  # of pipelines that are not in SQLite

    @classmethod
    def load(cls, path: str) -> Settings:
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def store_of(self, name: str) -> str | None:
        if name in self.stores:
            return self.stores[name]
        return self.postgres if name in ("postgres", "pgfan") else f"sqlite:///{self.sqlite}-{name}"

    def transactional_id(self, name: str) -> str:
        """Tests of one broker have pipelines of the same names."""
        return f"millstream-{name}-{self.source}"

    @property
    def batch_results(self) -> Path:
        return Path(self.checkpoints) / "batch-results.json"


def declare(name: str, settings: Settings) -> Pipeline:
    """Topics and tables are named after their pipeline."""
    options: dict[str, Any] = {"kafka.transactional.id": settings.transactional_id(name)}
    if settings.timeout_ms is not None:
        options["kafka.transaction.timeout.ms"] = settings.timeout_ms
    copies = topic(f"{settings.source}-{name}", key="user", partitions=2, options=options)
    more = topic(f"{settings.source}-{name}-more", partitions=1)
    rows = table(f"rows_of_{name}", key="id" if name in BY_KEY else ())
    sums = table(f"sums_of_{name}", key="user")
    writes: Any = {"sums": sums, "rows": rows}
    if name in FANS:
        writes = {"copies": copies, "rows": rows}
    elif name in ("topic", "topics"):
        writes = copies if name == "topic" else {"copies": copies, "more": more}
    read = topic(
        settings.source,
        schema=SCHEMA,
        options={"maxOffsetsPerTrigger": settings.records_per_batch},
    )

    @pipeline(name=name, reads=read, writes=writes)
    def declared(records: Any) -> Any:
        from pyspark.sql.functions import col, count, struct
        from pyspark.sql.functions import sum as total

        if settings.tasks is not None:
            records = records.repartition(settings.tasks)
        copied = [(col("id") * 2).alias("id"), col("user"), col("amount")]
        if name == "topic":
            return records.select(*copied)
        if "sums" in declared.writes:
            summed = records.groupBy("user").agg(
                total("amount").alias("total"), count("*").alias("records")
            )
            return {"sums": summed, "rows": records.select(*copied)}
        return records.select(*(struct(*copied).alias(output) for output in writes))

    return declared


def batch_result(spark: Any, declared: Pipeline, settings: Settings) -> dict[str, list[list[Any]]]:
    """By output, its rows."""
    result = declared.batch(spark, broker=settings.bootstrap)
    frames = result if isinstance(result, dict) else {"result": result}
    if list(declared.writes) != list(frames):
        frames = {output: result.select(f"{output}.*") for output in declared.writes}
    return {output: [list(row) for row in frame.collect()] for output, frame in frames.items()}


def keep_running(spark: Any, declared: Pipeline, settings: Settings) -> None:
    """To the end of the source, if there is to be one."""
    while True:
        try:
            query = start_in_turn(spark, declared, settings)
            query.awaitTermination()
            return
        except Exception as error:  # noqa: BLE001 whatever it is, the log tells it
            print(f"{declared.name} failed:\n{error}", flush=True)
            if not passes(error) and FAULT not in str(error):
                os._exit(1)


def start_in_turn(spark: Any, declared: Pipeline, settings: Settings) -> Any:
    """The query, when it has begun a batch or has nothing to do: Spark gives a Python process only
    so many seconds to start, and many at once would take longer."""
    begun = current_batch(settings.checkpoints, declared.name)
    is_ours = _turns.acquire(timeout=TURN_SECONDS_MAX)  # who has one may stand still for good
    try:
        if declared.name == "topic":
            query = start_writer(spark, declared, settings)
        else:
            query = declared.start(
                spark,
                broker=settings.bootstrap,
                store=settings.store_of(declared.name),
                checkpoint=settings.checkpoints,
                once=settings.once,
            )
        deadline = time.monotonic() + TURN_SECONDS_MAX
        while (
            query.isActive
            and current_batch(settings.checkpoints, declared.name) == begun
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
    finally:
        if is_ours:
            _turns.release()
    return query


def start_writer(spark: Any, declared: Pipeline, settings: Settings) -> Any:
    """The same function between Spark's own reader and writer."""
    make_active(spark)  # Spark looks for the writer in the session of this thread
    (output,) = declared.writes.values()
    assert isinstance(output, Topic)
    with Cluster(settings.bootstrap) as cluster:
        create_topics(cluster, [NewTopic(output.name, 2)])
    records = (
        spark.readStream.format("millstream")
        .schema(SCHEMA)
        .options(**{"kafka.bootstrap.servers": settings.bootstrap, "subscribe": settings.source})
        .options(startingOffsets="earliest", valueFormat="json")
        .option("maxOffsetsPerTrigger", settings.records_per_batch)
        .load()
    )
    writer = (
        declared(records)
        .writeStream.format("millstream")
        .queryName(declared.name)
        .options(**{"kafka.bootstrap.servers": settings.bootstrap, "topic": output.name})
        .options(**{"kafka.group.id": declared.group_id}, **output.options)
        .options(keyColumns="user", valueFormat="json")
        .option("checkpointLocation", f"{settings.checkpoints}/{declared.name}")
    )
    return (writer.trigger(availableNow=True) if settings.once else writer).start()


def main(settings: Settings) -> None:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(settings.master)
    for key, value in (spark_settings("local[2]") | settings.spark).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not settings.locks:
        locking.is_local = lambda location: False  # type: ignore[assignment]
    # Threads that want it at the same time would start two.
    ensure_callback_server_started(spark.sparkContext._gateway)
    declared = [declare(name, settings) for name in settings.pipelines]
    # In threads, since a pipeline may be held up already while it starts.
    threads = [Thread(target=keep_running, args=(spark, it, settings)) for it in declared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = {it.name: batch_result(spark, it, settings) for it in declared}
    settings.batch_results.write_text(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(Settings.load(sys.argv[1]))
