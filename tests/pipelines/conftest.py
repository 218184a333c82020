"""What tests of pipelines share: one Spark session, and a real broker in a process of its own."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.pipelines.running.class_archive import prepared_jvm
from millstream.pipelines.running.failures import passes
from millstream.pipelines.running.light_jars import register_ml_functions_when_needed
from millstream.pipelines.running.spark_home import light_home
from tests.peers.cache import PeerMissing
from tests.peers.servers import Server, start_millstream
from tests.peers.spark_connector import connector_jars

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# What every run of the tests sees of Spark, files and tests; the rest is in `make test-all`, for
# its length.
ALWAYS_RUN = (
    "test_launching.py",
    "test_source.py",
    "test_stream_writes_every_row_once_and_shows_its_progress_as_a_group",
    "test_stream_writes_nothing_twice_when_a_decided_batch_is_replayed",
    "test_sinks.py",
    "test_check.py",
    "test_answer_over_tables_is_that_of_duckdb",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        names = {item.path.name, getattr(item, "originalname", item.name)}
        if uses_spark and names.isdisjoint(ALWAYS_RUN):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of this test process: never stop it, never change its settings for good."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    jars = ",".join(map(str, _connector_if_any()))
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("millstream-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", jars)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with light_home(tmp_path_factory.mktemp("home")), prepared_jvm():
        session = builder.getOrCreate()
    register_ml_functions_when_needed(session)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _connector_if_any() -> list[Path]:
    try:
        return connector_jars()
    except PeerMissing:
        return []


@pytest.fixture
def connector() -> None:
    """For tests of `format("kafka")`: skips where Spark's own connector cannot be had."""
    try:
        connector_jars()
    except PeerMissing as missing:
        pytest.skip(str(missing))


QUERY_SECONDS_MAX = 240
STARTS_MAX = 5


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait for its end; start it again where a busy machine prevented it."""
    from pyspark.errors import StreamingQueryException

    for remaining in reversed(range(STARTS_MAX)):
        query = start()
        try:
            assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
            break
        except StreamingQueryException as error:
            if not passes(error) or not remaining:
                raise
    return query


@dataclass
class Topics:
    """A broker, and topics on it that no other test has."""

    server: Server

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    @property
    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, partitions: int = 1, *, name: str | None = None, **settings: str) -> str:
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:10]}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        new = NewTopic(name, partitions, 1, config=config)
        admin = self.admin
        admin.create_topics([new], operation_timeout=30)[name].result(60)
        return name

    def delete(self, topic: str) -> None:
        admin = self.admin
        admin.delete_topics([topic], operation_timeout=30)[topic].result(60)

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        admin = self.admin
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> None:
        from confluent_kafka import TopicPartition

        wanted = TopicPartition(topic, partition, before)
        admin = self.admin
        admin.delete_records([wanted])[wanted].result(60)

    def fill(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        partition: int = 0,
        records_per_batch: int = 10_000,
    ) -> None:
        """Append records with these values, and their number as key."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "batch.num.messages": records_per_batch,
            }
        )
        for number, value in enumerate(values):
            producer.produce(topic, value, key=str(number).encode(), partition=partition)
        assert producer.flush(60) == 0


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A broker shared by all tests of the process.

    It keeps records of any age: many tests write records with timestamps near 1970.
    """
    data = tmp_path_factory.mktemp("pipelines") / "data"
    server = start_millstream(data, {"log.retention.ms": "-1"})
    yield Topics(server)
    server.kill()  # nothing of it is needed, and a clean stop flushes all that was written
