"""Events of a real stream: operations, keys, tombstones, headers, orders, TOAST."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from millstream.connect.capture.encoding import (
    ChangeBuffer,
    ChangeFeed,
    StreamContext,
    TableEncoder,
    table_encoder,
    take_columns,
)
from millstream.connect.capture.tables import CaptureError, Column, StaleTypes, Table
from millstream.connect.capture.types import PostgresType, TypeCatalogue
from tests.connect.capture.source import NOW_US, SETTINGS, Change, Source, taken

INT4, TEXT = 23, 25
TABLE = Table(
    5, "public", "orders", (Column("id", INT4), Column("name", TEXT)), ("id",), "d", ("id",)
)


def shown(change: Change) -> tuple[Any, Any]:
    """Key, and the envelope without source and times."""
    key = None if change.key is None else json.loads(change.key)
    if change.value is None:
        return key, None
    value = json.loads(change.value)
    return key, {it: value[it] for it in ("op", "before", "after") if it in value} or value


def test_operations_have_debeziums_envelope(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x')")
    source.execute("INSERT INTO t VALUES (1, 'a')")
    source.execute("UPDATE t SET name = 'b'")
    source.execute("DELETE FROM t")
    changes = source.changes()
    assert [shown(it) for it in changes] == [
        ({"id": 1}, {"op": "c", "before": None, "after": {"id": 1, "name": "a"}}),
        ({"id": 1}, {"op": "u", "before": None, "after": {"id": 1, "name": "b"}}),
        ({"id": 1}, {"op": "d", "before": {"id": 1, "name": None}, "after": None}),
        ({"id": 1}, None),
    ]
    first = json.loads(changes[0].value or b"")
    assert list(first) == (
        ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    )
    assert first["ts_us"] == NOW_US
    assert first["source"]["ts_ms"] == changes[0].timestamp_ms
    assert first["source"]["sequence"] == f'[null,"{first["source"]["lsn"]}"]'


def test_full_identity_has_the_row_before(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("INSERT INTO t VALUES (1, 'a')")
    source.execute("UPDATE t SET name = 'b'")
    source.execute("DELETE FROM t")
    before = [shown(it)[1]["before"] for it in source.changes() if it.value is not None]
    assert before == [None, {"id": 1, "name": "a"}, {"id": 1, "name": "b"}]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_changed_key_deletes_the_old_one(source: Source, identity: str) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    source.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    source.execute("INSERT INTO t VALUES (1, 'a'), (10, 'b')")
    source.changes()
    source.execute("UPDATE t SET id = id + 1")
    changes = source.changes()
    named = "a" if identity == "FULL" else None
    assert [shown(it) for it in changes][:3] == [
        ({"id": 1}, {"op": "d", "before": {"id": 1, "name": named}, "after": None}),
        ({"id": 1}, None),
        ({"id": 2}, {"op": "c", "before": None, "after": {"id": 2, "name": "a"}}),
    ]
    assert [it.headers for it in changes] == [
        (("__debezium.newkey", b'{"id":2}'),),
        (("__debezium.newkey", b'{"id":2}'),),
        (("__debezium.oldkey", b'{"id":1}'),),
        (("__debezium.newkey", b'{"id":11}'),),
        (("__debezium.newkey", b'{"id":11}'),),
        (("__debezium.oldkey", b'{"id":10}'),),
    ]
    assert source.context.ordinal == 2


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_unchanged_toast_is_filled_if_it_was_sent(source: Source, identity: str) -> None:
    source.execute("CREATE EXTENSION hstore")
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, a text, b bytea, i int[], c text[], h hstore)"
    )
    for column in "abich":
        source.execute(f"ALTER TABLE t ALTER {column} SET STORAGE EXTERNAL")
    source.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    source.execute(
        "INSERT INTO t SELECT 1, 1, repeat('x', 9000), decode(repeat('ab', 9000), 'hex'), "
        "array_agg(i), array_agg(i::text), hstore('k', repeat('x', 9000)) "
        "FROM generate_series(1, 5000) i"
    )
    source.execute("UPDATE t SET n = 2")
    created, updated = (shown(it)[1]["after"] for it in source.changes())
    if identity == "FULL":
        assert updated == created | {"n": 2}
    else:
        placeholder = "__debezium_unavailable_value"
        assert updated == {
            "id": 1,
            "n": 2,
            "a": placeholder,
            "b": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
            "i": list(placeholder.encode()),
            "c": [placeholder],
            "h": json.dumps({placeholder: placeholder}, separators=(",", ":")),
        }


def test_table_without_key_has_null_keys_and_no_tombstones(source: Source) -> None:
    source.execute("CREATE TABLE t (name text)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("INSERT INTO t VALUES ('a')")
    source.execute("DELETE FROM t")
    assert [(it.key, shown(it)[1]["op"]) for it in source.changes()] == [(None, "c"), (None, "d")]


def test_flat_shape_marks_deletes(source: Source) -> None:
    source.settings = replace(source.settings, shape="flat")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    source.execute("DELETE FROM t WHERE id = 1")
    assert [shown(it) for it in source.changes()] == [
        ({"id": 1}, {"id": 1, "name": "a", "__deleted": "false"}),
        ({"id": 2}, {"id": 2, "name": "b", "__deleted": "false"}),
        ({"id": 1}, {"id": 1, "name": None, "__deleted": "true"}),
        ({"id": 1}, None),
    ]
    assert [shown(it) for it in source.copy(source.tables["t"])] == [
        ({"id": 2}, {"id": 2, "name": "b", "__deleted": "false"}),
    ]


def test_orders_count_events_of_the_transaction_and_of_the_table(source: Source) -> None:
    source.settings = replace(source.settings, transaction_metadata=True)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    with source.connection.transaction():
        source.execute("INSERT INTO t VALUES (1), (2)")
        source.execute("INSERT INTO u VALUES (1)")
        source.execute("UPDATE t SET id = 3 WHERE id = 2")
    changes = [json.loads(it.value) for it in source.changes() if it.value is not None]
    blocks = [it["transaction"] for it in changes]
    assert [(it["total_order"], it["data_collection_order"]) for it in blocks] == [
        (1, 1), (2, 2), (3, 1), (4, 3), (5, 4),
    ]  # fmt: skip
    assert len({it["id"] for it in blocks}) == 1
    assert blocks[0]["id"].startswith(f"{changes[0]['source']['txId']}:")


def test_snapshot_rows_have_the_flag(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    source.execute("INSERT INTO t VALUES (1, E'a\\tb\\\\n\\n')")
    source.changes()
    (change,) = source.copy(source.tables["t"], flag="first")
    value = json.loads(change.value or b"")
    assert shown(change)[1]["after"] == {"id": 1, "name": "a\tb\\n\n"}
    assert value["op"] == "r"
    assert value["transaction"] is None
    assert value["source"]["snapshot"] == "first"
    assert value["source"]["sequence"] == '[null,"7"]'
    assert (value["source"]["lsn"], value["source"]["txId"]) == (7, 8)
    assert change.timestamp_ms == NOW_US // 1000


# Without a database


def made(table: Table = TABLE, catalogue: TypeCatalogue | None = None) -> tuple[Any, ...]:
    context, buffer = StreamContext(), ChangeBuffer()
    encoder = table_encoder(table, SETTINGS, catalogue or TypeCatalogue(), context, buffer)
    context.begin(xid=1, commit_lsn=100, commit_time_us=1, now_us=2)
    return encoder, context, buffer


def message(tag: bytes, *tuples: tuple[bytes, list[bytes | None]], oid: int = 5) -> bytes:
    """A row change, each tuple with its letter; `b"?"` is an unchanged TOAST value."""
    body = tag + struct.pack(">I", oid)
    for letter, values in tuples:
        body += letter + struct.pack(">H", len(values))
        for value in values:
            if value is None:
                body += b"n"
            elif value == b"?":
                body += b"u"
            else:
                body += b"t" + struct.pack(">I", len(value)) + value
    return b"w" + struct.pack(">QQq", 77, 0, 0) + body


def insert(*values: bytes | None) -> bytes:
    return message(b"I", (b"N", list(values)))


def test_skipped_changes_are_counted() -> None:
    encoder, context, buffer = made()
    context.begin(xid=1, commit_lsn=100, commit_time_us=1, now_us=2, skip=2)
    encoder.change(insert(b"1", b"a"))
    encoder.change(message(b"U", (b"K", [b"1", None]), (b"N", [b"2", b"a"])))
    assert len(buffer) == 0
    assert not context.is_skipping
    encoder.change(insert(b"3", b"a"))
    assert context.ordinal == 3
    assert context.commit(110) == (4, [("public.orders", 4)])
    assert [it.key for it in taken(buffer)] == [b'{"id":3}']


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (insert(b"1x", b"a"), "column id = '1x': is no number"),
        (insert(b"1", b"\xff"), "column name = .* is not valid UTF-8"),
        (insert(b"1"), "another number of columns"),
        (insert(b"1", b"a") + b"x", "malformed message"),
        (insert(b"1", b"a")[:-1], "malformed message"),
        (insert(b"1", b"a")[:31], "malformed message"),
        (insert(b"?", b"a"), "column id: is part of the key, and its value was not sent"),
        (message(b"D"), "malformed message"),
        (message(b"X", (b"N", [b"1", b"a"])), "malformed message"),
        (insert(b"1", b"a").replace(b"t\0\0\0\1a", b"b\0\0\0\1a"), "binary value"),
    ],
)
def test_malformed_message_is_refused_and_leaves_nothing(given: bytes, expected: str) -> None:
    encoder, context, buffer = made()
    encoder.change(insert(b"0", b"first"))
    with pytest.raises(CaptureError, match=expected) as failure:
        encoder.change(given)
    assert context.ordinal == 1
    assert "public.orders" in str(failure.value)
    encoder.change(insert(b"2", b"last"))
    assert [it.key for it in taken(buffer)] == [b'{"id":0}', b'{"id":2}']
    assert context.commit(110) == (2, [("public.orders", 2)])


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1007, b"{1,2"), (1007, b"{1,,2}"), (1007, b"{1}}"), (1007, b""), (1007, b'{"1}'),
        (1007, b"[0:1]"), (1007, b"{" * 9 + b"}" * 9), (1082, b"2026-1-1"), (1082, b"2026-13-01"),
        (1114, b"2026-01-01"), (1184, b"2026-01-01 00:00:00"), (1083, b"1:2:3"), (1266, b"01:02:3"),
        (17, b"abc"), (17, b"\\xa"), (17, b"\\xzz"), (16, b"x"), (701, b"1.2.3"), (701, b""),
        (1560, b"102"), (600, b"(1)"), (600, b"(1,2,3)"), (600, b"(1_0,2)"),
        (790, b"1 EUR"), (20, b"--1"), (20, b""), (20, b"012"), (701, b"-01.5"),
    ],
)  # fmt: skip
def test_malformed_value_is_refused(oid: int, text: bytes) -> None:
    encoder, _, buffer = made(Table(5, "s", "t", (Column("c", oid, 5 if oid == 1560 else -1),)))
    with pytest.raises(CaptureError, match=r"table s\.t, column c"):
        encoder.change(insert(text))
    assert len(buffer) == 0


@pytest.mark.parametrize("digits", [1, 3999, 4000, 4001, 20_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_precise_decimal_may_have_any_number_of_digits(digits: int, sign: str) -> None:
    table = Table(5, "s", "t", (Column("c", 1700),))
    context, buffer = StreamContext(), ChangeBuffer()
    settings = replace(SETTINGS, decimals="precise")
    encoder = table_encoder(table, settings, TypeCatalogue(), context, buffer)
    encoder.change(insert(f"{sign}{'7' * digits}.5".encode()))
    (change,) = taken(buffer)
    value = json.loads(change.value or b"")["after"]["c"]
    expected = (10**digits - 1) // 9 * 70 + 5
    unscaled = int.from_bytes(base64.b64decode(value["value"]), "big", signed=True)
    assert (value["scale"], unscaled) == (1, -expected if sign else expected)


def test_composite_of_another_version_is_reported_as_such() -> None:
    catalogue = TypeCatalogue.of(
        [PostgresType(70000, "s", "pair", "c", attributes=(("a", INT4, -1), ("b", TEXT, -1)))]
    )
    encoder, _, _ = made(Table(5, "s", "t", (Column("c", 70000),)), catalogue)
    for text in (b"(1)", b"(1,x,3)"):
        with pytest.raises(StaleTypes, match="number of attributes"):
            encoder.change(insert(text))


@pytest.mark.parametrize("line", [b"1\ta", b"1\n", b"1\ta\tb\n", b"1\t\\q\n", b"x\ta\n"])
def test_malformed_line_is_refused_and_leaves_nothing(line: bytes) -> None:
    encoder, _, buffer = made()
    with pytest.raises(CaptureError, match=r"public\.orders"):
        copied(encoder, [b"1\tok\n", line])
    assert len(buffer) == 0


def copied(encoder: TableEncoder, rows: bytes | list[bytes]) -> int:
    return encoder.copy(rows, flag="true", lsn=None, xid=None, snapshot_time_us=1, now_us=2)


def test_copy_takes_lines_and_chunks() -> None:
    encoder, _, buffer = made()
    assert copied(encoder, [b"1\ta\n", b"2\t\\N\n"]) == 2
    lines = taken(buffer)
    assert copied(encoder, b"1\ta\n2\t\\N\n") == 2
    assert taken(buffer) == lines
    assert json.loads(lines[1].value or b"")["after"] == {"id": 2, "name": None}
    assert json.loads(lines[1].value or b"")["source"]["sequence"] == "[null,null]"


def test_truncate_is_counted_but_not_written_in_the_flat_shape() -> None:
    context, buffer = StreamContext(), ChangeBuffer()
    flat = replace(SETTINGS, shape="flat")
    encoder = table_encoder(TABLE, flat, TypeCatalogue(), context, buffer)
    context.begin(xid=1, commit_lsn=100, commit_time_us=1, now_us=2)
    encoder.truncate(95)
    assert len(buffer) == 0
    assert context.ordinal == 1


def test_feed_stops_at_other_messages_and_refuses_unknown_tables() -> None:
    encoder, _, buffer = made()
    feed = ChangeFeed()
    feed.register(encoder)
    commit_message = b"w" + bytes(24) + b"C" + bytes(25)
    messages = [insert(b"1", b"a"), insert(b"2", b"a"), commit_message, insert(b"3", b"a")]
    assert feed.feed(messages) == 2
    assert feed.feed(messages, 3) == 4
    assert len(buffer) == 3
    with pytest.raises(CaptureError, match="unknown table, oid 6"):
        feed.feed([message(b"I", (b"N", [b"1", b"a"]), oid=6)])


def test_buffer_takes_records_that_are_no_rows() -> None:
    buffer = ChangeBuffer()
    for number in range(3000):
        buffer.append(
            b"k",
            None if number % 2 else b"v",
            number,
            (("h", b"%d" % number),) if number == 2000 else (),
        )
    assert buffer.size_bytes == 3000 + 1500 + 4
    changes = taken(buffer)
    assert len(buffer) == 0
    assert [it.timestamp_ms for it in changes] == list(range(3000))
    assert [it.value for it in changes[:2]] == [b"v", None]
    assert [number for number, it in enumerate(changes) if it.headers] == [2000]
    buffer.append(b"k", b"v", 1)
    buffer.clear()
    assert taken(buffer) == []


def test_rows_are_dealt_to_partitions_by_key() -> None:
    buffer = ChangeBuffer()
    for number in range(100):
        buffer.append(b"%d" % (number % 7) if number % 10 else None, b"v", number)
    columns = take_columns(buffer)
    dealt = [list(memoryview(it).cast("B").cast("q")) for it in columns.rows_by_partition(4)]
    assert sorted(row for rows in dealt for row in rows) == list(range(100))
    assert all(rows == sorted(rows) for rows in dealt)
    assert set(range(0, 100, 10)) <= set(dealt[0])
    assert columns.key_list(9, 12) == [b"2", None, b"4"]
    without = columns.rows_by_partition(4, {b"2", None})
    left = {row for rows in without for row in memoryview(rows).cast("B").cast("q")}
    assert left == {row for row in range(100) if row % 10 and row % 7 != 2}
    for key in range(7):
        of_key = {row for row in range(100) if row % 10 and row % 7 == key}
        assert sum(bool(of_key & set(rows)) for rows in dealt) == 1
