"""Rows before they go into a table, compared with the same done row by row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connect.tables.rows import Rows, distinct_keys, json_texts, make_ready
from millstream.connect.tables.schema import Column, layout_of
from millstream.connect.tables.spec import Mode, TableSpec
from millstream.errors import StoreError

ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(), st.booleans()))


def ready(rows: list[Any], mode: Mode) -> Rows:
    names = ("number", "letter", "value", "gone")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    types = (pa.int64(), pa.string(), pa.decimal128(38, 0), pa.bool_())
    schema = pa.schema(list(zip(names, types, strict=True)))
    spec = TableSpec("t", ("letter", "number"), mode, delete="gone")
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
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(), st.integers(-2, 2))), st.randoms())
def test_weights_are_summed_by_key_whatever_the_order(
    rows: list[tuple[int, int, int]], random: Random
) -> None:
    rows = [(key, value % 1000, weight) for key, value, weight in rows]
    random.shuffle(rows)
    schema = pa.schema(
        [("key", pa.int64()), ("value", pa.int64()), ("_weight", pa.int32()), ("_op", pa.string())]
    )
    columns = [*zip(*rows, strict=True)] or [(), (), ()]
    batch = pa.table([*map(pa.array, columns), pa.nulls(len(rows))], names=schema.names)
    layout = layout_of(schema, TableSpec("t", ("key",), delete="_weight"))
    found = make_ready(batch.cast(schema), layout)
    sums: dict[int, int] = {}
    added: dict[int, int] = {}
    for key, value, weight in rows:
        sums[key] = sums.get(key, 0) + weight
        if weight > 0:
            added[key] = value
    kept = {row["key"]: row["value"] for row in found.kept().to_pylist()}
    assert kept == {key: value for key, value in sorted(added.items()) if sums[key] >= 0}
    removed = found.removed()
    deleted = set() if removed is None else set(removed.column("key").to_pylist())
    assert deleted == {key for key, total in sums.items() if total < 0}
    assert layout.names == ("key", "value")


@settings(deadline=None)  # the first example pays for imports
@given(ROWS)
def test_replace_keeps_rows_since_the_last_delete_and_their_keys(rows: list[Any]) -> None:
    rows = [(number, letter, value % 10**30, gone) for number, letter, value, gone in rows]
    since: dict[Any, list[Any]] = {}
    for number, letter, value, gone in rows:
        if gone:
            since[letter, number] = []
        else:
            since.setdefault((letter, number), []).append((number, letter, value))
    found = ready(rows, "replace")
    kept = [tuple(row.values()) for row in found.kept().to_pylist()]
    assert kept == [row for _, its in sorted(since.items()) for row in its]
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


def test_nested_timestamps_are_in_utc_whatever_the_session_s_zone() -> None:
    moments = pa.array([[datetime(2026, 7, 1, 4, tzinfo=UTC)]], pa.list_(pa.timestamp("us", "UTC")))
    zoned = moments.cast(pa.list_(pa.timestamp("us", "America/New_York")))
    assert json_texts(zoned, Column("x", "json")).to_pylist() == ['["2026-07-01T04:00:00+00:00"]']


def test_nested_decimals_have_all_their_digits() -> None:
    values = pa.array([[Decimal("1E-10")]], pa.list_(pa.decimal128(38, 10)))
    assert json_texts(values, Column("x", "json")).to_pylist() == ['["0.0000000001"]']


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32())),
            "a key twice",
        ),
        (pa.array([[400_000_000_000_000_000]], pa.list_(pa.timestamp("us", "UTC"))), "1 to 9999"),
        (pa.array([[400_000_000_000_000_000]], pa.list_(pa.timestamp("us"))), "1 to 9999"),
        (pa.array([[3_000_000]], pa.list_(pa.date32())), "1 to 9999"),
        (
            pa.ListArray.from_arrays(pa.array([0, 1]), pa.array([b"\xff"]).view(pa.string())),
            "not valid UTF-8.*make_valid_utf8",
        ),
    ],
)
def test_nested_value_that_json_cannot_hold_is_named_with_a_cure(
    values: Any, complaint: str
) -> None:
    with pytest.raises(StoreError, match=f"column 'x' cannot be written as JSON: .*{complaint}"):
        json_texts(values, Column("x", "json"))
