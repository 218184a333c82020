"""Columns of records as Arrow arrays."""

from __future__ import annotations

import pyarrow as pa

from millstream.records.arrow import (
    binary_array,
    constant_array,
    header_array,
    header_parts,
    number_array,
)
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch


def test_arrays_have_the_records_content() -> None:
    records = [
        Record(5, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("b", None))),
        Record(6, 1_700_000_000_124, None, b"\xff"),
    ]
    columns = decode_columns(encode_batch(records), with_headers=True)
    assert binary_array(columns.keys, 2).to_pylist() == [b"k", None]
    assert binary_array(columns.values, 2).to_pylist() == [b"v", b"\xff"]
    assert number_array(pa.int64(), columns.offsets, 2).to_pylist() == [5, 6]
    names, values = header_parts(columns)
    assert (names.to_pylist(), values.to_pylist()) == ([b"a", b"b"], [b"1", None])
    assert header_array(columns).to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        [],
    ]


def test_constant_array_has_the_length_that_is_asked_for() -> None:
    for count in (0, 1, 1023, 1024, 1025):
        array = constant_array("orders", pa.string(), count)
        assert len(array) == count
        assert set(array.to_pylist()) <= {"orders"}
