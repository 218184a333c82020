"""Ranges of a real broker's topic, as columns."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.query.fetching import QueryFailed, RangeReader
from millstream.query.ranges import ScanRange
from millstream.records.arrow import binary_array
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.transactional import TransactionalProducer
from tests.query.scene import Sent, all_ranges, make_topic, produce, source_of


def read_values(reader: RangeReader, wanted: ScanRange) -> list[bytes | None]:
    values: list[bytes | None] = []
    for step in reader.read(wanted):
        if step.columns is not None:
            values += binary_array(step.columns.values, step.columns.row_count).to_pylist()
    return values


def test_read_returns_exactly_the_range(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"%d" % n) for n in range(50)])
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic))
        assert read_values(reader, ScanRange(0, 7, 31)) == [b"%d" % n for n in range(7, 31)]
        assert read_values(reader, ScanRange(0, 50, 50)) == []


def test_read_returns_values_larger_than_a_fetch(millstream: SharedBroker) -> None:
    huge = b"x" * 900_000
    topic = make_topic(millstream, [Sent(b"a"), Sent(huge), Sent(b"b")])
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic))
        assert read_values(reader, ScanRange(0, 0, 3)) == [b"a", huge, b"b"]


def test_read_hides_aborted_transactions_unless_asked(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"plain")])
    with TransactionalProducer(millstream.bootstrap_servers, topic) as producer:
        producer.init()
        producer.run(topic, [b"aborted"], committed=False)
        producer.run(topic, [b"kept"], committed=True)
    with Cluster(millstream.bootstrap_servers) as cluster:
        whole = all_ranges(cluster, topic)[0]
        committed = RangeReader(cluster, source_of(cluster, topic))
        everything = RangeReader(cluster, source_of(cluster, topic, read_committed=False))
        assert read_values(committed, whole) == [b"plain", b"kept"]
        assert read_values(everything, whole) == [b"plain", b"aborted", b"kept"]


def test_read_continues_after_deleted_records_with_a_warning(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"%d" % n) for n in range(10)])
    admin = AdminClient({"bootstrap.servers": millstream.bootstrap_servers})
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    next(iter(deleted.values())).result(60)
    warnings: list[str] = []
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic), warn=warnings.append)
        assert read_values(reader, ScanRange(0, 0, 10)) == [b"%d" % n for n in range(4, 10)]
    assert warnings == [
        f"{topic}-0: offsets 0 to 3 were deleted while the query was running, and are missing from "
        "its result"
    ]


def test_read_fails_if_the_topic_is_deleted_or_recreated(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"old")])
    admin = AdminClient({"bootstrap.servers": millstream.bootstrap_servers})
    with Cluster(millstream.bootstrap_servers) as cluster:
        source = source_of(cluster, topic)
        admin.delete_topics([topic])[topic].result(60)
        with pytest.raises(QueryFailed, match=f"topic {topic} was deleted while"):
            read_values(RangeReader(cluster, source), ScanRange(0, 0, 1))
        create_topics(cluster, [NewTopic(topic, 1)])
        produce(millstream.bootstrap_servers, topic, [Sent(b"new")])
        with pytest.raises(QueryFailed, match=f"topic {topic} was deleted and created again"):
            read_values(RangeReader(cluster, source), ScanRange(0, 0, 1))


def test_read_ends_when_it_is_stopped(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"x" * 100_000) for _ in range(20)])
    stop = threading.Event()
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic), stop=stop)
        steps = reader.read(ScanRange(0, 0, 20))
        assert next(steps).next_offset < 20  # the first request is small
        stop.set()
        assert list(steps) == []
        stop.clear()  # the connection is usable again
        assert len(read_values(reader, ScanRange(0, 0, 20))) == 20


def test_offsets_without_records_are_named(millstream: SharedBroker) -> None:
    """The broker answers several times without records, though its log goes on."""
    topic, warnings = make_topic(millstream, [Sent(b"a")]), list[str]()
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic), warn=warnings.append)
        fetched = SimpleNamespace(last_stable_offset=10, high_watermark=10)
        assert reader._after_nothing(fetched, ScanRange(0, 0, 10), 4) == 10
    (warning,) = warnings
    assert warning.startswith(f"{topic}-0: the broker had no records at offsets 4 to 9")
