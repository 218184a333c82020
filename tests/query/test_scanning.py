"""Scans of several partitions by several threads."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.client.cluster import Cluster
from millstream.query.columns import table_schema
from millstream.query.fetching import QueryFailed, Source
from millstream.query.ranges import ScanRange
from millstream.query.scanning import ClusterPool, Progress, Scan, Shape
from millstream.testing.pytest_plugin import SharedBroker
from tests.query.scene import Sent, all_ranges, make_topic, source_of

SCHEMA = table_schema(pa.schema([]))
PARTITIONS, EACH = 6, 300


@pytest.fixture(scope="module")
def topic(millstream: SharedBroker) -> str:
    records = [
        Sent(b"v%d" % number, partition=partition)
        for partition in range(PARTITIONS)
        for number in range(EACH)
    ]
    return make_topic(millstream, records, partitions=PARTITIONS)


def make_scan(
    millstream: SharedBroker,
    topic: str,
    shape: Shape,
    progress: Progress,
    stop: threading.Event | None = None,
) -> Scan:
    pool = ClusterPool(lambda: Cluster(millstream.bootstrap_servers))
    with pool.lend() as cluster:
        source, ranges = source_of(cluster, topic), all_ranges(cluster, topic)
    return Scan(pool, source, ranges, shape, SCHEMA, progress, stop=stop)


def shape_of(*names: str) -> Shape:
    return Shape(pa.schema([SCHEMA.field(it) for it in names]), None)


def test_scan_returns_every_record_once_and_partitions_in_order(
    millstream: SharedBroker, topic: str
) -> None:
    progress = Progress()
    scan = make_scan(millstream, topic, shape_of("_partition", "_offset", "_value"), progress)
    table = pa.Table.from_batches(scan.batches())
    seen: dict[int, list[tuple[int, str]]] = {}
    for row in table.to_pylist():
        seen.setdefault(row["_partition"], []).append((row["_offset"], row["_value"]))
    expected = [(number, f"v{number}") for number in range(EACH)]
    assert seen == dict.fromkeys(range(PARTITIONS), expected)
    assert progress.total == progress.scanned == progress.rows == PARTITIONS * EACH
    assert progress.remaining_seconds == 0


def test_scan_applies_the_condition_to_columns_that_are_not_returned(
    millstream: SharedBroker, topic: str
) -> None:
    shape = Shape(
        pa.schema([SCHEMA.field("_offset")]),
        pc.field("_value") == "v7",
        frozenset(["_value"]),
    )
    table = pa.Table.from_batches(make_scan(millstream, topic, shape, Progress()).batches())
    assert table.to_pydict() == {"_offset": [7] * PARTITIONS}


def test_scan_stops_its_threads_when_it_is_closed_or_cancelled(
    millstream: SharedBroker, topic: str
) -> None:
    stop = threading.Event()
    for is_cancelled in (False, True):
        scan = make_scan(millstream, topic, shape_of("_offset"), Progress(), stop)
        batches = scan.batches()
        next(batches)
        if is_cancelled:
            stop.set()
        batches.close()  # type: ignore[attr-defined]
        for thread in scan._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_scan_raises_what_a_thread_raises(millstream: SharedBroker, topic: str) -> None:
    pool = ClusterPool(lambda: Cluster(millstream.bootstrap_servers))
    with pool.lend() as cluster:
        known = source_of(cluster, topic)
    ranges = [ScanRange(0, EACH + 50, EACH + 100)]
    scan = Scan(pool, known, ranges, shape_of("_offset"), SCHEMA, Progress())
    with pytest.raises(QueryFailed, match=f"{topic}-0 now ends at offset {EACH}"):
        list(scan.batches())
    pool.close()


def test_scan_of_nothing_is_empty() -> None:
    pool = ClusterPool(lambda: Cluster("127.0.0.1:1"))
    scan = Scan(pool, Source("t", None), (), shape_of("_offset"), SCHEMA, Progress())
    assert list(scan.batches()) == []
    assert Progress().remaining_seconds is None
