"""Pages of records, merged from the partitions of a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.admin import browsing
from millstream.admin.browsing import Asked, Bounds, Listing, Start, browse, follow, read_bounds
from millstream.admin.outgoing import Outgoing, send
from millstream.admin.reading import Reader
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode
from tests.peers.transactional import TransactionalProducer


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        Broker.start() as broker,
        Cluster(broker.bootstrap_servers, missing_topic_seconds=0) as cluster,
    ):
        create_topics(cluster, [NewTopic("orders", 3)])
        # Times 1000, 1001, ... go round the partitions.
        records = [Outgoing(b"%d" % n, partition=n % 3, timestamp_ms=1000 + n) for n in range(60)]
        send(cluster, "orders", records, now_ms=0)
        yield cluster


def values(listing: Listing) -> list[int]:
    return [int(it.value or b"") for it in listing.records]


def test_newest_records_of_all_partitions_come_first(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(count=10))
    assert values(listing) == list(range(59, 49, -1))
    assert listing.newer is None
    assert listing.older is not None
    assert listing.bounds == {it: Bounds(0, 20) for it in range(3)}


def test_pages_follow_each_other_without_gaps_and_back(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(count=7))
    seen = values(listing)
    while listing.older is not None:
        listing = browse(cluster, "orders", Asked(Start.BEFORE, positions=listing.older, count=7))
        seen += values(listing)
    assert seen == list(range(59, -1, -1))
    listing = browse(cluster, "orders", Asked(Start.OLDEST, count=7))
    seen = values(listing)
    while listing.newer is not None:
        listing = browse(cluster, "orders", Asked(Start.FROM, positions=listing.newer, count=7))
        seen += values(listing)
    assert seen == list(range(60))


def test_page_starts_at_an_offset(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(Start.OFFSET, offset=18, partitions=(1,)))
    assert values(listing) == [55, 58]
    assert listing.older == {1: 18}
    assert listing.newer is None
    assert values(browse(cluster, "orders", Asked(Start.OFFSET, offset=10**6))) == []


def test_page_starts_at_a_time(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(Start.TIME, time_ms=1055))
    assert values(listing) == [55, 56, 57, 58, 59]


def test_page_shows_the_topic_as_of_a_time(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(Start.AS_OF, time_ms=1010, count=4))
    assert values(listing) == [9, 8, 7, 6]
    assert values(browse(cluster, "orders", Asked(Start.AS_OF, time_ms=1))) == []
    assert values(browse(cluster, "orders", Asked(Start.AS_OF, time_ms=10**12, count=1))) == [59]


def test_page_of_one_partition_has_only_its_records(cluster: Cluster) -> None:
    listing = browse(cluster, "orders", Asked(partitions=(2,), count=3))
    assert values(listing) == [59, 56, 53]
    assert listing.older == {2: 17}


def test_page_of_many_partitions_reads_only_the_newest(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(cluster, [NewTopic("wide", 30)])
    records = [Outgoing(b"%d" % n, partition=n, timestamp_ms=1000 + n) for n in range(30)]
    send(cluster, "wide", records, now_ms=0)
    monkeypatch.setattr(browsing, "MERGED_MAX", 4)
    read: set[int] = set()
    backward = Reader.backward

    def noted(reader: Reader, partition: int, first: int, end: int) -> object:
        read.add(partition)
        return backward(reader, partition, first, end)

    monkeypatch.setattr(Reader, "backward", noted)
    listing = browse(cluster, "wide", Asked(count=5))
    assert values(listing) == [29, 28, 27, 26, 25]
    assert read == {29, 28, 27, 26, 25}
    assert listing.older is not None
    assert listing.older[0] == 1
    assert listing.older[29] == 0


def test_page_hides_what_is_not_committed(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("mixed", 1)])
    host, port = cluster._bootstrap[0]
    with TransactionalProducer(f"{host}:{port}", "mixed", protocol=1) as producer:
        assert producer.init() == 0
        producer.run("mixed", [b"1"], committed=True)
        producer.run("mixed", [b"2"], committed=False)
        producer.begin("mixed", 0)
        producer.produce("mixed", [b"3"])
        assert values(browse(cluster, "mixed", Asked())) == [3, 2, 1]
        listing = browse(cluster, "mixed", Asked(is_committed_only=True))
        assert values(listing) == [1]
        assert listing.hidden == 2


def test_page_of_an_empty_topic_is_empty(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("empty", 2)])
    for start in (Start.NEWEST, Start.OLDEST, Start.TIME, Start.AS_OF, Start.OFFSET):
        listing = browse(cluster, "empty", Asked(start))
        assert (listing.records, listing.older, listing.newer) == ([], None, None)


def test_page_of_records_in_reverse_time_keeps_the_order_of_offsets(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("reverse", 1)])
    records = [Outgoing(b"%d" % n, partition=0, timestamp_ms=1000 - n) for n in range(20)]
    send(cluster, "reverse", records, now_ms=0)
    assert values(browse(cluster, "reverse", Asked())) == list(range(19, -1, -1))


def test_bounds_refuse_what_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="orders has no partition 3, only 0 to 2"):
        read_bounds(cluster, "orders", [3])
    with pytest.raises(ApiError) as refused:
        read_bounds(cluster, "missing")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_follow_has_what_is_new_and_counts_what_it_skips(cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("followed", 2)])
    start = follow(cluster, "followed", None, count=10)
    assert (start.records, start.positions) == ([], {0: 0, 1: 0})
    records = [Outgoing(b"%d" % n, partition=n % 2, timestamp_ms=1 + n) for n in range(30)]
    send(cluster, "followed", records[:4], now_ms=0)
    some = follow(cluster, "followed", start.positions, count=10)
    assert [it.value for it in some.records] == [b"0", b"1", b"2", b"3"]
    assert some.skipped == 0
    send(cluster, "followed", records[4:], now_ms=0)
    more = follow(cluster, "followed", some.positions, count=10)
    assert [it.value for it in more.records] == [b"%d" % n for n in range(20, 30)]
    assert more.skipped == 16
    assert follow(cluster, "followed", more.positions, count=10).records == []
    one = follow(cluster, "followed", some.positions, partitions=(1,), count=3)
    assert [it.value for it in one.records] == [b"25", b"27", b"29"]
