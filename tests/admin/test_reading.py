"""Records of a real broker, with transactions that were committed, aborted and left open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.admin.outgoing import Outgoing, send
from millstream.admin.reading import Reader, ReadRecord, State, open_transactions
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches, log_end_offset
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode
from millstream.records.compression import Compression
from tests.peers.transactional import TransactionalProducer

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Broker.start() as broker, Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


def topic_of(cluster: Cluster, name: str, *values: bytes, partitions: int = 1) -> str:
    create_topics(cluster, [NewTopic(name, partitions)])
    if values:
        send(cluster, name, [Outgoing(it, partition=0) for it in values], now_ms=NOW_MS)
    return name


def bootstrap(cluster: Cluster) -> str:
    host, port = cluster._bootstrap[0]
    return f"{host}:{port}"


def states(records: Iterator[ReadRecord]) -> list[tuple[bytes | None, State]]:
    return [(it.value, it.state) for it in records]


def test_reader_goes_forward_and_backward(cluster: Cluster) -> None:
    values = [b"%d" % n for n in range(100)]
    topic = topic_of(cluster, "both-ways", *values)
    reader = Reader(cluster, topic)
    assert [it.value for it in reader.forward(0, 0, 100)] == values
    assert [it.value for it in reader.backward(0, 0, 100)] == values[::-1]
    assert [it.offset for it in reader.backward(0, 90, 95)] == [94, 93, 92, 91, 90]
    assert [it.offset for it in reader.forward(0, 97, 99)] == [97, 98]


@pytest.mark.parametrize("compression", Compression)
def test_reader_has_all_of_a_record(cluster: Cluster, compression: Compression) -> None:
    topic = topic_of(cluster, f"whole-{compression.name}")
    headers = [("trace", b"1"), ("empty", b""), ("null", None), ("trace", b"2")]
    outgoing = [Outgoing(b"value", b"key", headers, 0, 123), Outgoing(None, None, [], 0)]
    send(cluster, topic, outgoing, now_ms=NOW_MS, compression=compression)
    full, empty = Reader(cluster, topic).forward(0, 0, 2)
    assert (full.key, full.value, full.timestamp_ms) == (b"key", b"value", 123)
    assert [(it.name, it.value) for it in full.headers] == headers
    assert full.compression == compression.name.lower()
    assert not full.is_cut
    assert (empty.key, empty.value, empty.headers, empty.timestamp_ms) == (None, None, (), NOW_MS)


def test_reader_keeps_only_the_first_part_of_large_values(cluster: Cluster) -> None:
    topic = topic_of(cluster, "large", b"x" * 500_000, b"small")
    large, small = Reader(cluster, topic, kept_bytes=10).forward(0, 0, 2)
    assert (large.value, large.value_bytes, large.is_cut) == (b"x" * 10, 500_000, True)
    assert (small.value, small.is_cut) == (b"small", False)
    whole = Reader(cluster, topic, kept_bytes=None).one(0, 0)
    assert whole is not None
    assert whole.value == b"x" * 500_000


def test_reader_stops_when_it_has_read_enough(cluster: Cluster) -> None:
    topic = topic_of(cluster, "much", *[b"x" * 200_000] * 20)
    reader = Reader(cluster, topic, bytes_max=1_000_000)
    assert 0 < len(list(reader.backward(0, 0, 20))) < 20
    assert reader.is_spent
    assert reader.fetched_bytes < 3_000_000
    reader = Reader(cluster, topic, seconds_max=0)
    assert list(reader.forward(0, 0, 20)) == []
    assert reader.is_spent


def test_reader_finds_one_record_or_none(cluster: Cluster) -> None:
    topic = topic_of(cluster, "one", b"a", b"b", b"c")
    found = Reader(cluster, topic).one(0, 1)
    assert found is not None
    assert found.value == b"b"
    assert Reader(cluster, topic).one(0, 3) is None
    with pytest.raises(ApiError) as refused:
        Reader(cluster, topic).one(0, 9)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_reader_tells_what_became_of_transactions(cluster: Cluster) -> None:
    topic = topic_of(cluster, "transactions", b"plain")
    with (
        TransactionalProducer(bootstrap(cluster), "first", protocol=1) as first,
        TransactionalProducer(bootstrap(cluster), "second", protocol=1) as second,
    ):
        assert first.init() == second.init() == 0
        first.run(topic, [b"committed"], committed=True)
        first.run(topic, [b"aborted"], committed=False)
        first.run(topic, [b"committed again"], committed=True)
        second.begin(topic, 0)
        second.produce(topic, [b"open"])
        first.run(topic, [b"held back"], committed=True)
        first.run(topic, [b"aborted after"], committed=False)
        send(cluster, topic, [Outgoing(b"plain after", partition=0)], now_ms=NOW_MS)
        end = log_end_offset(cluster, topic, 0)
        expected = [
            (b"plain", State.COMMITTED),
            (b"committed", State.COMMITTED),
            (b"aborted", State.ABORTED),
            (b"committed again", State.COMMITTED),
            (b"open", State.OPEN),
            (b"held back", State.HELD),
            (b"aborted after", State.ABORTED),
            (b"plain after", State.HELD),
        ]
        assert states(Reader(cluster, topic).forward(0, 0, end)) == expected
        assert states(Reader(cluster, topic).backward(0, 0, end)) == expected[::-1]
        (open_,) = open_transactions(cluster, topic, 0)
        assert open_.producer_id == second.producer_id
        one = Reader(cluster, topic).one(0, open_.first_offset)
        assert one is not None
        assert one.state is State.OPEN
        assert one.is_transactional
        assert second.end(committed=True).error_code == 0
        while fetch_batches(cluster, topic, 0, 0).stable_offset < end:
            pass
        after = dict(states(Reader(cluster, topic).forward(0, 0, end)))
        assert after[b"open"] is after[b"held back"] is State.COMMITTED
        assert after[b"aborted after"] is State.ABORTED


def test_reader_skips_what_compaction_removed(cluster: Cluster) -> None:
    """Windows that find little grow, so that a sparse log is read in few steps."""
    topic = topic_of(cluster, "sparse", *[b"%d" % n for n in range(50)])
    with TransactionalProducer(bootstrap(cluster), "markers", protocol=1) as producer:
        assert producer.init() == 0
        for _ in range(30):
            producer.run(topic, [b"t"], committed=True)
    end = log_end_offset(cluster, topic, 0)
    assert len(list(Reader(cluster, topic).backward(0, 0, end))) == 80
