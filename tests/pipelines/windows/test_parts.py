"""Parts of aggregates: made of rows, added up in any order, turned into results."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.parts import (
    Parts,
)

SCHEMA = pa.schema([("_hash", pa.uint64()), ("amount", pa.float64()), ("name", pa.string())])
MEASURES = [
    Measure("n", "count", None),
    Measure("seen", "count", "amount"),
    Measure("total", "sum", "amount"),
    Measure("mean", "avg", "amount"),
    Measure("least", "min", "amount"),
    Measure("most", "max", "amount"),
]
AMOUNTS = st.lists(st.none() | st.integers(-80, 80).map(lambda eighths: eighths / 8), min_size=1)


def rows_of(amounts: list[float | None]) -> pa.RecordBatch:
    columns = {"_hash": [0] * len(amounts), "amount": amounts, "name": ["x"] * len(amounts)}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def results(parts: Parts, kept: list[pa.Array]) -> list[list[float | None]]:
    batch = pa.RecordBatch.from_arrays(kept, schema=pa.schema(parts.fields))
    return [it.to_pylist() for it in parts.values(batch)]


@given(AMOUNTS, st.randoms(use_true_random=False))
def test_parts_add_up_to_what_all_rows_give(amounts: list[float | None], rng: object) -> None:
    parts = Parts(SCHEMA, MEASURES)
    count = len(amounts)
    order, whole = np.arange(count), (np.array([0]), np.array([count]))
    at_once = parts.of_rows(rows_of(amounts), order, *whole)
    each = parts.of_rows(rows_of(amounts), order, order, order + 1)
    kept = pa.RecordBatch.from_arrays(each, schema=pa.schema(parts.fields))
    shuffled = np.array(rng.sample(range(count), count))  # type: ignore[attr-defined]
    assert results(parts, parts.of_parts(kept, shuffled, *whole)) == results(parts, at_once)
    there = [it for it in amounts if it is not None]
    if not there:
        assert results(parts, at_once) == [[count], [0], [None], [None], [None], [None]]
        return
    total = sum(there)
    expected = [count, len(there), total, total / len(there), min(there), max(there)]
    assert results(parts, at_once) == [[it] for it in expected]


def test_average_of_large_whole_numbers_leaves_neither_doubles_nor_64_bits() -> None:
    """A sum above 2^53 is rounded as Spark's is, and one above 2^63 is a double like any other."""
    schema = pa.schema([("_hash", pa.uint64()), ("amount", pa.int64())])
    parts = Parts(schema, [Measure("mean", "avg", "amount")])
    for amount in (1_700_000_000_000_001, 2**62):
        columns = {"_hash": [0] * 9, "amount": [amount] * 9}
        rows = pa.RecordBatch.from_pydict(columns, schema=schema)
        order = np.arange(9)
        each = parts.of_rows(rows, order, order, order + 1)
        kept = pa.RecordBatch.from_arrays(each, schema=pa.schema(parts.fields))
        ((mean,),) = results(parts, parts.of_parts(kept, order, np.array([0]), np.array([9])))
        assert mean == pytest.approx(amount, rel=1e-15)


def test_types_of_results_are_those_of_spark() -> None:
    whole = pa.schema([("_hash", pa.uint64()), ("amount", pa.int32())])
    kinds = {it.name: it.type for it in Parts(whole, MEASURES).results}
    assert kinds == {
        "n": pa.int64(),
        "seen": pa.int64(),
        "total": pa.int64(),
        "mean": pa.float64(),
        "least": pa.int32(),
        "most": pa.int32(),
    }


def test_parts_of_decimals_strings_and_times_add_up() -> None:
    money, moment = pa.decimal128(10, 2), pa.timestamp("us", tz="UTC")
    fields = {"_hash": pa.uint64(), "money": money, "name": pa.string(), "at": moment}
    schema = pa.schema(fields)
    measures = [
        Measure("total", "sum", "money"),
        Measure("mean", "avg", "money"),
        Measure("most", "max", "money"),
        Measure("who", "min", "name"),
        Measure("last", "max", "at"),
    ]
    parts = Parts(schema, measures)
    amounts = [Decimal("1.10"), None, Decimal("-20.25"), Decimal("99999999.99")]
    columns = {
        "_hash": [0] * 4,
        "money": amounts,
        "name": ["b", "a", None, "c"],
        "at": [4, 2, 9, 1],
    }
    rows = pa.RecordBatch.from_pydict(columns, schema=schema)
    order = np.arange(4)
    each = parts.of_rows(rows, order, order, order + 1)
    kept = pa.RecordBatch.from_arrays(each, schema=pa.schema(parts.fields))
    whole = np.array([0]), np.array([4])
    total, mean, most, who, last = results(parts, parts.of_parts(kept, order, *whole))
    assert (total, most, who) == ([Decimal("99999980.84")], [amounts[3]], ["a"])
    assert mean == [Decimal("33333326.946667")]
    assert [it.microsecond for it in last] == [9]
    assert [it.type for it in parts.results][:2] == [pa.decimal128(20, 2), pa.decimal128(14, 6)]
