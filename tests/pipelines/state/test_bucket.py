"""A bucket between two batches: what is kept, what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from millstream.pipelines.state import NO_WATERMARK, BucketState
from millstream.pipelines.state.operator import run_bucket
from millstream.pipelines.state.pages import (
    INDEX_MAGIC,
    CorruptState,
    StateMismatch,
    encode_page,
    unseal,
)
from millstream.pipelines.state.trial import MemoryStore
from tests.pipelines.state.counter import HoldAndCount
from tests.pipelines.state.rows import KEYS, SCHEMA, Row, hashed

OPERATOR = HoldAndCount(SCHEMA, KEYS, "time")
ROWS = {"rows": hashed([Row("ann", 1, 5, 0), Row("bob", 1, 9, 0)])}


def filled() -> MemoryStore:
    store = MemoryStore()
    run_bucket(OPERATOR, 4, store, ROWS, 5)
    return store


def index_of(store: MemoryStore) -> dict[str, object]:
    assert store.index is not None
    index: dict[str, object] = json.loads(bytes(unseal(INDEX_MAGIC, store.index)))
    return index


def test_index_is_what_the_specification_says() -> None:
    store = filled()
    index = index_of(store)
    assert index["identity"] == "hold and count"
    assert index["keys"] == {"rows": ["user", "shop"]}
    assert (index["buckets"], index["timer_us"], index["watermark_us"]) == (4, 9, 5)
    tables = index["tables"]
    assert isinstance(tables, dict)
    assert tables["counts"]["columns"] == [
        ["user", "string"],
        ["shop", "int32"],
        ["count", "int64"],
    ]
    assert (tables["held"]["keys"], tables["held"]["time"]) == (["user", "shop"], "time")
    assert tables["counts"]["time"] is None
    assert tables["held"]["horizon_us"] == 6
    ((page_id, first_us, last_us, rows, *_),) = tables["held"]["pages"]
    assert (first_us, last_us, rows) == (5, 9, 2), "an expired row goes when its page does"
    assert page_id in store.pages


def test_next_batch_knows_the_state_and_the_watermark_before() -> None:
    state = BucketState(OPERATOR, 4, filled())
    assert state.watermark_us == 5
    assert state.timer_us == 9
    assert state["held"].select().num_rows == 1
    assert state["counts"].select().column("count").to_pylist() == [1]


def test_new_bucket_is_empty() -> None:
    state = BucketState(OPERATOR, 4, MemoryStore())
    assert (state.watermark_us, state.timer_us) == (NO_WATERMARK, None)
    assert state["held"].select().num_rows == 0


def test_empty_bucket_leaves_nothing_behind() -> None:
    store = filled()
    state = BucketState(OPERATOR, 4, store)
    for table in OPERATOR.tables:
        state[table].expire(100)
    state["counts"].take(ROWS["rows"])
    state.wake_at(None)
    state.finish(100)
    assert (store.index, store.pages, store.timer_us) == (None, {}, None)


def test_batch_that_fails_changes_nothing() -> None:
    store = filled()
    before = store.index, dict(store.pages)
    state = BucketState(OPERATOR, 4, store)
    state["held"].append(ROWS["rows"])
    state.wake_at(3)
    with pytest.raises(ValueError, match="the watermark 5 is past it"):
        state.finish(5)
    assert (store.index, store.pages) == before


def test_state_of_others_is_refused() -> None:
    store = filled()
    with pytest.raises(StateMismatch, match="other number of buckets: 4, and now it is 8"):
        BucketState(OPERATOR, 8, store)
    other = HoldAndCount(SCHEMA.remove(3), KEYS, "time")
    with pytest.raises(StateMismatch, match=r"other columns of held: .*'value'.* another checkp"):
        BucketState(other, 4, store)
    other = HoldAndCount(SCHEMA, KEYS, "time")
    other.identity = "something else"
    with pytest.raises(StateMismatch, match="other settings: hold and count"):
        BucketState(other, 4, store)


def test_state_of_another_key_is_refused() -> None:
    """Rows of one key would be in many buckets."""
    other = HoldAndCount(SCHEMA, ("user",), "time")
    with pytest.raises(StateMismatch, match=r"other keys: .*'shop'.* now it is {'rows': \['user'"):
        BucketState(other, 4, filled())
    other = HoldAndCount(SCHEMA, KEYS, "time")
    other.tables["held"] = other.tables["held"]._replace(keys=("user",))
    with pytest.raises(StateMismatch, match=r"other keys of held: .*'shop'.* now it is \['user'"):
        BucketState(other, 4, filled())


def test_state_by_another_time_is_refused() -> None:
    schema = SCHEMA.append(pa.field("seen", SCHEMA.field("time").type))
    rows = ROWS["rows"].append_column("seen", ROWS["rows"].column("time"))
    store = MemoryStore()
    run_bucket(HoldAndCount(schema, KEYS, "time"), 4, store, {"rows": rows}, 5)
    with pytest.raises(StateMismatch, match="other time of held: time, and now it is seen"):
        BucketState(HoldAndCount(schema, KEYS, "seen"), 4, store)


def test_page_that_is_missing_damaged_or_another_is_noticed() -> None:
    store = filled()
    page_id = next(iter(store.pages))
    blob = store.pages[page_id]
    for bad, message in (
        (None, "is missing"),
        (blob[:-1] + b"?", "is damaged"),
        (encode_page(hashed([])), "is not the one that its index lists"),
    ):
        if bad is None:
            del store.pages[page_id]
        else:
            store.pages[page_id] = bad
        state = BucketState(OPERATOR, 4, store)
        with pytest.raises(CorruptState, match=message):
            state["held"].select()
