"""A stream enriched from a table, against a dict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.stream_table import ChangeLog, Enrich, How, Waiting
from millstream.pipelines.row_positions import Positions, encode_positions
from millstream.pipelines.state import InputSpec
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws

CLICKS = pa.schema([("click", pa.int64()), ("user", pa.string())])
USERS = pa.schema(
    [("name", pa.string()), ("town", pa.string()), ("offset", pa.int64()), ("gone", pa.bool_())]
)
NAMES = st.sampled_from(["ann", "bea", "carl", None])
A_CLICK = st.tuples(st.integers(0, 3), NAMES)


class User(NamedTuple):
    name: str | None
    town: str | None
    gone: bool | None


A_USER = st.builds(User, NAMES, st.sampled_from(["Graz", "Bern", None]), st.booleans() | st.none())
BATCHES = st.lists(
    st.tuples(st.lists(A_CLICK, max_size=5), st.lists(A_USER, max_size=5)), max_size=8
)


def operator(how: How) -> Enrich:
    users = ChangeLog(USERS, ("name",), ("name", "town"), "offset", "gone")
    return Enrich(InputSpec(CLICKS, ("user",)), users, how)


def columns(
    clicks: Sequence[tuple[Any, ...]], users: Sequence[tuple[Any, ...]]
) -> dict[str, pa.RecordBatch]:
    return {"stream": to_batch(clicks, CLICKS), "table": to_batch(users, USERS)}


def to_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], it.type) for at, it in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def found(rows: pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(it.values()) for it in rows.to_pylist())


@settings(max_examples=draws(40))
@given(BATCHES, st.sampled_from(["inner", "left"]), st.randoms())
def test_each_row_gets_the_current_row_of_the_table(
    batches: list[tuple[list[tuple[int, str | None]], list[User]]], how: How, random: Random
) -> None:
    """Changes of a batch come in any order, before the rows of the stream."""
    trial = Trial(operator(how), buckets=2)
    table: dict[str, tuple[str | None, str | None]] = {}
    offset = 0
    for clicks, users in batches:
        log = []
        for it in users:
            log.append((it.name, it.town, offset, it.gone))
            offset += 1
            if it.name is not None:
                table[it.name] = it.name, it.town
                if it.gone:
                    del table[it.name]
        random.shuffle(log)
        expected = Counter(
            (click, user, *table.get(str(user), (None, None)))
            for click, user in clicks
            if how == "left" or user in table
        )
        assert found(trial.feed(columns(clicks, log))) == expected


def test_older_change_that_comes_again_does_nothing() -> None:
    trial = Trial(operator("left"))
    trial.feed(columns([], [("ann", "Graz", 5, False)]))
    rows = trial.feed(columns([(1, "ann")], [("ann", "Bern", 4, False)]))
    assert found(rows) == {(1, "ann", "ann", "Graz"): 1}


@pytest.mark.parametrize(("how", "count"), [("inner", 0), ("left", 1)])
def test_row_without_a_partner(how: How, count: int) -> None:
    assert Trial(operator(how)).feed(columns([(1, "ann")], [])).num_rows == count


def test_deleted_rows_leave_no_state() -> None:
    trial = Trial(operator("left"))
    trial.feed(columns([], [("ann", "Graz", 0, False)]))
    trial.feed(columns([], [("ann", None, 1, True)]))
    assert all(store.index is None and not store.pages for store in trial.buckets)


def test_table_of_many_keys_answers_each_of_them() -> None:
    trial = Trial(operator("inner"))
    users = [(f"u{number}", f"t{number}", number, False) for number in range(20_000)]
    for begin in range(0, 20_000, 5_000):
        trial.feed(columns([], users[begin : begin + 5_000]))
    clicks = [(number, f"u{number}") for number in range(0, 20_000, 7)]
    rows = trial.feed(columns(clicks, [])).to_pylist()
    assert len(rows) == len(clicks)
    assert all(it["town"] == f"t{it['click']}" for it in rows)


def test_table_goes_on_when_its_topic_gets_partitions_or_is_recreated() -> None:
    """Offsets begin again there; a delete is a delete."""
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("town", pa.string()),
            ("_position", pa.binary()),
            ("gone", pa.bool_()),
        ]
    )
    users = ChangeLog(schema, ("name",), ("town",), "_position", "gone")
    trial = Trial(Enrich(InputSpec(CLICKS, ("user",)), users, "left"))

    def town(town: str | None, log: int, offset: int, time_ms: int, gone: bool = False) -> Any:
        columns = [np.array([it], np.int64) for it in (time_ms, log, offset)]
        position = encode_positions(Positions(*columns))[0].as_py()
        rows = {
            "stream": to_batch([(1, "ann")], CLICKS),
            "table": to_batch([("ann", town, position, gone)], schema),
        }
        return trial.feed(rows).column("town").to_pylist()[0]

    assert town("Graz", log=0, offset=1000, time_ms=10) == "Graz"
    assert town("Bern", log=3, offset=2, time_ms=20) == "Bern"
    assert town("Linz", log=0, offset=1001, time_ms=15) == "Bern", "a backlog that is read later"
    assert town(None, log=3, offset=3, time_ms=30, gone=True) is None


TIME = pa.timestamp("us", tz="UTC")
BIDS = pa.schema([("bid", pa.int64()), ("auction", pa.string()), ("at", TIME)])
AUCTIONS = pa.schema(
    [("id", pa.string()), ("item", pa.string()), ("seq", pa.int64()), ("other", pa.bool_())]
)
WAIT_US = 5
A_BID = st.tuples(st.integers(0, 3), NAMES, st.none() | st.integers(0, 30))
AN_AUCTION = st.tuples(NAMES, st.sampled_from(["vase", "lamp"]), st.booleans())
WAITING_BATCHES = st.lists(
    st.tuples(
        st.lists(A_BID, max_size=4), st.lists(AN_AUCTION, max_size=2), st.none() | st.integers(0, 9)
    ),
    max_size=8,
)


def waiting_operator(how: How) -> Enrich:
    auctions = ChangeLog(AUCTIONS, ("id",), ("item",), "seq", excluded="other")
    return Enrich(InputSpec(BIDS, ("auction",)), auctions, how, Waiting("at", WAIT_US))


def bids_and_auctions(
    bids: Sequence[tuple[Any, ...]], auctions: Sequence[tuple[Any, ...]]
) -> dict[str, pa.RecordBatch]:
    return {"stream": to_batch(bids, BIDS), "table": to_batch(auctions, AUCTIONS)}


def items(rows: pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    return found(rows.drop_columns("at"))


@settings(max_examples=draws(80))
@given(WAITING_BATCHES, st.sampled_from(["inner", "left"]))
def test_rows_wait_until_their_key_is_in_the_table_or_time_is_up(
    batches: list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], int | None]], how: How
) -> None:
    trial = Trial(waiting_operator(how), buckets=2)
    table: dict[str, str | None] = {}  # an auction that is excluded has no item
    waiting: list[tuple[Any, ...]] = []
    watermark: int | None = None
    for number, (bids, auctions, step) in enumerate(batches):
        if step is not None:
            watermark = step + (watermark or 0)
        over = -1000 if watermark is None else watermark - WAIT_US
        expected = [(bid, key, None) for bid, key, at in waiting if at <= over]
        table |= {key: None if other else item for key, item, other in auctions if key is not None}
        candidates = [it for it in waiting if it[2] > over] + bids
        waiting = []
        for bid, key, at in candidates:
            if key in table:
                expected.append((bid, key, table[key]))
            elif key is not None and at is not None and at > over:
                waiting.append((bid, key, at))
            else:
                expected.append((bid, key, None))
        log = [
            (key, item, 10 * number + at, other) for at, (key, item, other) in enumerate(auctions)
        ]
        rows = trial.feed(bids_and_auctions(bids, log), watermark)
        assert items(rows) == Counter(it for it in expected if how == "left" or it[2] is not None)
    left = Counter((bid, key, None) for bid, key, _ in waiting)
    assert items(trial.finish()) == (left if how == "left" else Counter())


def test_row_that_found_its_key_leaves_no_state_behind() -> None:
    trial = Trial(waiting_operator("inner"), buckets=1)
    trial.feed(bids_and_auctions([(1, "a", 10), (2, "b", 11)], []), 3)
    rows = trial.feed(bids_and_auctions([], [("a", "vase", 1, False), ("b", "lamp", 2, True)]), 4)
    assert items(rows) == {(1, "a", "vase"): 1}
    assert trial.buckets[0].timer_us is None
    assert not trial.feed(bids_and_auctions([], [("b", "lamp", 3, False)]), 5).num_rows
