"""Rows before they go into a table, compared with the same done row by row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import StoreError
from millstream.pipelines.stores.rows import Rows, distinct_keys, json_texts, make_ready
from millstream.pipelines.stores.schema import Column, layout_of
from millstream.pipelines.stores.spec import Mode, TableSpec

ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(), st.booleans()))


def ready(rows: list[Any], mode: Mode) -> Rows:
    names = ("number", "letter", "value", "gone")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    types = (pa.int64(), pa.string(), pa.decimal128(38, 0), pa.bool_())
    schema = pa.schema(list(zip(names, types, strict=True)))
    spec = TableSpec("t", ("letter", "number"), mode, delete_column="gone")
    return make_ready(pa.table(columns, schema=schema), layout_of(schema, spec))


@settings(deadline=None)  # the first example pays for imports
@given(ROWS)
def test_upsert_keeps_the_last_row_of_each_key_in_order(rows: list[Any]) -> None:
    rows = [(number, letter, value % 10**30, gone) for number, letter, value, gone in rows]
    last = {(letter, number): (value, gone) for number, letter, value, gone in rows}
    found = ready(rows, "upsert")
    kept = [tuple(row.values()) for row in found.kept().to_pylist()]
    assert kept == [
        (number, letter, value)
        for (letter, number), (value, gone) in sorted(last.items())
        if not gone
    ]
    removed = found.removed()
    assert (0 if removed is None else removed.num_rows) == sum(gone for _, gone in last.values())


@settings(deadline=None)  # the first example pays for imports
@given(ROWS)
def test_replace_keeps_all_rows_and_knows_their_keys(rows: list[Any]) -> None:
    rows = [(number, letter, value % 10**30, gone) for number, letter, value, gone in rows]
    found = ready(rows, "replace")
    assert found.count == len(rows)
    keys = distinct_keys(found.table, ("letter", "number")).to_pylist()
    assert {tuple(key.values()) for key in keys} == {(row[1], row[0]) for row in rows}
    assert len(keys) == len({(row[1], row[0]) for row in rows})


def test_null_keys_are_counted_and_named() -> None:
    with pytest.raises(StoreError, match=r"table 't': 2 of 3 rows .* 'letter'.*coalesce"):
        ready([(1, None, 1, False), (1, "a", 1, False), (2, None, 1, False)], "upsert")


def test_nested_values_become_json() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    values = pa.array(
        [
            {"m": [("k", 1.5)], "d": Decimal("1.10"), "b": b"\xff", "t": moment, "n": float("nan")},
            None,
        ],
        pa.struct(
            {
                "m": pa.map_(pa.string(), pa.float64()),
                "d": pa.decimal128(5, 2),
                "b": pa.binary(),
                "t": pa.timestamp("us", "UTC"),
                "n": pa.float64(),
            }
        ),
    )
    text, nothing = json_texts(values, Column("x", "json")).to_pylist()
    assert nothing is None
    assert json.loads(text) == {
        "m": {"k": 1.5},
        "d": "1.10",
        "b": "/w==",
        "t": "2026-01-31T00:00:00+00:00",
        "n": "nan",
    }
