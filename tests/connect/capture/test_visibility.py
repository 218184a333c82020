"""Which rows of a chunk are stale, decided by the transactions that its snapshot sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connect.capture import visibility
from millstream.connect.capture.visibility import ChangedKeys, DatabaseSnapshot

EARLY = DatabaseSnapshot.parse("10:20:12,15")
LATE = DatabaseSnapshot.parse("100:100:")


def test_snapshot_sees_what_has_ended_before_it() -> None:
    assert [xid for xid in range(8, 22) if not EARLY.sees(xid)] == [12, 15, 20, 21]


@given(st.integers(0, 2**40), st.integers(-(2**30), 2**30))
def test_xids_of_the_stream_have_the_epoch_of_the_snapshot(xmax: int, distance: int) -> None:
    full = max(xmax + distance, 0)
    snapshot = DatabaseSnapshot(xmax, xmax, frozenset())
    if abs(full - xmax) < 2**31:
        assert snapshot.widen(full & 0xFFFFFFFF) == full


def test_keys_of_invisible_transactions_are_stale() -> None:
    changed = ChangedKeys()
    changed.track("t")
    changed.begin(11)
    changed.add("t", 11, [b"seen"])
    changed.begin(12)
    changed.add("t", 12, [b"unseen"])
    assert changed.stale_keys("t", EARLY) == {b"unseen"}
    assert changed.stale_keys("t", LATE) == set()


def test_transactions_that_were_seen_are_forgotten() -> None:
    changed = ChangedKeys()
    changed.track("t")
    changed.begin(11)
    changed.add("t", 11, [b"seen"])
    assert changed.stale_keys("t", EARLY) == set()
    assert changed.stale_keys("t", DatabaseSnapshot.parse("5:6:")) == set()


def test_a_transaction_streamed_before_its_keys_were_tracked_delays_the_chunk() -> None:
    changed = ChangedKeys()
    changed.begin(12)
    changed.track("t")
    assert changed.stale_keys("t", EARLY) is None
    assert changed.blocking("t") == {12}
    assert changed.stale_keys("t", LATE) == set()


def test_a_transaction_open_at_the_restart_delays_the_chunk_until_it_is_streamed() -> None:
    """It may have been streamed before the restart."""
    changed = ChangedKeys(running=[12])
    changed.track("t")
    assert changed.stale_keys("t", EARLY) is None
    changed.begin(12)
    changed.add("t", 12, [b"k"])
    assert changed.stale_keys("t", EARLY) == {b"k"}


def test_truncate_supersedes_any_row() -> None:
    changed = ChangedKeys()
    changed.track("t")
    changed.begin(12)
    changed.add_all("t", 12)
    changed.add("t", 12, [b"k"])
    assert changed.stale_keys("t", EARLY) is None
    assert changed.stale_keys("t", LATE) == set()


def test_rows_without_a_key_supersede_any_row() -> None:
    """Of a table without a key: what the chunk does not see would be lost."""
    changed = ChangedKeys()
    changed.track("t")
    changed.begin(12)
    changed.add("t", 12, [None])
    assert changed.stale_keys("t", EARLY) is None
    assert changed.stale_keys("t", LATE) == set()


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "KEYS_MAX", 3)
    changed = ChangedKeys()
    changed.track("t")
    changed.begin(12)
    changed.add("t", 12, [b"1", b"2", b"3", b"4"])
    assert changed.stale_keys("t", EARLY) is None
    changed.begin(15)
    changed.add("t", 15, [b"1", b"2", b"3"])
    changed.forget("t")
    changed.track("t")
    assert changed.stale_keys("t", LATE) == set()
