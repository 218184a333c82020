"""One shard of the group coordinator: groups and offsets of one partition of `__consumer_offsets`.

Events come in as method calls with `now_ms`; every method returns a `Result` (or raises `ApiError`, in
which case nothing happened). The shell appends the result's records and hands each to `replay`, which
alone changes what is durable. When the shell loads a shard from its partition, it replays the same
records, then calls `loaded`. What Kafka does not persist (members that are joining, requests that
wait, session deadlines) is the volatile state of the group objects; a reload forgets it, and clients
rejoin.

A request that must wait (JoinGroup, SyncGroup) comes with a `token`; it is answered by an `Answer` for
that token in this result or in a later one.

The name space is one: `groups` maps a group id to its group, of whatever kind. Records of consumer
groups (KIP-848) are replayed by the shard's `consumer_groups`, which also answers members of either
protocol in such a group.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from millstream.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
)
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    SyncRequest,
)
from millstream.coordination.groups.group import (
    Group,
    GroupContext,
    GroupKind,
    GroupSettings,
    NoTopics,
    Topics,
)
from millstream.coordination.result import CoordinatorRecord, Result


class ConsumerGroups(Protocol):
    """What the shard asks of the KIP-848 side (`consumer.py`). It keeps its groups in `shard.groups`."""

    def replay(self, key: Any, value: Any | None) -> None: ...

    # The classic protocol spoken to a consumer group that has members (`upgrade.py`):
    def classic_join(
        self, group: Any, request: JoinRequest, token: object, now_ms: int
    ) -> Result[Any]: ...

    def classic_sync(
        self, group: Any, request: SyncRequest, token: object, now_ms: int
    ) -> Result[Any]: ...

    def classic_heartbeat(
        self, group: Any, request: HeartbeatRequest, now_ms: int
    ) -> Result[Any]: ...

    def classic_leave(self, group: Any, request: LeaveRequest, now_ms: int) -> Result[Any]: ...


CONSUMER_GROUP_KEYS = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)


class GroupShard:
    """The groups and offsets of one partition of `__consumer_offsets`."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        topics: Topics | None = None,
        new_member_suffix: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.context = GroupContext(
            settings or GroupSettings(), topics or NoTopics(), new_member_suffix
        )
        self.groups: dict[str, Group] = {}
        self.consumer_groups: ConsumerGroups | None = None

    # --- records ---------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record: when it was appended, and again when the shard is loaded."""
        key = record.key
        if isinstance(key, OffsetCommitKey):
            pass
        elif isinstance(key, GroupMetadataKey):
            pass
        elif isinstance(key, CONSUMER_GROUP_KEYS) and self.consumer_groups is not None:
            self.consumer_groups.replay(key, record.value)

    def loaded(self, now_ms: int) -> Result[None]:
        """Every record has been replayed: set the timers."""
        return combine(group.loaded(now_ms) for group in self.groups.values())

    # --- timers and metadata -----------------------------------------------------------------------

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        """A timer that some result had set fired: ("group", group id, ...) or ("shard", ...)."""
        if name[0] == "group":
            group = self.groups.get(name[1])
            return group.handle_timer(name[2:], now_ms) if group is not None else Result()
        return Result()

    def topics_changed(self, topics: Topics, now_ms: int) -> Result[None]:
        """The cluster's topics changed."""
        self.context.topics = topics
        return combine(group.topics_changed(now_ms) for group in list(self.groups.values()))

    def kind_of(self, group_id: str) -> GroupKind | None:
        group = self.groups.get(group_id)
        return group.kind if group is not None else None


def combine(results: Iterable[Result[Any]]) -> Result[None]:
    """Several results as one."""
    parts = list(results)
    return Result(
        records=tuple(record for part in parts for record in part.records),
        answers=tuple(answer for part in parts for answer in part.answers),
        timers=tuple(timer for part in parts for timer in part.timers),
    )
