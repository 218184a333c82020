"""Rows of a small table, for the tests of this room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from millstream.pipelines.state.keys import with_hash
from millstream.pipelines.state.tables import StateTableSpec


class Row(NamedTuple):
    user: str | None
    shop: int | None
    time_us: int
    value: int


ROWS = st.builds(
    Row,
    st.sampled_from(["ann", "bob", "", None]),
    st.sampled_from([1, 2, None]),
    st.integers(-50, 50),
    st.integers(),
)
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("shop", pa.int32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("value", pa.string()),
    ]
)
KEYS = ("user", "shop")
SPEC = StateTableSpec(SCHEMA, KEYS, "time")


def to_columns(rows: Sequence[Row]) -> pa.RecordBatch:
    arrays = [
        pa.array([it.user for it in rows], pa.string()),
        pa.array([it.shop for it in rows], pa.int32()),
        pa.array([it.time_us for it in rows], pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([str(it.value) for it in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def hashed(rows: Sequence[Row]) -> pa.RecordBatch:
    return with_hash(to_columns(rows), KEYS)


def to_rows(columns: pa.RecordBatch) -> list[Row]:
    times = columns.column("time").cast(pa.int64())
    arrays = [columns.column("user"), columns.column("shop"), times, columns.column("value")]
    lists = [array.to_pylist() for array in arrays]
    return [
        Row(user, shop, time_us, int(value))
        for user, shop, time_us, value in zip(*lists, strict=True)
    ]
