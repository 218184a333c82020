"""Tables against a list of rows; pages that stay few and near their size."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.pipelines.state import tables
from millstream.pipelines.state.keys import HASH, HASH_FIELD
from millstream.pipelines.state.tables import StateTableSpec, expand
from tests.drawing import draws
from tests.pipelines.state.rows import KEYS, ROWS, SPEC, Row, hashed, to_rows
from tests.pipelines.state.stored import Stored


class TableMachine(RuleBasedStateMachine):
    """Whatever is done to it, the table has the rows that a list has."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored()
        self.model: Counter[Row] = Counter()

    @rule(rows=st.lists(ROWS, max_size=6))
    def append(self, rows: list[Row]) -> None:
        kept = [row for row in rows if row.time_us >= self.stored.table.horizon_us]
        self.stored.table.append(hashed(kept))
        self.model.update(kept)

    @rule(first_us=st.none() | st.integers(-60, 60), last_us=st.none() | st.integers(-60, 60))
    def select(self, first_us: int | None, last_us: int | None) -> None:
        found = to_rows(self.stored.table.select(first_us, last_us))
        assert Counter(found) == Counter(
            row
            for row in self.model.elements()
            if (first_us is None or row.time_us >= first_us)
            and (last_us is None or row.time_us <= last_us)
        )

    @rule(rows=st.lists(ROWS, max_size=3))
    def select_keys(self, rows: list[Row]) -> None:
        hashes = np.unique(hashed(rows).column(HASH).to_numpy())
        found = to_rows(self.stored.table.select(hashes=hashes))
        assert Counter(found) == self.rows_of(rows)

    @rule(rows=st.lists(ROWS, max_size=3))
    def take(self, rows: list[Row]) -> None:
        taken = Counter(to_rows(self.stored.table.take(hashed(rows))))
        assert taken == self.rows_of(rows)
        self.model -= taken

    @rule(before_us=st.integers(-60, 60))
    def expire(self, before_us: int) -> None:
        self.stored.table.expire(before_us)
        self.model = Counter(
            row for row in self.model.elements() if row.time_us >= self.stored.table.horizon_us
        )

    @rule()
    def reopen(self) -> None:
        self.stored.reopen()
        tiers = Counter(
            tables.tier_of(page.size_bytes) for page in self.stored.table.pages.values()
        )
        assert all(number < tables.MERGE_COUNT for number in tiers.values())

    @invariant()
    def has_all_rows(self) -> None:
        assert Counter(to_rows(self.stored.table.select())) == self.model

    def rows_of(self, rows: list[Row]) -> Counter[Row]:
        keys = {row[:2] for row in rows}
        return Counter(row for row in self.model.elements() if row[:2] in keys)


TestTableMachine: Any = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=draws(60), stateful_step_count=20)


def times(*times_us: int) -> pa.RecordBatch:
    return hashed([Row("ann", 1, time_us, time_us) for time_us in times_us])


def test_pages_out_of_reach_are_not_read() -> None:
    stored = Stored()
    for begin_us in (0, 100, 200):
        stored.table.append(times(begin_us, begin_us + 50))
    stored.reopen()
    assert stored.table.select(100, 199).num_rows == 2
    assert stored.read == [1]
    stored.table.select(120, 130)
    assert stored.read == [1], "once is enough"
    stored.table.expire(151)
    assert list(stored.table.pages) == [2]
    assert stored.read == [1], "what is old goes unread"


def test_rows_expire_before_the_time_and_not_at_it() -> None:
    stored = Stored()
    stored.table.append(times(1, 2))
    stored.table.append(times(2, 3))
    stored.table.expire(2)
    assert sorted(row.time_us for row in to_rows(stored.table.select(0, 3))) == [2, 2, 3]
    stored.table.expire(1)
    assert stored.table.select(0).num_rows == 3, "time does not go back"
    stored.table.expire(3)
    assert [row.time_us for row in to_rows(stored.table.select())] == [3]
    assert len(stored.table.pages) == 1


def test_batch_writes_its_own_rows_and_little_more() -> None:
    stored = Stored()
    written_bytes = 0
    for number in range(64):
        stored.table.append(times(*range(number * 100, number * 100 + 100)))
        written_bytes += sum(len(stored.blobs[it]) for it in stored.reopen())
    assert stored.table.row_count == 6400
    assert len(stored.blobs) < 3 * 5
    assert written_bytes < 5 * sum(len(blob) for blob in stored.blobs.values())


def test_large_batch_becomes_pages_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_BYTES", 1 << 12)
    stored = Stored()
    stored.table.append(times(*range(1000, 0, -1)))
    stored.reopen()
    pages = sorted(stored.table.pages.values(), key=lambda page: page.first_us)
    assert len(pages) > 5
    assert all(a.last_us < b.first_us for a, b in pairwise(pages))
    assert all(page.size_bytes <= 1 << 12 for page in pages)
    assert stored.table.select(10, 20).num_rows == 11
    assert len(stored.read) == 1


def test_taking_a_key_leaves_one_with_the_same_hash() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    spec = StateTableSpec(schema, ("key",), None)

    def rows(*pairs: tuple[str, int]) -> pa.RecordBatch:
        arrays = [
            pa.array([5] * len(pairs), pa.uint64()),
            pa.array([it[0] for it in pairs]),
            pa.array([it[1] for it in pairs]),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([HASH_FIELD, *schema]))

    stored = Stored(spec)
    stored.table.append(rows(("x", 1), ("y", 2), ("x", 3), ("z", 4)))
    stored.reopen()
    taken = stored.table.take(rows(("z", 0), ("x", 0)))
    assert sorted(taken.column("value").to_pylist()) == [1, 3, 4]
    assert stored.table.select().column("key").to_pylist() == ["y"]


def test_taking_nothing_changes_nothing() -> None:
    stored = Stored()
    stored.table.append(times(1, 2))
    stored.reopen()
    stored.table.take(hashed([Row("bob", 1, 0, 0)]))
    assert stored.reopen() == []


def test_ranges_are_expanded() -> None:
    assert list(expand(np.array([5, 0, 9]), np.array([2, 0, 3]))) == [5, 6, 9, 10, 11]
    assert list(expand(np.zeros(0, np.int64), np.zeros(0, np.int64))) == []


def test_keys_of_the_spec_are_those_of_the_rows() -> None:
    assert SPEC.keys == KEYS
    assert SPEC.page_schema.names == [HASH, *SPEC.schema.names]
