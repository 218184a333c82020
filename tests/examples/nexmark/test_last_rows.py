"""Last rows against a loop, as changes that add up."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from examples.nexmark.last_rows import LastRows
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.measures import Measure
from tests.drawing import draws

TIME = pa.timestamp("us", tz="UTC")
SALES = pa.schema(
    [("seller", pa.string()), ("at", TIME), ("id", pa.int64()), ("price", pa.int64())]
)
MEASURES = (
    Measure("n", "count", None),
    Measure("total", "sum", "price"),
    Measure("most", "max", "price"),
)


class Sale(NamedTuple):
    seller: str | None
    at: int
    id: int
    price: int | None


A_SALE = st.builds(
    Sale,
    st.sampled_from(["ann", "bob", None]),
    st.integers(0, 30),
    st.integers(0, 10**6),
    st.none() | st.integers(0, 5),
)
BATCHES = st.lists(st.tuples(st.lists(A_SALE, max_size=6), st.integers(0, 8)), max_size=8)


def operator(rows: int, lateness_us: int | None = None) -> LastRows:
    return LastRows(SALES, ("seller",), ("at", "id"), rows, MEASURES, ("seller", "id"), lateness_us)


def to_batch(sales: list[Sale]) -> dict[str, pa.RecordBatch]:
    arrays = [
        pa.array([sale[place] for sale in sales], pa.int64()).cast(field.type)
        if field.type == TIME
        else pa.array([sale[place] for sale in sales], field.type)
        for place, field in enumerate(SALES)
    ]
    return {"rows": pa.RecordBatch.from_arrays(arrays, schema=SALES)}


def add(total: Counter[Any], changes: pa.RecordBatch) -> int:
    """Add changes up; says how many rows were late."""
    late = 0
    for row in changes.to_pylist():
        weight = row.pop("_weight")
        if weight is None:
            late += 1
            continue
        total[tuple(row.values())] += weight
        assert total[tuple(row.values())] >= 0, "a row was taken away that was not there"
    return late


def expected(sales: list[Sale], rows: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for seller in {sale.seller for sale in sales}:
        own = sorted((it for it in sales if it.seller == seller), key=lambda it: (it.at, it.id))
        for place, sale in enumerate(own):
            window = own[max(place - rows + 1, 0) : place + 1]
            prices = [it.price for it in window if it.price is not None]
            total, most = (sum(prices), max(prices)) if prices else (None, None)
            found[(seller, sale.id, len(window), total, most)] += 1
    return found


def distinct(batches: list[tuple[list[Sale], int]]) -> list[tuple[list[Sale], int]]:
    """With ids of their own: of rows that are equal in order, content decides in its own way."""
    numbers = iter(range(10**6))
    return [([sale._replace(id=next(numbers)) for sale in sales], step) for sales, step in batches]


@pytest.mark.parametrize("rows", [1, 3])
@settings(max_examples=draws(40))
@given(batches=BATCHES)
def test_changes_add_up_to_what_sql_says_after_every_batch(
    rows: int, batches: list[tuple[list[Sale], int]]
) -> None:
    trial = Trial(operator(rows))
    total: Counter[Any] = Counter()
    sales: list[Sale] = []
    for new, _ in distinct(batches):
        sales += new
        assert add(total, trial.feed(to_batch(new))) == 0
        assert +total == expected(sales, rows)


@settings(max_examples=draws(40))
@given(batches=BATCHES)
def test_rows_behind_the_lateness_are_told_and_change_nothing(
    batches: list[tuple[list[Sale], int]],
) -> None:
    trial = Trial(operator(2, lateness_us=5))
    total: Counter[Any] = Counter()
    sales: list[Sale] = []
    watermark_us = 0
    for new, step in distinct(batches):
        watermark_us += step
        on_time = [it for it in new if it.at > watermark_us - 5]
        sales += on_time
        assert add(total, trial.feed(to_batch(new), watermark_us)) == len(new) - len(on_time)
        assert +total == expected(sales, 2)


def test_change_touches_no_row_but_those_that_look_back_to_it() -> None:
    trial = Trial(operator(2))
    trial.feed(to_batch([Sale("ann", at, at, 1) for at in (10, 20, 30, 40)]))
    changes = trial.feed(to_batch([Sale("ann", 15, 15, 5)]))
    told = {(row["id"], row["total"], row["_weight"]) for row in changes.to_pylist()}
    assert told == {(15, 6, 1), (20, 2, -1), (20, 6, 1)}


def test_state_forgets_what_nothing_on_time_looks_back_to() -> None:
    trial = Trial(operator(3, lateness_us=10), buckets=1)
    sizes = []
    for step in range(200):
        sales = [Sale("ann", 10 * step + at, 10 * step + at, 1) for at in range(10)]
        trial.feed(to_batch(sales), 10 * step - 1)
        sizes.append(sum(map(len, trial.buckets[0].pages.values())))
    assert max(sizes[100:]) < 2 * max(sizes[:20])


def test_operator_tells_that_it_grows_unless_lateness_is_bounded() -> None:
    assert operator(3).kept()["rows"].startswith("forever")
    assert (
        operator(3, 10).kept()["rows"] == "those after the watermark, and of each key 2 before it"
    )
