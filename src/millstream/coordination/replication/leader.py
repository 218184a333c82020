"""The leader of a replicated partition: high watermark, in-sync set, its changes.

    leader = LeaderReplica(me, partition, end=..., flushed_end=..., high_watermark=..., ...)

    leader.appended(end)                        its own log has grown
    leader.flushed(end)                      -> whether the high watermark has advanced
    leader.fetched(follower, broker_epoch, offset, now_ms)
                                             -> whether the high watermark has advanced
    leader.answered(follower, now_ms)           the fetch has been answered
    leader.stayed_at_end(follower, broker_epoch, until_ms)
                                                before its log grows: a fetch session went on
    leader.tick(now_ms)                      -> a change of the in-sync set to propose, or None
    leader.committed(partition)              -> the metadata has changed; whether it has advanced
    leader.refused()                            the proposal was refused, for certain
    leader.brokers_changed(active)              the brokers that may join in-sync sets

The caller sends a proposal to the metadata and reports the outcome. If the outcome is unknown, it
reports nothing, reads the metadata again, and calls `committed` with what it finds: only a state
with a newer partition epoch, or `refused`, ends a proposal.

The high watermark is the smallest *flushed* end of the maximal in-sync set (`isr.maximal_isr`), and
of followers that are about to join: without those, a follower could chase it for ever. It stands
still while fewer than `min.insync.replicas` are in sync, and it never moves back. An append with
acks=all is done once `high_watermark` is past it; `has_enough_replicas` tells whether to accept it.

A follower joins the in-sync set if its end has reached the high watermark and the start of this
leader epoch (what is below was committed by earlier leaders, but the high watermark of a new leader
may be behind), if it is active, and if it has fetched as the incarnation that is registered. It
leaves if it is not caught up for `replica.lag.time.max.ms`, without the delays of the leader itself
(`isr.FollowerProgress`).

`fetched` and `flushed` run for every request: they cost a few comparisons for each replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from millstream.coordination.cluster import RECOVERING, PartitionImage
from millstream.coordination.replication.isr import (
    FollowerProgress,
    effective_min_isr,
    maximal_isr,
)

NO_EPOCH = -1
_NOBODY: Mapping[int, int] = MappingProxyType({})


class IsrChange(NamedTuple):
    """A proposal: this in-sync set, if the partition is still at these epochs."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # of the members, in the same order; -1: not known


class EpochEnds(Protocol):
    """The leader epochs of a log."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch that is at most `epoch`, its end), or (-1, -1)."""


class LeaderReplica:
    """A leader in one leader epoch. See the module."""

    __slots__ = (
        "_active",
        "_followers",
        "_holding_back",
        "_joining",
        "_lag_max_ms",
        "_last_tick_ms",
        "_me",
        "_min_insync_replicas",
        "_partition",
        "_proposal",
        "candidates",
        "end",
        "epoch_start_offset",
        "flushed_end",
        "has_enough_replicas",
        "high_watermark",
    )

    def __init__(
        self,
        broker_id: int,
        partition: PartitionImage,
        *,
        end: int,
        flushed_end: int,
        high_watermark: int,
        min_insync_replicas: int,
        lag_max_ms: int,
        now_ms: int,
        active: Mapping[int, int] = _NOBODY,
    ) -> None:
        """`high_watermark` is the last one that this replica knows; `active` are the brokers that
        may join in-sync sets, with their epochs."""
        self._me = broker_id
        self._partition = partition
        self._min_insync_replicas = min_insync_replicas
        self._lag_max_ms = lag_max_ms
        self._last_tick_ms = now_ms
        self._active = active
        self._proposal: IsrChange | None = None
        self.end = end
        self.epoch_start_offset = end
        self.flushed_end = flushed_end
        self.high_watermark = high_watermark
        self.candidates: set[int] = set()  # followers that may join: `tick` proposes them
        # Outside the maximal set, but caught up: the high watermark waits for them too.
        self._joining: set[int] = set()
        # A member of the in-sync set has `lag_max_ms` from now on to fetch; others were never
        # caught up.
        self._followers = {
            replica: FollowerProgress(now_ms) if replica in partition.isr else FollowerProgress()
            for replica in partition.replicas
            if replica != broker_id
        }
        self._holding_back: tuple[FollowerProgress, ...] = ()
        self.has_enough_replicas = False
        self._find_who_counts()
        self._advance()

    # What others ask

    @property
    def epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def partition(self) -> PartitionImage:
        """The partition as it was decided last."""
        return self._partition

    @property
    def isr(self) -> tuple[int, ...]:
        return self._partition.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        proposal = self._proposal
        return maximal_isr(self._partition.isr, proposal.isr if proposal is not None else None)

    @property
    def joining(self) -> frozenset[int]:
        """Followers outside the maximal set that the high watermark waits for."""
        return frozenset(self._joining)

    @property
    def proposal(self) -> IsrChange | None:
        """The change that was proposed and is not decided."""
        return self._proposal

    @property
    def min_isr(self) -> int:
        return effective_min_isr(self._min_insync_replicas, len(self._partition.replicas))

    def end_of(self, follower: int) -> int:
        """The flushed end of a follower, or -1 if it has not fetched in this epoch."""
        progress = self._followers.get(follower)
        return -1 if progress is None else progress.end

    def is_replica(self, broker_id: int) -> bool:
        return broker_id in self._partition.replicas

    # Events

    def appended(self, end: int) -> None:
        """This leader's log ends at `end` now."""
        self.end = end

    def flushed(self, end: int) -> bool:
        """All below `end` of this leader's log is durable, or needs no flush to be visible.
        Returns whether the high watermark has advanced."""
        self.flushed_end = end
        if end > self.end:
            self.end = end
        return self._advance()

    def fetched(self, follower: int, broker_epoch: int, offset: int, now_ms: int) -> bool:
        """A follower whose log agrees with ours up to `offset` fetches from there: it has flushed
        everything before. `broker_epoch` is -1 if it is not known. Returns whether the high
        watermark has advanced."""
        progress = self._followers.get(follower)
        if progress is None or broker_epoch < progress.broker_epoch:
            return False  # not a replica, or an earlier incarnation
        if broker_epoch > progress.broker_epoch:
            progress = self._restarted(follower, progress, broker_epoch)
        progress.fetched(offset, self.end, now_ms)
        if follower not in self._partition.isr:
            self._note_outsider(follower, progress, now_ms)
        return self._advance()

    def stayed_at_end(self, follower: int, broker_epoch: int, until_ms: int) -> None:
        """A follower that fetched at the end of this log had the partition in its fetch session
        until then, and nothing was to be said about it. The log has grown only now."""
        progress = self._followers.get(follower)
        if progress is not None and progress.broker_epoch == broker_epoch and progress.end >= 0:
            progress.stayed_at_end(until_ms)

    def answered(self, follower: int, now_ms: int) -> None:
        """The fetch of a follower has been answered: from now on, time counts against it."""
        progress = self._followers.get(follower)
        if progress is not None:
            progress.answered(now_ms)

    def tick(self, now_ms: int) -> IsrChange | None:
        """What to propose now: call it every `lag_max_ms` / 2, and when there are `candidates`.

        The change is in flight until `committed` or `refused`; until then there is no other.
        """
        delay_ms = now_ms - self._last_tick_ms - self._lag_max_ms // 2
        self._last_tick_ms = now_ms
        if delay_ms > 0:  # this broker has been paused: the followers' fetches wait to be read
            for progress in self._followers.values():
                progress.excuse(delay_ms, now_ms)
        self._forget_stragglers(now_ms)
        if self._proposal is not None:
            return None
        partition = self._partition
        if partition.leader_recovery_state == RECOVERING:
            return self._propose(partition.isr)  # as it is; this ends the recovery
        stay = tuple(member for member in partition.isr if self._stays(member, now_ms))
        join = tuple(sorted(it for it in self.candidates if self._may_join(it)))
        self.candidates.clear()
        if not join and len(stay) == len(partition.isr):
            return None
        return self._propose(stay + join)

    def committed(self, partition: PartitionImage) -> bool:
        """The metadata has this state of the partition, in the same leader epoch, whether it was
        proposed from here or not. Returns whether the high watermark has advanced."""
        before = self._partition
        if (
            partition.leader_epoch != before.leader_epoch
            or partition.partition_epoch <= before.partition_epoch
        ):
            return False
        self._partition = partition
        self._proposal = None
        followers = self._followers
        if partition.replicas != before.replicas:
            self._followers = {
                replica: followers.get(replica) or FollowerProgress()
                for replica in partition.replicas
                if replica != self._me
            }
        self._joining.difference_update(partition.isr)
        self._joining.intersection_update(partition.replicas)
        self.candidates.clear()
        self._find_who_counts()
        return self._advance()

    def refused(self) -> bool:
        """The proposal was refused and will not be decided later. Returns whether the high
        watermark has advanced."""
        self._proposal = None
        self._find_who_counts()
        return self._advance()

    def brokers_changed(self, active: Mapping[int, int]) -> None:
        """The brokers that are neither fenced nor shutting down, with their epochs."""
        self._active = active
        gone = [it for it in self._joining if active.get(it) != self._followers[it].broker_epoch]
        if gone:
            self._joining.difference_update(gone)
            self._find_who_counts()

    def settings_changed(self, min_insync_replicas: int, lag_max_ms: int) -> bool:
        """Returns whether the high watermark has advanced."""
        self._min_insync_replicas = min_insync_replicas
        self._lag_max_ms = lag_max_ms
        self._find_who_counts()
        return self._advance()

    # The in-sync set

    def _restarted(
        self, follower: int, progress: FollowerProgress, broker_epoch: int
    ) -> FollowerProgress:
        """Another incarnation fetches: nothing is left of what the former one proved."""
        if progress.broker_epoch >= 0:
            progress = self._followers[follower] = FollowerProgress(progress.caught_up_ms)
            self._find_who_counts()
        progress.broker_epoch = broker_epoch
        return progress

    def _note_outsider(self, follower: int, progress: FollowerProgress, now_ms: int) -> None:
        """A follower that is not in sync has fetched."""
        if not self._is_active(follower, progress):
            return
        if follower not in self._joining and now_ms - progress.caught_up_ms <= self._lag_max_ms:
            self._joining.add(follower)
            self._find_who_counts()
        if self._proposal is None and self._may_join(follower):
            self.candidates.add(follower)

    def _is_active(self, follower: int, progress: FollowerProgress) -> bool:
        return progress.broker_epoch == self._active.get(follower, NO_EPOCH - 1)

    def _may_join(self, follower: int) -> bool:
        progress = self._followers.get(follower)
        return (
            progress is not None
            and progress.end >= self.high_watermark
            and progress.end >= self.epoch_start_offset
            and self._is_active(follower, progress)
        )

    def _stays(self, member: int, now_ms: int) -> bool:
        if member == self._me:
            return True
        progress = self._followers.get(member)
        if progress is None:
            return False
        return progress.is_in_sync(self.end, now_ms, self._lag_max_ms)

    def _forget_stragglers(self, now_ms: int) -> None:
        gone = [
            follower
            for follower in self._joining
            if not self._followers[follower].is_in_sync(self.end, now_ms, self._lag_max_ms)
        ]
        if gone:
            self._joining.difference_update(gone)
            self._find_who_counts()
            # The next flush or fetch advances the high watermark.

    def _propose(self, isr: tuple[int, ...]) -> IsrChange:
        partition = self._partition
        change = IsrChange(
            partition.leader_epoch,
            partition.partition_epoch,
            isr,
            tuple(self._epoch_of(member) for member in isr),
        )
        self._proposal = change
        self._find_who_counts()
        return change

    def _epoch_of(self, member: int) -> int:
        if member == self._me:
            return self._active.get(member, NO_EPOCH)
        return self._followers[member].broker_epoch

    # The high watermark

    def _find_who_counts(self) -> None:
        """Whose ends hold the high watermark back; kept, so that `_advance` need not ask."""
        members = self.maximal_isr
        followers = self._followers
        self._holding_back = tuple(
            progress
            for replica, progress in followers.items()
            if replica in members or replica in self._joining
        )
        self.has_enough_replicas = len(self._partition.isr) >= self.min_isr

    def _advance(self) -> bool:
        if not self.has_enough_replicas:
            return False
        end = self.flushed_end
        for progress in self._holding_back:
            if progress.end < end:
                end = progress.end
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True


def diverging_epoch(
    epochs: EpochEnds, log_end_offset: int, last_fetched_epoch: int, offset: int
) -> tuple[int, int] | None:
    """(epoch, end) where the log of a follower, which fetches from `offset` and whose last record
    is of `last_fetched_epoch`, leaves the leader's; None if it agrees so far."""
    if last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
    if epoch < last_fetched_epoch or end < offset:
        return epoch, end
    return None
