"""Change logs as changes with weights, against a dict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.row_positions import Positions, encode_positions
from millstream.pipelines.state.trial import Trial
from tests.drawing import draws

SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("offset", pa.int64()), ("gone", pa.bool_())]
)


class Change(NamedTuple):
    id: int | None
    text: str | None
    offset: int
    gone: bool | None


A_CHANGE = st.tuples(
    st.sampled_from([1, 2, 3, None]), st.sampled_from(["a", "b", None]), st.booleans() | st.none()
)


def operator() -> Changes:
    return Changes(SCHEMA, ["id"], "offset", "gone")


def columns(log: Sequence[Change]) -> dict[str, pa.RecordBatch]:
    arrays = [pa.array([it[at] for it in log], field.type) for at, field in enumerate(SCHEMA)]
    return {"changes": pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)}


def weights(rows: pa.RecordBatch) -> Counter[tuple[object, ...]]:
    found = Counter({tuple(it.values())[:-1]: it["_weight"] for it in rows.to_pylist()})
    assert set(found.values()) <= {-1, 1}
    return found


@settings(max_examples=draws(40))
@given(st.lists(st.lists(A_CHANGE, max_size=6), max_size=8), st.randoms())
def test_sum_of_weights_is_the_table_after_every_batch(
    batches: list[list[tuple[int | None, str | None, bool | None]]], random: Random
) -> None:
    """Within a batch rows come in any order, and some of them twice."""
    trial = Trial(operator(), buckets=2)
    table: dict[int | None, tuple[object, ...]] = {}
    view: Counter[tuple[object, ...]] = Counter()
    offset = 0
    for batch in batches:
        log = []
        for key, text, gone in batch:
            log.append(Change(key, text, offset, gone))
            table[key] = (key, text, offset)
            if gone:
                del table[key]
            offset += 1
        log += log[: random.randint(0, len(log))]
        random.shuffle(log)
        for row, weight in weights(trial.feed(columns(log))).items():
            view[row] += weight
        assert {row: n for row, n in view.items() if n} == dict.fromkeys(table.values(), 1)


def test_update_takes_the_old_row_away_and_a_copy_of_it_does_nothing() -> None:
    trial = Trial(operator())
    trial.feed(columns([Change(1, "a", 0, False)]))
    update = columns([Change(1, "b", 1, False)])
    assert weights(trial.feed(update)) == {(1, "a", 0): -1, (1, "b", 1): 1}
    assert trial.feed(update).num_rows == 0
    assert trial.feed(columns([Change(1, "a", 0, False)])).num_rows == 0


def test_delete_needs_no_columns_but_key_and_sequence() -> None:
    trial = Trial(operator())
    trial.feed(columns([Change(1, "a", 0, False)]))
    assert weights(trial.feed(columns([Change(1, None, 1, True)]))) == {(1, "a", 0): -1}


def test_deleted_rows_leave_no_state() -> None:
    trial = Trial(operator())
    trial.feed(columns([Change(1, "a", 0, False)]))
    trial.feed(columns([Change(1, None, 1, True)]))
    assert all(store.index is None and not store.pages for store in trial.buckets)


def test_positions_order_changes_and_are_not_emitted() -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_position", pa.binary())])
    trial = Trial(Changes(schema, ["id"], "_position", None))

    def change(text: str, log: int, offset: int, time_ms: int) -> Counter[tuple[object, ...]]:
        columns = [np.array([it], np.int64) for it in (time_ms, log, offset)]
        arrays = [pa.array([1]), pa.array([text]), encode_positions(Positions(*columns))]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return weights(trial.feed({"changes": batch}))

    assert change("a", log=0, offset=1000, time_ms=10) == {(1, "a"): 1}
    assert change("b", log=3, offset=2, time_ms=20) == {(1, "a"): -1, (1, "b"): 1}
    assert not change("c", log=0, offset=1001, time_ms=15)
