"""Topics as tables of DuckDB: push-down, projection, LIMIT."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from millstream.client.cluster import Cluster
from millstream.query.columns import table_schema
from millstream.query.pushdown import TimeBounds
from millstream.query.ranges import ScanRange, total_size
from millstream.query.scanning import ClusterPool
from millstream.query.table import TopicTable, bounded_by_time
from millstream.testing.pytest_plugin import SharedBroker
from tests.query.scene import START_MS, Sent, all_ranges, make_topic, source_of

COUNT = 2000


@pytest.fixture(scope="module")
def table(millstream: SharedBroker) -> Iterator[TopicTable]:
    records = [
        Sent(
            b"\xffbad" if number == 77 else b'{"n": %d}' % number,
            key=b"k%d" % (number % 3),
            partition=number % 2,
            timestamp_ms=START_MS + number,
            headers=[("trace", b"%d" % number)],
        )
        for number in range(2 * COUNT)
    ]
    topic = make_topic(millstream, records, partitions=2)
    pool = ClusterPool(lambda: Cluster(millstream.bootstrap_servers))
    with pool.lend() as cluster:
        source, ranges = source_of(cluster, topic), all_ranges(cluster, topic)
    yield TopicTable(pool, source, ranges, table_schema(pa.schema([]), ["_value_bytes"]))
    pool.close()


def ask(table: TopicTable, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        connection.register("orders", table)
        return connection.execute(sql).fetchall()


def test_offsets_partitions_and_times_bound_what_is_read(table: TopicTable) -> None:
    rows = ask(table, "select _key, _value from orders where _partition = 1 and _offset = 500")
    assert rows == [("k2", '{"n": 1001}')]
    assert total_size(table.read_ranges) < 300
    moment = f"make_timestamptz({(START_MS + 3990) * 1000})"
    rows = ask(table, f"select count(*) from orders where _timestamp >= {moment}")
    assert rows == [(10,)]
    assert total_size(table.read_ranges) == 10
    assert ask(table, "select count(*) from orders where _partition = 9") == [(0,)]
    assert table.read_ranges == ()


def test_filters_apply_to_columns_that_are_not_selected(table: TopicTable) -> None:
    assert ask(table, "select _offset from orders where _value = '{\"n\": 9}'") == [(4,)]
    assert ask(table, "select count(*) from orders where _key = 'k0' and _offset < 3") == [(2,)]
    assert ask(
        table,
        "select _offset from orders where len(list_filter(_headers, lambda h: "
        "h.key = 'trace' and h.value = '42')) > 0",
    ) == [(21,)]


def test_values_that_are_no_text_are_escaped_and_exact_as_bytes(table: TopicTable) -> None:
    sql = "select _value, _value_bytes from orders where contains(_value, 'bad')"
    assert ask(table, sql) == [("\\xffbad", b"\xffbad")]


def test_limit_stops_the_scan(table: TopicTable) -> None:
    threads = threading.active_count()
    assert len(ask(table, "select _value from orders limit 3")) == 3
    deadline = threading.Event()
    while threading.active_count() > threads:
        assert not deadline.wait(0.01)


def test_time_bounds_that_contradict_read_nothing(millstream: SharedBroker) -> None:
    with Cluster(millstream.bootstrap_servers) as cluster:
        ranges = [ScanRange(0, 0, 9)]
        assert bounded_by_time(cluster, "nowhere", ranges, TimeBounds(5, 4)) == ()
        assert bounded_by_time(cluster, "nowhere", ranges, TimeBounds()) == tuple(ranges)
