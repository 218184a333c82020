"""Lag, loss, and how near retention is."""

from __future__ import annotations

import pytest

from millstream.coordination.groups.retained_loss import (
    OldestUnread,
    PartitionLag,
    Retention,
    retention_used,
)


@pytest.mark.parametrize(
    ("committed", "log_start", "log_end", "lag", "lost"),
    [
        (10, 0, 10, 0, 0),
        (4, 0, 10, 6, 0),
        (4, 4, 10, 6, 0),
        (4, 7, 10, 6, 3),
        (4, 10, 10, 6, 6),
        (12, 0, 10, 0, 0),  # committed past the end, as after a power cut with acks=1
    ],
)
def test_lag_and_loss_follow_from_three_offsets(
    committed: int, log_start: int, log_end: int, lag: int, lost: int
) -> None:
    state = PartitionLag("g", "orders", 0, committed, log_start, log_end)
    assert (state.lag, state.lost) == (lag, lost)


@pytest.mark.parametrize(
    ("age_ms", "later_bytes", "retention", "used"),
    [
        (500, 0, Retention(max_age_ms=1_000), 0.5),
        (2_000, 0, Retention(max_age_ms=1_000), 2.0),
        (500, 80, Retention(max_bytes=100), 0.8),
        (500, 80, Retention(max_age_ms=1_000, max_bytes=100), 0.8),
        (900, 80, Retention(max_age_ms=1_000, max_bytes=100), 0.9),
        (900, 80, Retention(), 0.0),
        (-50, 0, Retention(max_age_ms=1_000), 0.0),  # a producer's clock is ahead
    ],
)
def test_retention_is_used_up_by_age_or_by_size(
    age_ms: int, later_bytes: int, retention: Retention, used: float
) -> None:
    now_ms = 10_000
    assert retention_used(OldestUnread(now_ms - age_ms, later_bytes), retention, now_ms) == used


def test_unknown_age_counts_as_young() -> None:
    assert retention_used(OldestUnread(-1, 0), Retention(max_age_ms=1_000), 10_000) == 0.0
