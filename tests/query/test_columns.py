"""Records as the columns of a table."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from millstream.query.columns import RECORD_COLUMNS, record_array, table_schema, text_array
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch

NONE = pa.schema([])


def test_columns_on_demand_exist_if_they_are_named() -> None:
    usual = ["_partition", "_offset", "_timestamp", "_key", "_value", "_headers"]
    assert table_schema(NONE).names == usual
    assert table_schema(NONE, {"_value_bytes", "_topic"}).names == [
        *usual,
        "_value_bytes",
        "_topic",
    ]
    assert table_schema(pa.schema([("id", pa.int64())])).names[0] == "id"


def test_record_array_has_the_type_of_the_schema() -> None:
    records = [
        Record(5, 1_700_000_000_123, b"k", b"v\xff", (("a", b"\xfe"), ("b", None))),
        Record(6, -1, None, None),
    ]
    columns = decode_columns(encode_batch(records), with_headers=True)
    schema = table_schema(NONE, RECORD_COLUMNS)
    rows = {}
    for field in schema:
        if field.name == "_error":
            continue
        array = record_array(field.name, "orders", 3, columns)
        assert array.type == field.type
        rows[field.name] = array.to_pylist()
    assert rows["_value"] == ["v\\xff", None]
    assert rows["_value_bytes"] == [b"v\xff", None]
    assert rows["_key"] == ["k", None]
    assert rows["_timestamp"][0] == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert rows["_headers"] == [
        [{"key": "a", "value": "\\xfe"}, {"key": "b", "value": None}],
        [],
    ]
    assert rows["_topic"] == ["orders"] * 2
    assert rows["_partition"] == [3, 3]


def test_timestamps_beyond_microseconds_become_the_largest() -> None:
    columns = decode_columns(encode_batch([Record(0, 2**62, None, b""), Record(1, 7, None, b"")]))
    array = record_array("_timestamp", "orders", 0, columns).cast(pa.int64())
    assert array.to_pylist() == [(2**63 - 2) // 1000 * 1000, 7000]


def test_text_array_keeps_valid_text_without_a_copy() -> None:
    values = pa.array([b"a\x00b", None, "\u00fc".encode()], pa.binary())
    text = text_array(values)
    assert text.to_pylist() == ["a\x00b", None, "\u00fc"]
    assert text.buffers()[2].address == values.buffers()[2].address
