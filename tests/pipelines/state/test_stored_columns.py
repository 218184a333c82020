"""Columns that are removed and come back: their old values do not, or the state is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from millstream.pipelines.state import BucketState
from millstream.pipelines.state.operator import run_bucket
from millstream.pipelines.state.pages import INDEX_MAGIC, StateMismatch, seal, unseal
from millstream.pipelines.state.trial import MemoryStore
from tests.pipelines.state.counter import HoldAndCount
from tests.pipelines.state.rows import KEYS, SCHEMA, Row, hashed

VALUE = SCHEMA.get_field_index("value")
RETURNED = {"held": {"value": 1}}


def holder(schema: pa.Schema = SCHEMA, *, carries: bool = True) -> HoldAndCount:
    made = HoldAndCount(schema, KEYS, "time")
    if carries:
        made.tables["held"] = made.tables["held"]._replace(carried=frozenset(["value"]))
    return made


def filled() -> MemoryStore:
    store = MemoryStore()
    run_bucket(holder(), 4, store, {"rows": hashed([Row("ann", 1, 9, 7)])}, 5)
    return store


def without_value(store: MemoryStore) -> None:
    """Let the bucket be called by an operator without the column; its page stays as it is."""
    BucketState(holder(SCHEMA.remove(VALUE)), 4, store).finish(6)


def values(state: BucketState) -> list[str | None]:
    found: list[str | None] = state["held"].select().column("value").to_pylist()
    return found


@pytest.mark.parametrize("is_called", [True, False])
def test_column_of_another_generation_is_null_whether_its_bucket_was_called_or_not(
    is_called: bool,
) -> None:
    store = filled()
    if is_called:
        without_value(store)
    state = BucketState(holder(), 4, store, RETURNED)
    assert values(state) == [None]
    state["held"].append(hashed([Row("ann", 1, 10, 8)]))
    state.finish(6)
    assert sorted(values(BucketState(holder(), 4, store, RETURNED)), key=str) == ["8", None]
    assert values(BucketState(holder(), 4, store, {"held": {"value": 2}})) == [None, None]


def test_column_of_another_generation_may_have_another_type() -> None:
    other = holder(SCHEMA.set(VALUE, pa.field("value", pa.float32())))
    assert values(BucketState(other, 4, filled(), RETURNED)) == [None]


def test_column_that_comes_back_without_a_generation_is_refused() -> None:
    store = filled()
    assert values(BucketState(holder(), 4, store)) == ["7"]
    for _ in range(2):
        without_value(store)
        with pytest.raises(StateMismatch, match="column value was removed from the stored held"):
            BucketState(holder(), 4, store)


def test_column_that_an_operator_computes_with_is_refused_in_every_generation() -> None:
    """Also in buckets that were not called while the column was away."""
    computing = holder(carries=False)
    with pytest.raises(StateMismatch, match="value in addition"):
        BucketState(computing, 4, filled(), RETURNED)


def test_column_without_rows_of_before_comes_back() -> None:
    store = filled()
    without_value(store)
    state = BucketState(holder(SCHEMA.remove(VALUE)), 4, store)
    state["held"].expire(100)
    state.advance("late", 1)  # without anything, the bucket would have no index
    state.wake_at(None)
    state.finish(6)
    without_value(store)
    assert values(BucketState(holder(carries=False), 4, store)) == []


def test_column_added_to_state_that_has_no_list_of_dropped_ones_is_refused() -> None:
    """An earlier version wrote it: the column may be one that was removed, also some calls on."""
    store = filled()
    without_value(store)
    assert store.index is not None
    index = json.loads(bytes(unseal(INDEX_MAGIC, store.index)))
    assert index["tables"]["held"].pop("dropped") == ["value"]
    store.index = seal(INDEX_MAGIC, json.dumps(index).encode())
    without_value(store)
    with pytest.raises(StateMismatch, match=r"earlier version .* Run at least one batch"):
        BucketState(holder(), 4, store)
    assert values(BucketState(holder(), 4, store, RETURNED)) == [None]


def test_columns_that_would_be_stored_under_one_name_are_refused() -> None:
    other = holder(SCHEMA.append(pa.field("value#1", pa.string())))
    with pytest.raises(StateMismatch, match="two columns of held would be stored under one name"):
        BucketState(other, 4, MemoryStore(), RETURNED)
