"""Columns as pages store them: there and back, and narrower where they can be."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.state.keys import HASH_FIELD, with_hash
from millstream.pipelines.state.page_columns import from_page, to_page
from millstream.pipelines.state.pages import StateMismatch, decode_page, encode_page

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("time", TIME),
        ("small", pa.int32()),
        ("count", pa.int64()),
        ("share", pa.float64()),
        ("name", pa.string()),
    ]
)
KEYS = ("key",)
LONGS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.integers(0, 2**40))
VALUES = {
    "key": LONGS | st.none(),
    "time": LONGS,
    "small": st.integers(-(2**31), 2**31 - 1),
    "count": LONGS | st.none(),
    "share": st.floats(allow_nan=False) | st.none(),
    "name": st.text(max_size=3) | st.none(),
}


def batch(columns: Mapping[str, list[object]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    arrays = [
        pa.array(columns[field.name], pa.int64()).view(TIME)
        if field.type == TIME
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows(*values: tuple[int, int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Of each row the key and the count."""
    columns: dict[str, list[object]] = {field.name: [0] * len(values) for field in schema}
    columns |= {"name": [None] * len(values), "key": [it[0] for it in values]}
    columns["count"] = [it[1] for it in values]
    return batch(columns, schema)


def restored(page: pa.RecordBatch) -> pa.RecordBatch:
    return from_page(page, SCHEMA, KEYS)


def page_type(page: pa.RecordBatch, column: str) -> str:
    return str(page.schema.field(column).type)


@given(st.data(), st.integers(0, 5), st.booleans())
def test_rows_come_back(data: st.DataObject, count: int, is_slice: bool) -> None:
    lists = st.fixed_dictionaries(
        {name: st.lists(it, min_size=count, max_size=count) for name, it in VALUES.items()}
    )
    stored = with_hash(batch(data.draw(lists)), KEYS)
    if is_slice:
        stored = stored.slice(count // 2)
    page = decode_page(encode_page(to_page(stored, KEYS), compressed=True))
    assert restored(page).equals(stored)
    assert restored(page).schema.equals(pa.schema([HASH_FIELD, *SCHEMA]))


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [
        (5, 5, "uint8"),
        (-100, 155, "uint8"),
        (-100, 156, "uint16"),
        (2**40, 2**40 + 2**32 - 1, "uint32"),
        (0, 2**32, "int64"),
        (-(2**63), 2**63 - 1, "int64"),
    ],
)
def test_integers_take_the_bytes_of_their_range(first: int, last: int, kind: str) -> None:
    stored = with_hash(rows((1, last), (2, first)), KEYS)
    page = to_page(stored, KEYS)
    assert page_type(page, "count") == kind
    assert page_type(page, "small") == "int32"
    assert restored(page).equals(stored)


def test_hash_is_stored_unless_it_follows_from_the_key() -> None:
    quick = with_hash(rows((1, 0), (2, 0)), KEYS)
    assert "_hash" not in to_page(quick, KEYS).schema.names
    text = with_hash(rows((1, 0)), ["name"])
    assert "_hash" in to_page(text, ["name"]).schema.names
    others = with_hash(rows((3, 0), (4, 0)), KEYS).column("_hash")
    of_another = quick.set_column(0, quick.schema.field(0), others)
    page = to_page(of_another, KEYS)
    assert restored(page).equals(of_another)


def test_table_may_have_other_columns_than_its_page() -> None:
    page = to_page(with_hash(rows((1, 7), (2, 9)), KEYS), KEYS)
    now = pa.schema([pa.field("note", pa.string()), SCHEMA.field("count"), SCHEMA.field("key")])
    changed = from_page(page, now, KEYS)
    assert changed.drop_columns(["_hash"]).to_pylist() == [
        {"note": None, "count": 7, "key": 1},
        {"note": None, "count": 9, "key": 2},
    ]


def test_column_of_another_type_is_refused() -> None:
    page = to_page(with_hash(rows((1, 7)), KEYS), KEYS)
    for name in ("count", "small"):
        place = SCHEMA.get_field_index(name)
        other = SCHEMA.set(place, pa.field(name, TIME))
        with pytest.raises(StateMismatch, match=f"other type of {name}: int.* has times"):
            from_page(page, other, KEYS)
