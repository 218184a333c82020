"""A bucket between two batches: what is kept, what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from millstream.pipelines.state import NO_WATERMARK, BucketState, stored_columns
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
    assert tables["counts"]["columns"] == {"user": "string", "shop": "int32", "count": "int64"}
    assert index["frontiers"] == {}
    assert (tables["held"]["keys"], tables["held"]["time"]) == (["user", "shop"], "time")
    assert tables["counts"]["time"] is None
    assert tables["held"]["horizon_us"] == 6
    ((page_id, first_us, last_us, rows, *_),) = tables["held"]["pages"]
    assert (first_us, last_us, rows) == (5, 9, 2), "an expired row goes when its page does"
    assert page_id in store.pages


def test_next_batch_has_the_state_and_the_watermark_before() -> None:
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


def test_state_of_version_5_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages have all columns as they are."""
    with monkeypatch.context() as patch:
        patch.setattr(stored_columns, "to_page", lambda rows, _: rows)
        store = filled()
    store.pages = {page_id: of_version_5(blob) for page_id, blob in store.pages.items()}
    assert store.index is not None
    store.index = of_version_5(store.index)
    result = run_bucket(OPERATOR, 4, store, None, 9)
    now = filled()
    assert result.equals(run_bucket(OPERATOR, 4, now, None, 9))
    for table in OPERATOR.tables:
        kept = BucketState(OPERATOR, 4, store)[table].select()
        assert kept.equals(BucketState(OPERATOR, 4, now)[table].select())


def of_version_5(blob: bytes) -> bytes:
    return blob[:3] + b"\5" + blob[4:]


def test_state_of_others_is_refused() -> None:
    store = filled()
    with pytest.raises(StateMismatch, match="other number of buckets: 4, the operator has 8"):
        BucketState(OPERATOR, 8, store)
    other = HoldAndCount(SCHEMA.append(pa.field("more", pa.int64())), KEYS, "time")
    with pytest.raises(StateMismatch, match=r"other columns of held: .*more in addition.* new che"):
        BucketState(other, 4, store)
    other = HoldAndCount(SCHEMA.set(3, pa.field("value", pa.float32())), KEYS, "time")
    with pytest.raises(StateMismatch, match=r"other type of value: .*, the operator has float"):
        BucketState(other, 4, store)
    other = HoldAndCount(SCHEMA, KEYS, "time")
    other.identity = "something else"
    with pytest.raises(StateMismatch, match="other settings: hold and count"):
        BucketState(other, 4, store)


def test_state_of_another_key_is_refused() -> None:
    """Rows of one key would be in many buckets."""
    other = HoldAndCount(SCHEMA, ("user",), "time")
    with pytest.raises(StateMismatch, match=r"other keys: .*'shop'.* has {'rows': \['user'"):
        BucketState(other, 4, filled())
    other = HoldAndCount(SCHEMA, KEYS, "time")
    other.tables["held"] = other.tables["held"]._replace(keys=("user",))
    with pytest.raises(StateMismatch, match=r"other keys of held: .*'shop'.* has \['user'"):
        BucketState(other, 4, filled())


def test_state_by_another_time_is_refused() -> None:
    schema = SCHEMA.append(pa.field("seen", SCHEMA.field("time").type))
    rows = ROWS["rows"].append_column("seen", ROWS["rows"].column("time"))
    store = MemoryStore()
    run_bucket(HoldAndCount(schema, KEYS, "time"), 4, store, {"rows": rows}, 5)
    with pytest.raises(StateMismatch, match="other time of held: time, the operator has seen"):
        BucketState(HoldAndCount(schema, KEYS, "seen"), 4, store)


def test_columns_are_found_by_name() -> None:
    """In another order; without one that is gone; with a new one if it is only carried."""
    store = filled()
    kept = SCHEMA.names[:3]
    schema = pa.schema([pa.field("note", pa.string()), *(SCHEMA.field(it) for it in kept[::-1])])
    other = HoldAndCount(schema, KEYS, "time")
    other.tables["held"] = other.tables["held"]._replace(carried=frozenset(["note"]))
    state = BucketState(other, 4, store)
    (row,) = state["held"].select().drop_columns(["_hash"]).to_pylist()
    assert list(row) == schema.names
    assert (row["user"], row["shop"], row["note"]) == ("bob", 1, None)
    state.finish(6)
    tables = index_of(store)["tables"]
    assert isinstance(tables, dict)
    assert list(tables["held"]["columns"]) == schema.names


def test_pages_of_a_table_that_is_gone_are_removed() -> None:
    store = filled()
    other = HoldAndCount(SCHEMA, KEYS, "time")
    counts = other.tables.pop("counts")
    BucketState(other, 4, store).finish(6)
    assert len(store.pages) == 1
    other.tables["counts"] = counts
    assert BucketState(other, 4, store)["counts"].row_count == 0


def test_frontiers_never_go_back() -> None:
    store = filled()
    state = BucketState(OPERATOR, 4, store)
    assert state.advance("late", 5) == (NO_WATERMARK, 5)
    state.finish(6)
    state = BucketState(OPERATOR, 4, store)
    assert state.advance("late", 3) == (5, 5)
    assert state.advance("late", 7) == (5, 7)
    assert state.advance("final", 1) == (NO_WATERMARK, 1)


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
