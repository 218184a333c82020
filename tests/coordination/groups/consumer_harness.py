"""A shard with its own clock, topics and timers, and members that speak the consumer protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from millstream.config.groups import GroupConfig
from millstream.coordination.group_records import GROUP_RECORDS
from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    Partitions,
)
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.groups.shard import GroupShard
from millstream.coordination.result import CancelTimer, CoordinatorRecord, Result


class FakeTopics:
    """Topics by name with their partition counts; ids are given in the order of creation."""

    def __init__(self, **partition_counts: int) -> None:
        self.version = 1
        self._next_id = 1
        self._ids: dict[str, UUID] = {}
        self._counts: dict[UUID, int] = {}
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> UUID:
        topic_id = UUID(int=self._next_id)
        self._next_id += 1
        self._ids[name] = topic_id
        self._counts[topic_id] = count
        self.version += 1
        return topic_id

    def grow(self, name: str, count: int) -> None:
        self._counts[self._ids[name]] = count
        self.version += 1

    def delete(self, name: str) -> None:
        del self._counts[self._ids.pop(name)]
        self.version += 1

    def names(self) -> Iterable[str]:
        return list(self._ids)

    def topic_id(self, name: str) -> UUID | None:
        return self._ids.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, known in self._ids.items() if known == topic_id), None)

    def partition_count(self, topic_id: UUID) -> int | None:
        return self._counts.get(topic_id)

    def all_partitions(self) -> set[tuple[UUID, int]]:
        return {(topic_id, p) for topic_id, count in self._counts.items() for p in range(count)}


class ShardDriver:
    """Does what the broker's runtime does: writes records to a log, replays them, keeps timers."""

    def __init__(
        self,
        topics: FakeTopics,
        settings: GroupSettings | None = None,
        config: GroupConfig | None = None,
    ) -> None:
        self.topics = topics
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[tuple[str, ...], int] = {}
        self.answers: dict[object, Any] = {}
        self._settings = settings or GroupSettings(group_initial_rebalance_delay_ms=0)
        # Most tests want to see a target as soon as it is due.
        self.config = config or GroupConfig(consumer_assignment_interval_ms=0)
        self._suffixes = 0
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            self._settings, self.topics, self._new_suffix, group_config=lambda _: self.config
        )

    def _new_suffix(self) -> str:
        self._suffixes += 1
        return f"given-{self._suffixes}"

    def apply(self, result: Result[Any]) -> Any:
        """Append and replay the records, set the timers, deliver the answers."""
        for record in result.records:
            encoded = GROUP_RECORDS.encode(record.key, record.value)
            self.log.append(encoded)
            self.shard.replay(_decoded(encoded))
        for timer in result.timers:
            if isinstance(timer, CancelTimer):
                self.timers.pop(timer.name, None)
            else:
                self.timers[timer.name] = timer.deadline_ms
        for answer in result.answers:
            self.answers[answer.token] = answer.response
        return result.response

    def advance(self, duration_ms: int) -> None:
        """Let time pass; timers fire in their order."""
        end_ms = self.now_ms + duration_ms
        while self.timers:
            name, deadline_ms = min(self.timers.items(), key=lambda item: (item[1], item[0]))
            if deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            del self.timers[name]
            self.apply(self.shard.handle_timer(name, self.now_ms))
        self.now_ms = end_ms

    def reload(self, *, compacted: bool = False) -> None:
        """Another broker takes over: all that it knows is the log."""
        records = _compacted(self.log) if compacted else self.log
        self.timers.clear()
        self.shard = self._new_shard()
        for encoded in records:
            self.shard.replay(_decoded(encoded))
        self.apply(self.shard.loaded(self.now_ms))

    def heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        response = self.apply(self.shard.consumer_groups.heartbeat(request, self.now_ms))
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def group(self, group_id: str = "g") -> ConsumerGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group


def _compacted(log: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The last record of each key, where it stood."""
    last = {key: position for position, (key, _) in enumerate(log)}
    return [record for position, record in enumerate(log) if last[record[0]] == position]


def _decoded(encoded: tuple[bytes, bytes | None]) -> CoordinatorRecord:
    record = GROUP_RECORDS.decode(*encoded)
    assert record is not None
    return CoordinatorRecord(*record)


class Member:
    """A client of the consumer protocol: it does what it is told, when the test says so."""

    def __init__(
        self,
        driver: ShardDriver,
        member_id: str,
        *topics: str,
        group_id: str = "g",
        **fields: Any,
    ) -> None:
        self.driver = driver
        self.epoch = 0
        self.owned: Partitions = {}
        self.assigned: Partitions = {}  # as it was last told
        self._join = ConsumerHeartbeat(
            group_id,
            member_id,
            0,
            rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", 60_000),
            topic_names=topics or None if "topic_regex" in fields else topics,
            owned={},
            **fields,
        )
        self._regular = ConsumerHeartbeat(
            group_id, member_id, 0, instance_id=self._join.instance_id
        )

    @property
    def member_id(self) -> str:
        return self._join.member_id

    def join(self, **changes: Any) -> ConsumerHeartbeatResponse:
        self.owned = {}
        self._join = replace(self._join, **changes)
        return self._send(self._join)

    def beat(self, **changes: Any) -> ConsumerHeartbeatResponse:
        """A heartbeat that says only what changed, as clients do."""
        return self._send(replace(self._regular, member_epoch=self.epoch, **changes))

    def acknowledge(self) -> ConsumerHeartbeatResponse:
        """Take on and give up what it was told, and say so."""
        self.owned = self.assigned
        return self.beat(owned=self.owned)

    def leave(self, epoch: int = -1) -> ConsumerHeartbeatResponse:
        return self.driver.heartbeat(replace(self._regular, member_epoch=epoch))

    def _send(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        response = self.driver.heartbeat(request)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = response.assignment
        return response

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(t, partition) for t, held in self.assigned.items() for partition in held}


def settle(*members: Member, rounds: int = 10) -> None:
    """Heartbeats of all until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.assigned) for member in members]
        for member in members:
            member.acknowledge()
        if before == [(member.epoch, member.assigned) for member in members]:
            return
    raise AssertionError("the group does not come to rest")
