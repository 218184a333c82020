"""A task's fetches, against a real broker that may go away in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches
from millstream.client.producing import RawProducer
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.fetching import fetch_columns
from millstream.pipelines.reading.options import ReadOptions, parse_read_options
from millstream.pipelines.reading.positions import DataLost
from millstream.records import columns
from millstream.records.columns import Columns
from millstream.records.compression import DEFAULT_LIMIT_BYTES, Compression
from millstream.records.record import Record, encode_batch
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import ToolRunner
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream
from tests.pipelines.conftest import Topics


def options_of(topics: Topics, topic: str, **options: str) -> ReadOptions:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic} | options
    return parse_read_options(given, streaming=False)


def offsets_of(columns: Columns) -> list[int]:
    return list(memoryview(columns.offsets).cast("q"))


def test_fetch_columns_reads_a_range_over_many_fetches(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 300, records_per_batch=10)
    options = options_of(topics, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
    parts = list(fetch_columns(options, OffsetRange(topic, 0, 7, 251)))
    assert len(parts) > 1
    assert [offset for part in parts for offset in offsets_of(part)] == list(range(7, 251))


def test_fetch_columns_goes_on_after_the_broker_came_back(tmp_path: Path) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", port=port)
    topics = Topics(server)
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 100, records_per_batch=10)
    options = options_of(topics, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
    parts = fetch_columns(options, OffsetRange(topic, 0, 0, 100))
    offsets = offsets_of(next(parts))
    server.kill()
    server = start_millstream(tmp_path / "data", port=port)
    try:
        for part in parts:
            offsets += offsets_of(part)
    finally:
        server.stop()
    assert offsets == list(range(100))


def test_fetch_columns_skips_aborted_transactions_and_their_markers(topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    everything = OffsetRange(topic, 0, 0, 6)
    committed = list(fetch_columns(options_of(topics, topic), everything))
    assert [it for part in committed for it in offsets_of(part)] == [0, 4]
    uncommitted = options_of(topics, topic, **{"kafka.isolation.level": "read_uncommitted"})
    parts = list(fetch_columns(uncommitted, everything))
    assert [it for part in parts for it in offsets_of(part)] == [0, 2, 4]
    assert list(fetch_columns(options_of(topics, topic), OffsetRange(topic, 0, 1, 4))) == []


def test_fetch_columns_reads_over_the_holes_of_a_compacted_log(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data", {"log.cleaner.backoff.ms": "20"})
    try:
        topics = Topics(server)
        topic = topics.create(
            cleanup_policy="compact",
            internal_segment_bytes="2000",
            min_cleanable_dirty_ratio="0.01",
        )
        for _ in range(5):  # the same keys again and again
            topics.fill(topic, [b"x" * 100] * 10, records_per_batch=5)
        options, whole = options_of(topics, topic), OffsetRange(topic, 0, 0, 50)

        def read() -> list[int]:
            return [it for part in fetch_columns(options, whole) for it in offsets_of(part)]

        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(read()) == 50:
            assert time.monotonic() < deadline, "nothing was compacted"
        offsets = read()
        assert offsets == sorted(set(offsets))
        assert offsets[-10:] == list(range(40, 50))
        hole = next(it for it in range(50) if it not in offsets)
        within = fetch_columns(options, OffsetRange(topic, 0, hole, hole + 1))
        assert [part.row_count for part in within] == []
    finally:
        server.stop()


def test_fetch_columns_reports_records_deleted_while_it_reads(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 300, records_per_batch=10)
    small = {"kafka.max.partition.fetch.bytes": "20000"}
    strict = fetch_columns(options_of(topics, topic, **small), OffsetRange(topic, 0, 0, 300))
    lenient = fetch_columns(
        options_of(topics, topic, **small, failOnDataLoss="false"), OffsetRange(topic, 0, 0, 300)
    )
    offsets = offsets_of(next(lenient))
    next(strict)
    topics.delete_records(topic, 250)
    with pytest.raises(
        DataLost, match=rf"records of {topic}-0 .*to 249 \(the log now has 250 to 300"
    ):
        list(strict)
    for part in lenient:
        offsets += offsets_of(part)
    assert offsets == sorted(set(offsets))
    assert offsets[-50:] == list(range(250, 300))
    assert len(offsets) < 300


def test_fetch_columns_names_the_range_that_is_not_there(topics: Topics) -> None:
    topic = topics.create()
    wanted = OffsetRange(topic, 0, 5, 9)
    with pytest.raises(
        DataLost, match=rf"of {topic}-0 .*: offsets 5 to 8 \(the log now has 0 to 0"
    ):
        list(fetch_columns(options_of(topics, topic), wanted))
    assert list(fetch_columns(options_of(topics, topic, failOnDataLoss="false"), wanted)) == []


def test_fetch_columns_loses_patience_with_an_end_that_does_not_come(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 3)
    hasty = {"kafka.default.api.timeout.ms": "2000", "kafka.fetch.max.wait.ms": "10"}
    parts = fetch_columns(options_of(topics, topic, **hasty), OffsetRange(topic, 0, 0, 9))
    assert offsets_of(next(parts)) == [0, 1, 2]
    with pytest.raises(ApiError, match=r"from offset 3 on for 2 s: .*up to offset 3 only, not 9"):
        list(parts)


def test_fetch_columns_loses_patience_with_a_broker_that_stays_away(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data")
    topics = Topics(server)
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 100, records_per_batch=10)
    hasty = {"kafka.max.partition.fetch.bytes": "20000", "kafka.default.api.timeout.ms": "3000"}
    parts = fetch_columns(options_of(topics, topic, **hasty), OffsetRange(topic, 0, 0, 100))
    next(parts)
    server.kill()
    complaint = rf"{topic}-0 could not be read .* for 3 s: .*See to the brokers"
    with pytest.raises(ConnectionError, match=complaint):
        list(parts)


def test_fetch_columns_leaves_no_answer_behind_for_the_next_reader(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 100, records_per_batch=10)
    options = options_of(topics, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
    given_up = fetch_columns(options, OffsetRange(topic, 0, 0, 100))
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]
    parts = list(fetch_columns(options, OffsetRange(topic, 0, 50, 100)))
    assert [it for part in parts for it in offsets_of(part)] == list(range(50, 100))


def test_fetch_columns_yields_parts_where_one_fetch_is_too_much_for_columns(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 100, records_per_batch=10)
    monkeypatch.setattr(columns, "COLUMN_BYTES_MAX", 25_000)
    parts = list(fetch_columns(options_of(topics, topic), OffsetRange(topic, 0, 5, 97)))
    assert len(parts) > 4
    assert [it for part in parts for it in offsets_of(part)] == list(range(5, 97))


def test_fetch_columns_names_a_batch_that_decompresses_to_too_much(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"])
    zeros = Record(0, 0, None, bytes(DEFAULT_LIMIT_BYTES))
    with Cluster(topics.bootstrap) as cluster:
        producer = RawProducer(cluster)
        producer.begin()
        writer = producer.identity(topic, 0)
        batch = encode_batch(
            [zeros],
            compression=Compression.ZSTD,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=writer.base_sequence,
        )
        producer.send(topic, 0, batch, 1)
        producer.flush()
    parts = fetch_columns(options_of(topics, topic), OffsetRange(topic, 0, 0, 2))
    with pytest.raises(CorruptBatch, match=rf"{topic}-0 .* from offset 0 on: .* smaller batches"):
        list(parts)


QUOTA_BYTES = 20_000  # in a second


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Apache Kafka, which gives each client little."""
    tools = ToolRunner()
    try:
        server = start_kafka(tmp_path_factory.mktemp("kafka"), {"quota.window.num": "2"})
    except PeerMissing as missing:
        pytest.skip(str(missing))
    try:
        quota = ["--add-config", f"consumer_byte_rate={QUOTA_BYTES}"]
        whose = ["--entity-type", "clients", "--entity-default"]
        broker = ["--bootstrap-server", server.bootstrap]
        tools.check("kafka.admin.ConfigCommand", *broker, "--alter", *quota, *whose)
        yield Topics(server)
    finally:
        tools.close()
        server.stop()


@pytest.mark.slow
@pytest.mark.java
def test_fetches_wait_for_a_quota_of_apache_kafka(metered: Topics) -> None:
    topic = metered.create()
    metered.fill(topic, [b"x" * 1000] * 100, records_per_batch=5)
    options = options_of(metered, topic)
    parts = fetch_columns(options, OffsetRange(topic, 0, 0, 100))
    assert [it for part in parts for it in offsets_of(part)] == list(range(100))
    with Cluster(metered.bootstrap, client_id=options.client_id) as cluster:
        assert fetch_batches(cluster, topic, 0, 95).end_offset == 100


@pytest.mark.slow
@pytest.mark.java
def test_fetch_columns_names_a_quota_that_is_less_than_a_batch(metered: Topics) -> None:
    topic = metered.create()
    metered.fill(topic, [b"x" * 100_000])
    impatient = options_of(
        metered, topic, **{"kafka.default.api.timeout.ms": "5000", "kafka.client.id": "impatient"}
    )
    with pytest.raises(
        ApiError, match=r"for 5 s: .*quota.*raise its consumer_byte_rate"
    ) as refused:
        list(fetch_columns(impatient, OffsetRange(topic, 0, 0, 1)))
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
