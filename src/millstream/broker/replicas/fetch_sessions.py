"""Fetch sessions (KIP-227): a consumer of many partitions sends each of them only once.

A session stores, for each partition, the client's request and the last answer. A waiting fetch
belongs to its session: partitions notify the sessions that watch them, so that a fetch only looks
at changed partitions.

    candidates   the targets that may have new data: changed since the last look,
                 in the latest request, or with more data than the last answer held

A fetch without a session (old clients, or a full cache) uses a temporary session. Followers have
sessions too (`replica_sessions.py`), for which those of consumers make room.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from millstream.errors import ApiError, ErrorCode
from millstream.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from millstream.protocol.produce import TopicKey

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
SESSION_EPOCH_MAX = 2**31 - 1
SESSION_ID_MAX = 2**31 - 1
EVICTION_AGE_MS = 120_000  # Kafka's min.incremental.fetch.session.eviction.ms


def summary(answer: FetchedPartition) -> tuple[int, ...]:
    """An answer without its records: error, high watermark, last stable and start offset."""
    return answer[1:5]


class FetchTarget:
    """One partition in a session: the client's request and its last answer."""

    __slots__ = ("bytes_seen", "key", "last_answer", "not_found", "partition", "topic", "wanted")

    def __init__(self, topic: TopicKey, wanted: FetchPartition) -> None:
        self.topic = topic
        self.key = (topic, wanted.partition)
        self.wanted = wanted
        self.partition: Partition | None = None  # None if it does not exist
        self.last_answer: tuple[int, ...] | None = None  # the latest answer, without its records
        self.not_found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # the error while there is none
        self.bytes_seen = 0  # visible bytes for this client at the last look

    def has_news(self, answer: FetchedPartition) -> bool:
        """Whether an incremental answer must contain the partition."""
        return bool(
            answer.records
            or answer.error
            or self.last_answer != summary(answer)
            or answer.diverging_epoch is not None
            or answer.preferred_replica >= 0
        )


class FetchSession:
    """The partitions of one consumer."""

    is_privileged = False  # others make room for it

    def __init__(self, session_id: int, *, uses_topic_ids: bool, owner: object = None) -> None:
        self.id = session_id
        self.owner = owner
        self.epoch = INITIAL_EPOCH
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = 0
        self.targets: dict[tuple[TopicKey, int], FetchTarget] = {}
        self.candidates: dict[FetchTarget, None] = {}  # an ordered set
        self.on_change: Callable[[FetchTarget], None] | None = None  # a fetch that waits
        self._by_partition: dict[Partition, FetchTarget] = {}
        self._looked_at_for: tuple[object, object] = (None, None)

    def belongs_to_former(self, replica_id: int, replica_epoch: int) -> bool:
        """Whether it is of an earlier incarnation of a broker."""
        return False

    def look_at_all_for(self, reader: object, version: object) -> None:
        """Look at all partitions if another client uses the session, or if its rights may have
        changed: they may not have anything new, and still be answered otherwise."""
        last_reader, last_version = self._looked_at_for
        if last_reader is not reader or last_version is not version:
            self._looked_at_for = (reader, version)
            self.look_at_all()

    def look_at_all(self) -> None:
        self.candidates.update(dict.fromkeys(self.targets.values()))

    def resolve(self, table: PartitionTable) -> list[FetchTarget]:
        """The targets to look at, with their partitions if these exist."""
        targets = list(self.candidates)
        for target in targets:
            if target.partition is None:
                try:
                    partition = table.find(target.topic, target.wanted.partition)
                except ApiError as error:
                    target.not_found = error.code
                else:
                    self.bind(target, partition)
        return targets

    def want(self, topics: Iterable[tuple[TopicKey, list[FetchPartition]]]) -> None:
        """Add partitions, or change their fetch positions."""
        for topic, partitions in topics:
            for wanted in partitions:
                key = (topic, wanted.partition)
                target = self.targets.get(key)
                if target is None:
                    target = self.targets[key] = FetchTarget(topic, wanted)
                target.wanted = wanted
                self.candidates[target] = None

    def forget(self, topics: Iterable[tuple[TopicKey, list[int]]]) -> None:
        for topic, indexes in topics:
            for index in indexes:
                target = self.targets.pop((topic, index), None)
                if target is not None:
                    self.candidates.pop(target, None)
                    self._unbind(target)

    def bind(self, target: FetchTarget, partition: Partition) -> None:
        """The partition exists: watch it from now on."""
        target.partition = partition
        self._by_partition[partition] = target
        partition.watch(self)

    def partition_changed(self, partition: Partition) -> None:
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
            partition.unwatch(self)
        self._by_partition.clear()

    def _unbind(self, target: FetchTarget) -> None:
        partition = target.partition
        if partition is not None and self._by_partition.pop(partition, None) is not None:
            partition.unwatch(self)
        target.partition = None


SessionT = TypeVar("SessionT", bound=FetchSession)


class FetchSessionCache:
    """The sessions of all consumers and followers: at most `slots`; the least recently used is
    evicted."""

    def __init__(self, slots: int, *, random_source: random.Random | None = None) -> None:
        self._slots = slots
        self._random = random_source or random.SystemRandom()  # not to be guessed by others
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: FetchRequest, now_ms: int, *, uses_topic_ids: bool, owner: object = None
    ) -> FetchSession:
        """The session of a consumer's request, updated by it. Only its owner, a principal, can use
        it. Raises `ApiError` for an unknown session or a wrong epoch."""
        return self.open_as(FetchSession, request, now_ms, uses_topic_ids, owner)

    def open_as(
        self,
        kind: Callable[..., SessionT],
        request: FetchRequest,
        now_ms: int,
        uses_topic_ids: bool,
        owner: object,
    ) -> SessionT:
        """The same for sessions of any kind; an owner has sessions of one kind only."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if (old := self._sessions.get(request.session_id)) is not None and old.owner == owner:
                self._drop(old.id)
            session = kind(NO_SESSION, uses_topic_ids=uses_topic_ids, owner=owner)
            session.want(request.topics)
            if request.session_epoch == INITIAL_EPOCH and session.targets:
                self._admit(session, now_ms)
            return session
        session = cast("SessionT", self._continued(request, uses_topic_ids, owner))
        session.last_used_ms = now_ms
        session.epoch = session.epoch + 1 if session.epoch < SESSION_EPOCH_MAX else 1
        session.want(request.topics)
        session.forget(request.forgotten)
        if not session.targets:
            self._drop(session.id)
            session.id = NO_SESSION
        return session

    def close(self, session: FetchSession) -> None:
        """End a session; the client has to open a new one."""
        self._drop(session.id)
        session.close()
        session.id = NO_SESSION

    def _continued(
        self, request: FetchRequest, uses_topic_ids: bool, owner: object
    ) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.owner != owner:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._sessions.move_to_end(session.id)
        return session

    def close_former(self, replica_id: int, replica_epoch: int) -> None:
        """A broker has a new incarnation: nobody will use the sessions of those before."""
        for session in list(self._sessions.values()):
            if session.belongs_to_former(replica_id, replica_epoch):
                self._drop(session.id)

    def _admit(self, session: FetchSession, now_ms: int) -> None:
        """Store a new session, if there is room or another one can be evicted."""
        if len(self._sessions) >= self._slots:
            evicted = self._evictable(session, now_ms)
            if evicted is None:
                return
            self._drop(evicted.id)
        while session.id == NO_SESSION or session.id in self._sessions:
            session.id = self._random.randint(1, SESSION_ID_MAX)
        session.epoch = INITIAL_EPOCH + 1
        session.last_used_ms = now_ms
        self._sessions[session.id] = session

    def _evictable(self, session: FetchSession, now_ms: int) -> FetchSession | None:
        """One that is stale, or for a follower any one of a consumer: the least recently used."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms >= EVICTION_AGE_MS:
            return oldest
        if not session.is_privileged:
            return None
        return next((it for it in self._sessions.values() if not it.is_privileged), None)

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
