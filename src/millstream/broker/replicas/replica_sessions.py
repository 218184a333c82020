"""Fetch sessions of followers: a fetch looks only at the partitions that have changed.

A target is looked at again if its log has grown, its high watermark, start, in-sync set or role has
changed, the follower has named it, it is behind, or it is not in sync. Other targets stay *at the
end*. Each fetch of a session counts as a fetch of these as well: this is noted when their log
grows, with the time at which the leader last held a fetch or answered one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.broker.replicas.fetch_sessions import FetchSession, FetchTarget

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition
    from millstream.protocol.fetch import FetchPartition, FetchRequest
    from millstream.protocol.produce import TopicKey


class ReplicaSession(FetchSession):
    """The partitions that one broker follows here, or that a tool compares."""

    is_privileged = True

    def __init__(
        self,
        session_id: int,
        *,
        uses_topic_ids: bool,
        owner: object = None,
        replica_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(session_id, uses_topic_ids=uses_topic_ids, owner=owner)
        self.replica_id = replica_id
        self.replica_epoch = -1  # of the broker's incarnation that fetched last
        self.answered_ms = 0  # when the last fetch was answered
        self._now_ms = now_ms
        self._at_end: set[FetchTarget] = set()
        self._fetched_as: tuple[object, ...] | None = None

    def belongs_to_former(self, replica_id: int, replica_epoch: int) -> bool:
        return replica_id == self.replica_id and self.replica_epoch < replica_epoch

    def begin(self, request: FetchRequest, *rights: object) -> None:
        """A fetch begins: look at all partitions if it is of another incarnation of the broker, or
        if its rights may have changed."""
        fetched_as = (request.replica_epoch, *rights)
        if fetched_as != self._fetched_as:
            self._fetched_as = fetched_as
            self.look_at_all()

    def want(self, topics: Iterable[tuple[TopicKey, list[FetchPartition]]]) -> None:
        """The answer contains what the follower names: a truncation makes it forget the offsets of
        its leader."""
        topics = list(topics)
        super().want(topics)
        for topic, partitions in topics:
            for wanted in partitions:
                self.targets[topic, wanted.partition].last_answer = None

    def looked_at(self, target: FetchTarget, *, may_rest: bool, is_at_end: bool) -> None:
        """What a fetch has found. It looks at the target again, after the others, unless that can
        wait until something changes."""
        self.candidates.pop(target, None)
        if not may_rest:
            self.candidates[target] = None
        if is_at_end:
            self._at_end.add(target)
        else:
            self._at_end.discard(target)

    def bind(self, target: FetchTarget, partition: Partition) -> None:
        super().bind(target, partition)
        partition.watch_end(self._log_grew)

    def partition_changed(self, partition: Partition) -> None:
        """The high watermark, the log's start, the in-sync set or the role has changed. Only a
        change of role is answered at once."""
        target = self._by_partition.get(partition)
        if target is None:
            return
        self.candidates[target] = None
        if partition.offline_error is not None and partition.following is None:
            self._unbind(target)
            if self.on_change is not None:
                self.on_change(target)

    def close(self) -> None:
        for partition in self._by_partition:
            partition.unwatch_end(self._log_grew)
        self._at_end.clear()
        super().close()

    def _log_grew(self, partition: Partition) -> None:
        target = self._by_partition.get(partition)
        if target is None:
            return
        self.candidates[target] = None
        if target in self._at_end:
            self._at_end.discard(target)
            if partition.in_sync is not None:
                until_ms = self.answered_ms if self.on_change is None else self._now_ms()
                partition.in_sync.stayed_at_end(self.replica_id, self.replica_epoch, until_ms)
        if self.on_change is not None:
            self.on_change(target)

    def _unbind(self, target: FetchTarget) -> None:
        self._at_end.discard(target)
        if target.partition is not None:
            target.partition.unwatch_end(self._log_grew)
        super()._unbind(target)
