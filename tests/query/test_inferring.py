"""Columns from a sample of JSON values."""

from __future__ import annotations

import pyarrow as pa

from millstream.query.inferring import infer_columns


def test_fields_of_one_type_become_columns() -> None:
    found = infer_columns(
        [
            b'{"id": 1, "price": 2, "name": "a", "ok": true, "tags": ["x"], "who": {"age": 3}}',
            b'{"id": 2, "price": 2.5, "name": null, "ok": false, "tags": [], "new": 1}',
            None,
        ]
    )
    assert found == pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("name", pa.string()),
            ("ok", pa.bool_()),
            ("tags", pa.list_(pa.string())),
            ("who", pa.struct([pa.field("age", pa.int64())])),
            ("new", pa.int64()),
        ]
    )


def test_fields_that_cannot_be_columns_are_left_out() -> None:
    found = infer_columns(
        [
            b'{"a": 1, "A": 2, "_offset": 7, "mixed": "x", "flag": true, "": 1, "empty": {}}',
            b'{"a": 1, "mixed": 5, "flag": 1, "big": 99999999999999999999}',
        ]
    )
    assert found == pa.schema([("a", pa.int64()), ("big", pa.float64())])


def test_other_values_have_no_columns() -> None:
    assert infer_columns([b"text", b"\xff", b"", b"[1]", b'{"a": 1}']) == pa.schema([])
    assert infer_columns([None, None]) == pa.schema([])
    assert infer_columns([b"[" * 100_000]) == pa.schema([])
