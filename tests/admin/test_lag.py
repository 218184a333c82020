"""The arithmetic of lag, loss and warnings; the commands are tested in test_group."""

from __future__ import annotations

from millstream.admin.lag import PartitionLag, warnings

DAY_MS = 86_400_000


def lag(committed: int | None, start: int, end: int, left_ms: int | None = None) -> PartitionLag:
    return PartitionLag("t", 0, committed, start, end, left_ms, retention_ms=7 * DAY_MS)


def test_lag_counts_what_is_still_there() -> None:
    assert lag(4, 0, 10).lag == 6
    assert lag(4, 7, 10).lag == 3
    assert lag(10, 0, 10).lag == 0


def test_lag_is_unknown_without_a_commit() -> None:
    assert lag(None, 3, 10).lag is None
    assert lag(None, 3, 10).lost == 0


def test_lost_counts_what_retention_took_unread() -> None:
    assert lag(4, 7, 10).lost == 3
    assert lag(7, 7, 10).lost == 0


def test_warning_comes_in_the_last_fifth_of_the_retention() -> None:
    assert lag(4, 0, 10, left_ms=2 * DAY_MS).warning == ""
    assert lag(4, 0, 10, left_ms=DAY_MS).warning == "retention reaches unread records in 1d"
    assert lag(4, 0, 10, left_ms=-5).warning == "retention reaches unread records in 0s"


def test_warnings_name_the_partition() -> None:
    assert warnings([lag(4, 7, 10), lag(7, 7, 10)]) == ["t[0]: retention deleted 3 unread records"]
