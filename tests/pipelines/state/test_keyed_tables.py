"""Tables by key against a dict; merges that hold a page of each run, however long it is."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.pipelines.state import keyed_tables
from millstream.pipelines.state.keyed_tables import KeyedTable
from millstream.pipelines.state.keys import HASH, key_codes, with_hash
from millstream.pipelines.state.tables import StateTableSpec
from tests.drawing import draws
from tests.pipelines.state.stored import Stored

SCHEMA = pa.schema([("key", pa.int64()), ("version", pa.int64()), ("is_gone", pa.bool_())])
SPEC = StateTableSpec(SCHEMA, ("key",), None, by_key=True)
MEMORY_STORY = Path(__file__).parent / "large_table.py"


def changes(*rows: tuple[int, int, bool]) -> pa.RecordBatch:
    columns = [pa.array(it) for it in zip(*rows, strict=True)] or [[], [], []]
    return with_hash(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), SPEC.keys)


def newest(rows: pa.RecordBatch, is_whole: bool) -> pa.RecordBatch:
    """Of each key the last version; deletes only where there may be something to delete."""
    if not rows.num_rows:
        return rows
    codes = key_codes(rows, SPEC.keys)
    order = np.lexsort((rows.column("version").to_numpy(), codes))
    is_last = np.append(codes[order][1:] != codes[order][:-1], True)
    rows = rows.take(pa.array(order[is_last]))
    return rows.filter(pa.compute.invert(rows.column("is_gone"))) if is_whole else rows


def keyed(stored: Stored) -> KeyedTable:
    assert isinstance(stored.table, KeyedTable)
    return stored.table


def content(rows: pa.RecordBatch) -> dict[int, int]:
    current = newest(rows, True)
    return dict(
        zip(current.column("key").to_pylist(), current.column("version").to_pylist(), strict=True)
    )


class KeyedMachine(RuleBasedStateMachine):
    """Whatever is merged when, a key has its last version, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored(SPEC)
        self.model: dict[int, int] = {}
        self.version = 0

    @rule(given=st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=40))
    def change(self, given: list[tuple[int, bool]]) -> None:
        rows = []
        for key, is_gone in given:
            self.version += 1
            rows.append((key, self.version, is_gone))
            self.model[key] = self.version
            if is_gone:
                del self.model[key]
        self.stored.table.append(changes(*rows))
        keyed(self.stored).merge(newest)

    @rule()
    def reopen(self) -> None:
        self.stored.reopen()

    @rule(keys=st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def look_up(self, keys: list[int]) -> None:
        hashes = np.unique(changes(*((key, 0, False) for key in keys)).column(HASH).to_numpy())
        expected = {key: self.model[key] for key in keys if key in self.model}
        assert content(self.stored.table.select(hashes=hashes)) == expected

    @invariant()
    def has_all_keys(self) -> None:
        assert content(self.stored.table.select()) == self.model

    @invariant()
    def pages_of_a_run_do_not_overlap(self) -> None:
        for pages in keyed(self.stored)._runs().values():
            assert all(a.last_hash < b.first_hash for a, b in pairwise(pages))


TestKeyedMachine: Any = KeyedMachine.TestCase
TestKeyedMachine.settings = settings(max_examples=draws(40), stateful_step_count=20)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_tables, "KEYED_PAGE_BYTES", 256)


def test_lookup_reads_only_pages_that_may_have_the_key() -> None:
    stored = Stored(SPEC)
    stored.table.append(changes(*((key, 0, False) for key in range(1000))))
    stored.reopen()
    assert len(stored.table.pages) > 50
    wanted = np.unique(changes((7, 0, False)).column(HASH).to_numpy())
    assert content(stored.table.select(hashes=wanted)) == {7: 0}
    assert len(stored.read) == 1


def test_merge_reads_every_page_once_and_writes_full_ones_at_once() -> None:
    stored = Stored(SPEC)
    for version in range(2):
        stored.table.append(changes(*((key, version, False) for key in range(500))))
        stored.reopen()
    before = set(stored.table.pages)
    keyed(stored).merge(newest)
    assert sorted(stored.read) == sorted(before)
    assert len(stored.put_at_once) > 20
    assert len(list(stored.table.made())) <= 1
    stored.reopen()
    assert content(stored.table.select()) == dict.fromkeys(range(500), 1)
    assert stored.table.row_count == 500


def test_table_has_at_most_twice_its_rows_and_is_rewritten_ever_less_often() -> None:
    stored = Stored(SPEC)
    written = 0
    for version in range(200):
        stored.table.append(changes(*((key, version, False) for key in range(version, 200, 20))))
        keyed(stored).merge(newest)
        assert stored.table.row_count <= 2 * 200 + 10
        assert len(keyed(stored)._runs()) < 10
        written += len(stored.reopen())
    rows = sum(len(range(version, 200, 20)) for version in range(200))
    assert written < rows


def test_delete_stays_as_long_as_an_older_run_may_have_its_row() -> None:
    stored = Stored(SPEC)
    stored.table.append(changes(*((key, 0, False) for key in range(1000))))
    for version in range(1, 5):
        stored.table.append(changes((1, version, True)))
    keyed(stored).merge(newest)
    assert len(keyed(stored)._runs()) == 2, "four small ones became one"
    assert 1 not in content(stored.table.select())
    stored.table.append(changes(*((key, 9, True) for key in range(1000))))
    keyed(stored).merge(newest)
    stored.reopen()
    assert not stored.blobs, "all runs were merged, and nothing was left"


@pytest.mark.slow
def test_memory_stays_bounded_where_the_table_does_not() -> None:
    """A table of 160 MB in one bucket, loaded, looked up and merged, in 48 MB more than one of
    40 MB needs: in a process of its own, with its pages on disk."""
    found = [
        int(subprocess.check_output([sys.executable, str(MEMORY_STORY), str(batches)]))
        for batches in (16, 64)
    ]
    assert found[1] < found[0] + 48 * 1024, f"kilobytes: {found}"
