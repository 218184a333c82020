"""What backlog policies have done since the broker started, by topic and group.

Plain numbers, for whatever shows them.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

TopicAndGroup: TypeAlias = tuple[str, str]


class BacklogCounters:
    """The group is the slowest one at that time; of records that were dropped, each group that
    had not read them."""

    __slots__ = ("dropped_records", "held_seconds", "rejected")

    def __init__(self) -> None:
        self.held_seconds: dict[TopicAndGroup, float] = {}  # of all requests together
        self.rejected: Counter[TopicAndGroup] = Counter()  # partitions of Produce requests
        self.dropped_records: Counter[TopicAndGroup] = Counter()  # offsets

    def held(self, topic: str, group: str, seconds: float) -> None:
        """A request of a producer has waited."""
        key = topic, group
        self.held_seconds[key] = self.held_seconds.get(key, 0.0) + seconds
