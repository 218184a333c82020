"""In-sync sets: who is in sync, who counts while a change is undecided, how many are needed."""

from __future__ import annotations

NEVER_MS = -(2**62)
"""The time at which a follower was last caught up that never was."""


def effective_min_isr(min_insync_replicas: int, replica_count: int) -> int:
    """`min.insync.replicas`, at most the number of replicas, as in Kafka."""
    return max(1, min(min_insync_replicas, replica_count))


def maximal_isr(current: tuple[int, ...], proposed: tuple[int, ...] | None) -> tuple[int, ...]:
    """The members of the current set and of a proposed one that may already be decided.

    The high watermark is computed over these (KIP-497): whichever set is decided, its members have
    everything below the high watermark.
    """
    if proposed is None:
        return current
    return current + tuple(member for member in proposed if member not in current)


class FollowerProgress:
    """What a leader knows of one follower in this leader epoch.

    A follower is in sync if it has the leader's end, or was *caught up* at most
    `replica.lag.time.max.ms` ago. A fetch catches up if it starts at the leader's end of now, and
    a fetch that starts at the leader's end of the fetch before proves that this one had caught up,
    as in Kafka. The leader's own delays do not count: the time for which it holds a fetch, and the
    time for which it did not run, are added to the moment at which the follower was caught up.
    """

    __slots__ = (
        "_fetch_ms",
        "_held_since_ms",
        "_leader_end",
        "broker_epoch",
        "caught_up_ms",
        "end",
    )

    def __init__(self, caught_up_ms: int = NEVER_MS) -> None:
        self.end = -1  # its flushed end; -1 until it fetches in this leader epoch
        self.broker_epoch = -1  # of the incarnation that fetched last
        self.caught_up_ms = caught_up_ms
        self._fetch_ms = NEVER_MS
        self._leader_end = -1  # the leader's end when it fetched last
        self._held_since_ms = NEVER_MS  # since when the leader holds its fetch

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        """A fetch from `offset` on has arrived."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self._fetch_ms)
        self.end = offset
        self._leader_end = leader_end
        self._fetch_ms = self._held_since_ms = now_ms

    def stayed_at_end(self, until_ms: int) -> None:
        """It has the leader's end, and its fetches went on without naming the partition."""
        self.caught_up_ms = max(self.caught_up_ms, until_ms)
        self._fetch_ms = max(self._fetch_ms, until_ms)

    def answered(self, now_ms: int) -> None:
        """Its fetch has been answered."""
        if self._held_since_ms != NEVER_MS:
            held_ms = now_ms - self._held_since_ms
            self._held_since_ms = NEVER_MS
            self.excuse(held_ms, now_ms)

    def excuse(self, delay_ms: int, now_ms: int) -> None:
        """The leader lost this time itself."""
        if self.caught_up_ms != NEVER_MS:
            self.caught_up_ms = min(self.caught_up_ms + delay_ms, now_ms)
        if self._fetch_ms != NEVER_MS:
            self._fetch_ms = min(self._fetch_ms + delay_ms, now_ms)
        if self._held_since_ms != NEVER_MS:
            self._held_since_ms = min(self._held_since_ms + delay_ms, now_ms)

    def is_in_sync(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        if self.end >= leader_end:
            return True
        lag_ms = now_ms - self.caught_up_ms
        if self._held_since_ms != NEVER_MS:
            # Bounded: a leader that holds a fetch for ever must not keep a dead follower in sync.
            lag_ms -= min(now_ms - self._held_since_ms, lag_max_ms)
        return lag_ms <= lag_max_ms
