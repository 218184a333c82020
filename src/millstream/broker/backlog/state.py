"""The state of a partition under a backlog policy, and which groups count for it.

No I/O and no clock: the caller passes what groups have committed, the backlog of the slowest one,
and the time.

    within   the policy does nothing
    over     from a full bound on, until at most `RELEASE_AT` of it is used: hold, reject or drop

A group counts from its first commit in a partition on. It no longer counts once it has had no
members, and committed nothing, for `millstream.backlog.group.idle.ms`, and again with its next
commit or member.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.config.backlog import BacklogPolicy
from millstream.config.topic import NO_BOUND

RELEASE_AT = 0.9
UNLIMITED_ROOM = 1 << 62
QUIET_MS = 10_000  # between two lines in the log about one partition


class Position(NamedTuple):
    """Where a group is in a partition."""

    group: str
    offset: int  # committed; the start offset of a share group
    has_members: bool
    committed_ms: int | None = None  # the time of the commit, if it is known


class Backlog(NamedTuple):
    """What the slowest group has not read."""

    group: str
    offset: int
    size_bytes: int
    age_ms: int


def slowest(positions: Iterable[Position], start: int, end: int) -> Position | None:
    """The group that is furthest behind the end of what counts; None if all have read
    everything. A position before the start of the log is at its start: what is gone is no backlog.
    """
    behind = [it._replace(offset=max(it.offset, start)) for it in positions if it.offset < end]
    return min(behind, key=lambda it: (it.offset, it.group), default=None)


class PartitionState:
    """Whether the policy applies to a partition now."""

    def __init__(self, policy: BacklogPolicy) -> None:
        self.policy = policy
        self.is_over = False
        self.backlog: Backlog | None = None  # as of the last update; None: nobody is behind

    def update(self, backlog: Backlog | None) -> bool:
        """Take over what was measured. Returns whether the policy begins or ceases to apply."""
        self.backlog = backlog
        was_over = self.is_over
        if backlog is None:
            self.is_over = False
        else:
            used = self.policy.usage(backlog.size_bytes, backlog.age_ms)
            self.is_over = used >= 1 or (was_over and used > RELEASE_AT)
        return self.is_over != was_over

    @property
    def room_bytes(self) -> int:
        """How much can be appended before the policy may apply, if nobody reads meanwhile."""
        if self.is_over:
            return 0
        if self.policy.bytes_max == NO_BOUND:
            return UNLIMITED_ROOM
        used = 0 if self.backlog is None else self.backlog.size_bytes
        return max(self.policy.bytes_max - used, 0)


class GroupActivity:
    """When the groups of a topic were last active."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], int] = {}  # by group and partition
        self._active_ms: dict[str, int] = {}
        self._forgotten: set[str] = set()

    def saw(self, index: int, position: Position, now_ms: int) -> None:
        """The position of a group in a partition, as it is now."""
        group, offset, has_members, committed_ms = position
        key = group, index
        if has_members or (key in self._offsets and self._offsets[key] != offset):
            self._active_ms[group] = now_ms
        elif group not in self._active_ms or (committed_ms or 0) > self._active_ms[group]:
            # First seen without members: idle since its last commit, or since now if that is
            # not known.
            self._active_ms[group] = min(now_ms, now_ms if committed_ms is None else committed_ms)
        self._offsets[key] = offset

    def counts(self, group: str, idle_ms: int, now_ms: int) -> bool:
        return now_ms - self._active_ms.get(group, now_ms) <= idle_ms

    def changes(self, idle_ms: int, now_ms: int) -> tuple[list[str], list[str]]:
        """The groups that no longer count, and those that count again, since the last call."""
        forgotten = {it for it in self._active_ms if not self.counts(it, idle_ms, now_ms)}
        gone, back = forgotten - self._forgotten, self._forgotten - forgotten
        self._forgotten = forgotten
        return sorted(gone), sorted(back & self._active_ms.keys())

    def keep(self, groups: set[str]) -> None:
        """Drop all that do not exist any more."""
        for group in self._active_ms.keys() - groups:
            del self._active_ms[group]
            self._forgotten.discard(group)
        for key in [key for key in self._offsets if key[0] not in groups]:
            del self._offsets[key]


class ChangeLog:
    """When to write a line about a partition: at a change, but not more often than every
    `QUIET_MS`. A state that lasts is always written, be it later."""

    def __init__(self) -> None:
        self._written = False  # the state that was written last
        self._written_ms: int | None = None
        self._skipped = 0  # changes since then

    def note(self, is_over: bool, has_changed: bool, now_ms: int) -> int | None:
        """None: write nothing. Otherwise, how many changes were not written."""
        self._skipped += has_changed
        if is_over == self._written:
            return None
        if self._written_ms is not None and now_ms - self._written_ms < QUIET_MS:
            return None
        skipped = max(self._skipped - 1, 0)
        self._written, self._written_ms, self._skipped = is_over, now_ms, 0
        return skipped
