"""Streams whose commit goes wrong, in all the ways that need no kill: the topic is right anyway.

Faults are put in by a source of the test's own, which Spark makes in its driver's processes; each
happens once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client.cluster import Cluster
from millstream.client.transactions import open_transactions
from millstream.pipelines.source import MillstreamSource
from millstream.pipelines.spec import ONLY
from tests.peers.impatient import start_impatient
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import forget_last_commit, run_available, stream, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 600
SHORT_TIMEOUT_MS = "2000"

Fault = Callable[[Any, Any, int], None]  # (commit, messages, batch id)


def faulty_source(name: str, fault: Fault, flag: Path) -> type[MillstreamSource]:
    """A source whose stream writers suffer `fault` instead of a plain commit, once."""

    class FaultySource(MillstreamSource):
        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 Spark's name
            from millstream.pipelines.writing.writer import TopicStreamWriter

            class FaultyWriter(TopicStreamWriter):
                def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
                    if flag.exists():
                        super().commit(messages, batchId)
                    else:
                        flag.touch()
                        fault(super().commit, messages, batchId)

            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = FaultyWriter
            return writer

    return FaultySource


def raises_before(commit: Any, messages: Any, batch_id: int) -> None:
    raise OSError("fault: before")


def raises_after(commit: Any, messages: Any, batch_id: int) -> None:
    commit(messages, batch_id)
    raise OSError("fault: after")


def raises_after_the_decision(commit: Any, messages: Any, batch_id: int) -> None:
    from millstream.pipelines.writing import completing as module

    completing: Any = module
    original = completing.end_transactions

    def failing(*args: Any, **named: Any) -> Any:
        completing.end_transactions = original
        raise OSError("fault: after the decision")

    completing.end_transactions = failing
    commit(messages, batch_id)


def raises_before_the_decision_is_committed(commit: Any, messages: Any, batch_id: int) -> None:
    from millstream.client import producing

    original = producing.end_transaction

    def failing(*args: Any, **named: Any) -> Any:
        producing.end_transaction = original
        raise OSError("fault: decision not committed")

    producing.end_transaction = failing
    commit(messages, batch_id)


def waits_for_time_out(commit: Any, messages: Any, batch_id: int) -> None:
    """Between the decision and its end the broker loses its patience."""
    import time

    from millstream.client.transactions import open_transactions
    from millstream.pipelines.writing import completing as module

    completing: Any = module
    original = completing.end_transactions

    def late(cluster: Any, transactions: Any, commit: bool) -> Any:
        completing.end_transactions = original
        prefix = transactions[0].transactional_id.rpartition("-task-")[0] + "-task-"
        while open_transactions(cluster, prefix):
            time.sleep(0.1)
        return original(cluster, transactions, commit)

    completing.end_transactions = late
    commit(messages, batch_id)


@pytest.fixture
def source(topics: Topics) -> str:
    return filled_topic(topics)


def filled_topic(topics: Topics) -> str:
    name = topics.create(2)
    for partition in range(2):
        values = [f"{partition}-{number}".encode() for number in range(RECORDS // 2)]
        topics.fill(name, values, partition=partition)
    return name


def run_with(
    fault: Fault,
    frame: DataFrame,
    topics: Topics,
    target: str,
    directory: Path,
    **options: str,
) -> Exception | None:
    """A run that suffers the fault, and a run after it; what the first one raised."""
    from pyspark.errors import StreamingQueryException

    name = f"faulty{uuid.uuid4().hex[:8]}"
    frame.sparkSession.dataSource.register(faulty_source(name, fault, directory / "flag"))
    raised: Exception | None = None
    for _ in range(2):
        try:
            run_available(
                frame, topics, target, directory / "checkpoint", source_format=name, **options
            )
        except StreamingQueryException as error:
            raised = error
    assert (directory / "flag").exists()
    return raised


def check_exact(topics: Topics, target: str, checkpoint: Path) -> None:
    from millstream.pipelines.query_files import query_id

    found = values_of(topics, target, at_least=RECORDS)
    assert len(found) == len(set(found)) == RECORDS
    with Cluster(topics.bootstrap) as cluster:
        assert open_transactions(cluster, f"millstream-{query_id(str(checkpoint))}") == []


@pytest.mark.parametrize(
    "fault",
    [
        raises_before,
        raises_before_the_decision_is_committed,
        raises_after_the_decision,
        raises_after,
    ],
)
def test_stream_is_exact_when_commit_raises(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path, fault: Fault
) -> None:
    target = topics.create(2)
    frame = stream(spark, topics, source).selectExpr("key", "value")
    raised = run_with(fault, frame, topics, target, tmp_path)
    assert "fault:" in str(raised)
    check_exact(topics, target, tmp_path / "checkpoint")


def test_stream_is_exact_when_transactions_time_out_after_the_decision(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path
) -> None:
    target = topics.create(2)
    frame = stream(spark, topics, source).selectExpr("key", "value")
    options = {"kafka.transaction.timeout.ms": SHORT_TIMEOUT_MS}
    assert run_with(waits_for_time_out, frame, topics, target, tmp_path, **options) is None
    check_exact(topics, target, tmp_path / "checkpoint")


@pytest.mark.java
@pytest.mark.parametrize("fault", [raises_after_the_decision, waits_for_time_out])
def test_stream_is_exact_on_apache_kafka(spark: SparkSession, tmp_path: Path, fault: Fault) -> None:
    server = start_impatient("kafka", tmp_path / "kafka")
    try:
        kafka = Topics(server)
        source, target = filled_topic(kafka), kafka.create(2)
        frame = stream(spark, kafka, source).selectExpr("key", "value")
        # With the default time-out, the first of them, the brokers are asked for the longest.
        options = (
            {}
            if fault is raises_after_the_decision
            else {"kafka.transaction.timeout.ms": SHORT_TIMEOUT_MS}
        )
        run_with(fault, frame, kafka, target, tmp_path, **options)
        check_exact(kafka, target, tmp_path / "checkpoint")
    finally:
        server.stop()


def test_stream_aborts_what_a_losing_attempt_has_left_open(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path
) -> None:
    """As speculation does: another attempt writes the same rows, and its message is not used."""

    class Twice(MillstreamSource):
        @classmethod
        def name(cls) -> str:
            return "twice"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 Spark's name
            from millstream.pipelines.writing.tasks import write_open
            from millstream.pipelines.writing.writer import TopicStreamWriter

            class TwiceWriter(TopicStreamWriter):
                def write(self, iterator: Any) -> Any:
                    batches = list(iterator)
                    assert self._plan is not None
                    loser = f"{self._plan.task_prefix}lost-"
                    rows = ((ONLY, batch) for batch in batches)
                    write_open({ONLY: self._options}, loser, self._plan.timeout_ms, rows)
                    return super().write(iter(batches))

            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = TwiceWriter
            return writer

    spark.dataSource.register(Twice)
    target = topics.create(2)
    frame = stream(spark, topics, source).selectExpr("key", "value")
    run_available(frame, topics, target, tmp_path / "checkpoint", source_format="twice")
    check_exact(topics, target, tmp_path / "checkpoint")


def test_stream_stops_when_a_decided_batch_is_no_longer_what_it_was(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path
) -> None:
    target, checkpoint = topics.create(), tmp_path / "checkpoint"
    frame = stream(spark, topics, source).selectExpr("value")
    run_available(frame, topics, target, checkpoint)
    topics.fill(source, [b"later"])
    forget_last_commit(checkpoint)
    (checkpoint / "offsets" / "0").unlink()
    (checkpoint / "offsets" / ".0.crc").unlink()
    with pytest.raises(Exception, match="records would be left out"):
        run_available(frame, topics, target, checkpoint)
    assert len(values_of(topics, target, at_least=RECORDS)) == RECORDS


def test_stream_needs_its_checkpoint_named_on_the_writer(
    spark: SparkSession, topics: Topics, source: str, tmp_path: Path
) -> None:
    writer = (
        stream(spark, topics, source)
        .selectExpr("value")
        .writeStream.format("millstream")
        .options(**{"kafka.bootstrap.servers": topics.bootstrap, "topic": "any"})
        .queryName(f"q{uuid.uuid4().hex[:8]}")
    )
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(Exception, match="needs the option checkpointLocation"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
