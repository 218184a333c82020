"""The in-sync set of a partition that this broker leads and that has other replicas.

`LeaderReplica` decides which followers are in sync and what to propose; `Leadership` has the high
watermark. This connects the two: fetches go to both, and the followers that a proposal or a joining
follower adds hold back the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream.broker.replicas.leadership import Leadership, LedLog
from millstream.coordination.cluster import PartitionImage
from millstream.coordination.replication.leader import IsrChange, LeaderReplica
from millstream.errors import ApiError, ErrorCode


class ReplicaSettings(NamedTuple):
    """What a leader has to know of its broker and its cluster."""

    broker_id: int
    lag_max_ms: int
    active: Mapping[int, int]  # brokers that may join in-sync sets, with their epochs
    is_live: Callable[[], bool]  # whether this broker can prove that it is still a member
    on_candidates: Callable[[], None]  # a follower may join: propose it soon


class InSyncSet:
    """See the module. One for each leader epoch."""

    def __init__(
        self,
        image: PartitionImage,
        leadership: Leadership,
        log: LedLog,
        settings: ReplicaSettings,
        now_ms: int,
    ) -> None:
        self._leadership = leadership
        self._log = log
        self._settings = settings
        self._me = frozenset((settings.broker_id,))
        self._machine = LeaderReplica(
            settings.broker_id,
            image,
            end=log.log_end_offset,
            flushed_end=log.flushed_offset,
            high_watermark=leadership.high_watermark,
            min_insync_replicas=log.config.min_insync_replicas,
            lag_max_ms=settings.lag_max_ms,
            now_ms=now_ms,
            active=settings.active,
        )

    @property
    def image(self) -> PartitionImage:
        """The partition as it was decided last."""
        return self._machine.partition

    def end_of(self, follower: int) -> int:
        """The flushed end of a follower; -1 if it has not fetched in this epoch."""
        return self._machine.end_of(follower)

    def check_live(self) -> None:
        """Refuse an append if another broker may lead the partition by now."""
        if not self._settings.is_live():
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "this broker has lost its connection to the cluster, and may not lead any more",
            )

    def fetched(self, follower: int, broker_epoch: int, offset: int, now_ms: int) -> None:
        """A follower whose log agrees with ours fetches from `offset` on. Raises `ApiError` if
        it is not a replica."""
        machine = self._machine
        if not machine.is_replica(follower):
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {follower} is not a replica of this"
            )
        self._update()
        machine.fetched(follower, broker_epoch, offset, now_ms)
        if machine.end_of(follower) != offset:
            return  # of an earlier incarnation
        self._hold_back()
        self._leadership.fetched(follower, offset)
        if machine.candidates:
            self._settings.on_candidates()

    def answered(self, follower: int, now_ms: int) -> None:
        self._machine.answered(follower, now_ms)

    def stayed_at_end(self, follower: int, broker_epoch: int, until_ms: int) -> None:
        """The log has grown; until then a fetch session of the follower went on at its end."""
        self._machine.stayed_at_end(follower, broker_epoch, until_ms)

    def tick(self, now_ms: int) -> IsrChange | None:
        """The change to propose now, if any."""
        self._update()
        change = self._machine.tick(now_ms)
        self._hold_back()
        return change

    @property
    def proposal(self) -> IsrChange | None:
        """The change that was proposed and is not decided."""
        return self._machine.proposal

    def committed(self, image: PartitionImage) -> None:
        """The metadata has this state of the partition, in the same leader epoch."""
        before = self._machine.partition
        self._update()
        self._machine.committed(image)
        if self._machine.partition is not before:
            self._leadership.set_in_sync(
                frozenset(image.isr) - self._me, replica_count=len(image.replicas)
            )
            self._hold_back()

    def refused(self) -> None:
        """The proposal was refused, for certain."""
        self._machine.refused()
        self._leadership.withdraw_proposal()
        self._hold_back()

    def brokers_changed(self, active: Mapping[int, int]) -> None:
        self._settings = self._settings._replace(active=active)
        self._machine.brokers_changed(active)
        self._hold_back()

    def _update(self) -> None:
        """The machine decides on the high watermark that consumers see."""
        machine = self._machine
        machine.appended(self._log.log_end_offset)
        machine.high_watermark = self._leadership.high_watermark

    def _hold_back(self) -> None:
        machine = self._machine
        self._leadership.hold_back(frozenset(machine.maximal_isr).union(machine.joining) - self._me)
