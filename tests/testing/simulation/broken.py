"""Parts of replication that are broken on purpose: the invariants have to notice each."""

from __future__ import annotations

from typing import Any

from millstream.coordination.replication.follower import (
    Effect,
    FetchAnswer,
    FetchPosition,
    FollowerReplica,
)
from millstream.coordination.replication.leader import LeaderReplica
from millstream.coordination.replication.roles import Follow
from millstream.testing.simulation.cluster import Parts
from millstream.testing.simulation.member import Member
from millstream.testing.simulation.process import Process
from millstream.testing.simulation.surroundings import Replica
from millstream.testing.simulation.zookeeper import ZooKeeper


class CountsProposedSet(LeaderReplica):
    """The high watermark counts the proposed in-sync set as if it were decided."""

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self._partition.isr if self._proposal is None else self._proposal.isr


class CountsCurrentSet(LeaderReplica):
    """The high watermark does not wait for members that are proposed, or about to join."""

    def _find_who_counts(self) -> None:
        self._joining.clear()
        super()._find_who_counts()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self._partition.isr


class CountsUnflushed(LeaderReplica):
    """What the leader has only written counts as flushed."""

    def appended(self, end: int) -> None:
        super().appended(end)
        self.flushed(end)

    def flushed(self, end: int) -> bool:
        return super().flushed(self.end)


class JoinsWithoutEpochStart(LeaderReplica):
    """A follower joins at the high watermark, even if that is behind."""

    def _may_join(self, follower: int) -> bool:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return super()._may_join(follower)
        finally:
            self.epoch_start_offset = start


class IgnoresMinIsr(LeaderReplica):
    """The high watermark advances however few replicas are in sync."""

    @property
    def min_isr(self) -> int:
        return 1


class TruncatesToHighWatermark(Process):
    """A follower begins by cutting its log to its high watermark, as Kafka did before KIP-101."""

    def follow(self, replica: Replica, change: Follow) -> None:
        offset = replica.high_watermark
        if offset < replica.log.log_end_offset:
            self.disk.truncate(replica.key, replica.log, offset, is_below_high_watermark=False)
        super().follow(replica, change)


class NeverTruncates(FollowerReplica):
    """A follower does not look where its log leaves the leader's."""

    def next_fetch(self) -> FetchPosition | None:
        position = super().next_fetch()
        return None if position is None else position._replace(last_fetched_epoch=-1)


class TakesAnyAnswer(FollowerReplica):
    """A follower takes answers of other epochs."""

    def answered(self, asked: FetchPosition, answer: FetchAnswer) -> Effect:
        return super().answered(asked._replace(leader_epoch=self.leader_epoch), answer)


class FetchesUnflushed(FollowerReplica):
    """A follower reports what it has written as if it were flushed."""

    def appended(self, end: int) -> None:
        super().appended(end)
        self.flushed_end = end


class TakesUnknownForRefused(Member):
    """A proposal without an answer is taken for refused."""

    def outcome_is_unknown(self) -> None:
        for replica in self._process.replicas.values():
            if replica.leader is not None and replica.leader.refused():
                self._process.advanced(replica)


class LeadsBeforeRegistration(Process):
    """A restarted broker acts on an image that names its predecessor as a leader."""

    def image_changed(self) -> None:
        epoch, self.member.broker_epoch = self.member.broker_epoch, 0
        try:
            super().image_changed()
        finally:
            self.member.broker_epoch = epoch


class CommitsOfAnyController(ZooKeeper):
    """A commit does not depend on the controller epoch."""

    def is_controller_epoch(self, epoch: int) -> bool:
        return True


class CommitsOnAnyVersion(ZooKeeper):
    """A commit does not depend on the version on which it was decided."""

    def commit(self, expected: int, *rest: Any) -> Any:
        return super().commit(self.image.version, *rest)


BROKEN = {
    "counts the proposed set": Parts(leader=CountsProposedSet),
    "counts the current set": Parts(leader=CountsCurrentSet),
    "counts what is not flushed": Parts(leader=CountsUnflushed),
    "joins before the start of the epoch": Parts(leader=JoinsWithoutEpochStart),
    "ignores min.insync.replicas": Parts(leader=IgnoresMinIsr),
    "truncates to the high watermark": Parts(process=TruncatesToHighWatermark),
    "never truncates": Parts(follower=NeverTruncates),
    "checks no leader epoch": Parts(follower=TakesAnyAnswer, check_epoch=lambda epoch, asked: None),
    "fetches what is not flushed": Parts(follower=FetchesUnflushed),
    "takes unknown for refused": Parts(member=TakesUnknownForRefused),
    "leads before it is registered": Parts(process=LeadsBeforeRegistration),
    "zombie controller": Parts(zookeeper=CommitsOfAnyController),
    "commits on any version": Parts(zookeeper=CommitsOnAnyVersion),
}
