"""Rows combined in parts, against loops over all rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from examples.nexmark.combining import highest_rows, leading_keys, pane_counts
from hypothesis import given
from hypothesis import strategies as st

TIME = pa.timestamp("us", tz="UTC")
BIDS = pa.schema([("auction", pa.int64()), ("at", TIME), ("price", pa.int64())])
COUNTS = pa.schema([("auction", pa.int64()), ("at", TIME), ("n", pa.int64())])
SIZE_US = 10

ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3),
        st.none() | st.integers(-25, 25),
        st.none() | st.integers(0, 4),
    ),
    max_size=20,
)
PARTS = st.lists(ROWS, min_size=1, max_size=4)


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], it.type) for at, it in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(found: pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    times = [it.with_type(pa.int64()) if it.type == TIME else it for it in found.schema]
    return Counter(tuple(it.values()) for it in found.cast(pa.schema(times)).to_pylist())


@given(PARTS)
def test_the_highest_of_parts_has_the_highest_of_all(parts: list[list[tuple[Any, ...]]]) -> None:
    found = [highest_rows(batch(rows, BIDS), "price", "at", SIZE_US) for rows in parts]
    together = highest_rows(pa.concat_batches(found), "price", "at", SIZE_US)
    valid = [row for rows in parts for row in rows if row[1] is not None and row[2] is not None]
    most: dict[int, int] = {}
    for _, at, price in valid:
        most[at // SIZE_US] = max(price, most.get(at // SIZE_US, price))
    assert rows_of(together) == Counter(it for it in valid if it[2] == most[it[1] // SIZE_US])


@given(PARTS)
def test_counts_of_parts_add_up(parts: list[list[tuple[Any, ...]]]) -> None:
    found = [
        pane_counts(batch([(key, at, 1) for key, at, _ in rows], COUNTS), "auction", "at", SIZE_US)
        for rows in parts
    ]
    together = pane_counts(pa.concat_batches(found), "auction", "at", SIZE_US)
    valid = [row for rows in parts for row in rows if row[1] is not None]
    expected = Counter((key, at - at % SIZE_US) for key, at, _ in valid)
    assert rows_of(together) == Counter((*key, n) for key, n in expected.items())


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(1, 4)), max_size=20))
def test_leaders_are_the_keys_with_the_greatest_sum(counts: list[tuple[int | None, int]]) -> None:
    schema = pa.schema([("auction", pa.int64()), ("n", pa.int64())])
    found = leading_keys(batch(counts, schema).to_struct_array())
    sums: Counter[int | None] = Counter()
    for key, n in counts:
        sums[key] += n
    most = max(sums.values(), default=0)
    assert rows_of(found) == Counter((key, n) for key, n in sums.items() if n == most)
