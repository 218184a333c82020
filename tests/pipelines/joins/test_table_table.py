"""Joins of tables against two loops, after every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.table_table import How, Side, TableJoin
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws

LEFT = pa.schema([("key", pa.string()), ("a", pa.int64()), ("_weight", pa.int64())])
RIGHT = pa.schema([("_weight", pa.int64()), ("key_2", pa.string()), ("b", pa.float64())])
HOWS = ["inner", "left", "right", "full"]

KEYS = st.sampled_from(["x", "y", None])
WEIGHTS = st.sampled_from([-1, 1, 1, 2])
A_LEFT = st.tuples(KEYS, st.integers(0, 2), WEIGHTS)
A_RIGHT = st.tuples(WEIGHTS, KEYS, st.sampled_from([0.5, float("inf"), None]))
BATCHES = st.lists(st.tuples(st.lists(A_LEFT, max_size=4), st.lists(A_RIGHT, max_size=4)))


def operator(how: How) -> TableJoin:
    left = Side(LEFT, ("key",), ("key", "a"))
    return TableJoin(left, Side(RIGHT, ("key_2",), ("key_2", "b")), how)


def columns(
    left: Sequence[tuple[Any, ...]], right: Sequence[tuple[Any, ...]]
) -> dict[str, pa.RecordBatch]:
    return {"left": to_batch(left, LEFT), "right": to_batch(right, RIGHT)}


def to_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], it.type) for at, it in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def changes(rows: pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    """The weights of a batch; each row comes once, deletes first, and `_op` says the same."""
    table = rows.to_pylist()
    found = Counter({(it["key"], it["a"], it["key_2"], it["b"]): it["_weight"] for it in table})
    assert len(found) == len(table)
    assert 0 not in found.values()
    assert [it["_op"] for it in table] == sorted(it["_op"] for it in table)
    assert all((it["_op"] == "delete") == (it["_weight"] < 0) for it in table)
    return found


def joined(
    left: Counter[tuple[Any, ...]], right: Counter[tuple[Any, ...]], how: How
) -> dict[tuple[Any, ...], int]:
    """By definition: a row is alone if the weights of its partners add up to nothing."""
    result: Counter[tuple[Any, ...]] = Counter()
    for (key, a), n in left.items():
        partners = {row: m for row, m in right.items() if key is not None and row[0] == key}
        for (key_2, b), m in partners.items():
            result[key, a, key_2, b] += n * m
        if how in ("left", "full") and sum(partners.values()) == 0:
            result[key, a, None, None] += n
    if how in ("right", "full"):
        for (key_2, b), m in right.items():
            others = [n for (key, _), n in left.items() if key_2 is not None and key == key_2]
            if sum(others) == 0:
                result[None, None, key_2, b] += m
    return {row: n for row, n in result.items() if n}


@settings(max_examples=draws(40))
@given(BATCHES, st.sampled_from(HOWS))
def test_sum_of_changes_is_the_join_after_every_batch(
    batches: list[tuple[list[Any], list[Any]]], how: How
) -> None:
    """Even where weights are negative for a while, because a delete came first."""
    trial = Trial(operator(how), buckets=2)
    left: Counter[tuple[Any, ...]] = Counter()
    right: Counter[tuple[Any, ...]] = Counter()
    view: Counter[tuple[Any, ...]] = Counter()
    for new_left, new_right in batches:
        for key, a, weight in new_left:
            left[key, a] += weight
        for weight, key, b in new_right:
            right[key, b] += weight
        for row, weight in changes(trial.feed(columns(new_left, new_right))).items():
            view[row] += weight
        assert {row: n for row, n in view.items() if n} == joined(left, right, how)


@pytest.mark.parametrize("how", HOWS)
def test_deleted_rows_leave_no_state(how: How) -> None:
    trial = Trial(operator(how))
    trial.feed(columns([("x", 1, 1)], [(1, "x", 0.5)]))
    trial.feed(columns([("x", 1, -1)], [(-1, "x", 0.5)]))
    assert all(store.index is None and not store.pages for store in trial.buckets)


def test_state_stays_small_however_often_rows_change() -> None:
    trial = Trial(operator("inner"), buckets=1)
    for number in range(100):
        trial.feed(columns([("x", number, 1), ("x", number - 1, -1)], []))
    assert sum(map(len, trial.buckets[0].pages.values())) < 10_000


def test_last_partner_that_goes_leaves_its_row_alone() -> None:
    trial = Trial(operator("left"))
    trial.feed(columns([("x", 1, 1)], [(1, "x", 0.5)]))
    gone = changes(trial.feed(columns([], [(-1, "x", 0.5)])))
    assert gone == {("x", 1, "x", 0.5): -1, ("x", 1, None, None): 1}


def test_update_of_both_sides_in_one_batch_is_emitted_once() -> None:
    trial = Trial(operator("inner"))
    trial.feed(columns([("x", 1, 1)], [(1, "x", 0.5)]))
    update = columns([("x", 1, -1), ("x", 2, 1)], [(-1, "x", 0.5), (1, "x", 1.5)])
    assert changes(trial.feed(update)) == {("x", 1, "x", 0.5): -1, ("x", 2, "x", 1.5): 1}
