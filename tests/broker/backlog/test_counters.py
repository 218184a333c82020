"""Counters of what backlog policies do."""

from __future__ import annotations

from millstream.broker.backlog.counters import BacklogCounters


def test_held_seconds_add_up_by_topic_and_group() -> None:
    counters = BacklogCounters()
    counters.held("orders", "billing", 0.5)
    counters.held("orders", "billing", 0.25)
    counters.held("orders", "audit", 1.0)
    assert counters.held_seconds == {("orders", "billing"): 0.75, ("orders", "audit"): 1.0}
