"""One shard of the group coordinator: groups and offsets of one partition of `__consumer_offsets`.

Events come in as method calls with `now_ms`; every method returns a `Result`, or raises `ApiError`,
in which case nothing happened. The runtime appends the result's records and hands each to `replay`,
which alone changes what is durable. To load a shard from its partition, the runtime replays the
same records, then calls `loaded`. Unpersisted state (joining members, waiting requests, session
deadlines) is volatile, as in Kafka; a reload drops it, and clients rejoin.

A request that must wait (JoinGroup, SyncGroup) comes with a `token`; it is answered by an `Answer`
for that token in this result or in a later one.

There is one namespace: `groups` maps a group id to its group, of any kind. Records of consumer
groups (KIP-848) are replayed by `consumer_groups`, which also answers members of either protocol in
such a group; those of share groups (KIP-932) by `share_groups`.

Offsets committed in a transaction come to `replay_pending`, and the end of the transaction to
`replay_end_transaction`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from millstream.config.groups import GroupConfig
from millstream.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
)
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_messages import (
    GroupDescription,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeftMember,
    SyncRequest,
)
from millstream.coordination.groups.classic_state import ClassicState
from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_groups import ConsumerGroups
from millstream.coordination.groups.group import (
    UNKNOWN_MEMBER_ID,
    Group,
    GroupContext,
    GroupKind,
    GroupOverview,
    GroupSettings,
    NoTopics,
    Topics,
    require_group_id,
)
from millstream.coordination.groups.offsets import (
    CommitRequest,
    CommittedPartition,
    FetchedOffset,
    FetchRequest,
    OffsetStore,
    group_not_found,
)
from millstream.coordination.groups.share_groups import ShareGroups
from millstream.coordination.result import (
    Answer,
    CoordinatorRecord,
    Result,
    SetTimer,
    combine,
)
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

EXPIRY_TIMER = ("shard", "expire-offsets")


CONSUMER_GROUP_KEYS = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)
SHARE_GROUP_KEYS = (
    ShareGroupMetadataKey,
    ShareGroupMemberMetadataKey,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupStatePartitionMetadataKey,
)


class GroupShard:
    """The groups and offsets of one partition of `__consumer_offsets`."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        topics: Topics | None = None,
        new_member_suffix: Callable[[], str] = lambda: str(uuid.uuid4()),
        group_config: Callable[[str], GroupConfig] | None = None,
    ) -> None:
        self.context = GroupContext(
            settings or GroupSettings(), topics or NoTopics(), new_member_suffix
        )
        if group_config is not None:
            self.context.group_config = group_config
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self.consumer_groups = ConsumerGroups(self.groups, self.context)
        self.share_groups = ShareGroups(self.groups, self.context)

    # --- records

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record: when it was appended, and again when the shard is loaded."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            self._replay_offset(key, value)
        elif isinstance(key, GroupMetadataKey):
            self._replay_classic(key.group_id, value)
        elif isinstance(key, CONSUMER_GROUP_KEYS):
            self.consumer_groups.replay(key, value)
        elif isinstance(key, SHARE_GROUP_KEYS):
            self.share_groups.replay(key, value)

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None and key.group_id not in self.groups:
            self._create_classic(key.group_id)  # a simple group: it has no record of its own
        self.offsets.replay(key, value)

    def replay_pending(self, record: CoordinatorRecord, producer_id: int) -> None:
        """The same for a record of an open transaction: only offsets are committed in those."""
        key, value = record.key, record.value
        if not isinstance(key, OffsetCommitKey) or value is None:
            return
        if key.group_id not in self.groups:
            self._create_classic(key.group_id)
        self.offsets.replay_pending(key, value, producer_id)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, committed)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                group.state = ClassicState.DEAD
                del self.groups[group_id]
            return
        if not isinstance(group, ClassicGroup):
            group = self._create_classic(group_id)
        group.replay(value)

    def _create_classic(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, self.context)
        self.groups[group_id] = group
        return group

    def loaded(self, now_ms: int) -> Result[None]:
        """Every record has been replayed: set the timers."""
        expiry: Result[None] = Result(timers=(self._next_expiry(now_ms),))
        return combine([expiry, *(group.loaded(now_ms) for group in self.groups.values())])

    # --- the classic protocol

    def join_group(self, request: JoinRequest, token: object, now_ms: int) -> Result[Any]:
        """JoinGroup: the answer (a `JoinResponse`) comes for `token`."""
        require_group_id(request.group_id)
        self._require_session_timeout(request.session_timeout_ms)
        group = self.groups.get(request.group_id)
        retired: tuple[CoordinatorRecord, ...] = ()
        if group is not None and group.kind is not GroupKind.CLASSIC:
            if not group.is_empty or group.kind is not GroupKind.CONSUMER:
                return self._join_other_kind(group, request, token, now_ms)
            retired = group.tombstones()  # an empty consumer group becomes a classic one
            group = None
        if group is None and request.member_id != UNKNOWN_MEMBER_ID:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Group {request.group_id} has no member {request.member_id}; join without an id.",
            )
        if group is None:
            return self._join_new_group(request, token, now_ms, retired)
        assert isinstance(group, ClassicGroup)
        return group.join(request, token, now_ms)

    def _join_new_group(
        self,
        request: JoinRequest,
        token: object,
        now_ms: int,
        retired: tuple[CoordinatorRecord, ...],
    ) -> Result[Any]:
        """The first member of a group. A record makes the group known before anything else."""
        group = ClassicGroup(request.group_id, self.context)
        result = group.join(request, token, now_ms)
        self.groups[request.group_id] = group
        created = GroupMetadataValue("", 0, None, None, now_ms)
        record = CoordinatorRecord(GroupMetadataKey(request.group_id), created)
        return Result((*retired, record, *result.records), None, result.answers, result.timers)

    def _join_other_kind(
        self, group: Group, request: JoinRequest, token: object, now_ms: int
    ) -> Result[Any]:
        if isinstance(group, ConsumerGroup):
            return self.consumer_groups.classic_join(group, request, token, now_ms)
        response = JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID)
        return Result(answers=(Answer(token, response),))

    def sync_group(self, request: SyncRequest, token: object, now_ms: int) -> Result[Any]:
        """SyncGroup: the answer (a `SyncResponse`) comes for `token`."""
        group = self._group_of_member(request.group_id, request.member_id)
        if isinstance(group, ClassicGroup):
            return group.sync(request, token, now_ms)
        return self.consumer_groups.classic_sync(group, request, token, now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Result[ErrorCode]:
        """Heartbeat: NONE, or REBALANCE_IN_PROGRESS when the member should rejoin."""
        group = self._group_of_member(request.group_id, request.member_id)
        if isinstance(group, ClassicGroup):
            return group.heartbeat(request, now_ms)
        return self.consumer_groups.classic_heartbeat(group, request, now_ms)

    def leave_group(self, request: LeaveRequest, now_ms: int) -> Result[tuple[LeftMember, ...]]:
        """LeaveGroup: the outcome for each member."""
        group = self._group_of_member(request.group_id, "")
        if isinstance(group, ClassicGroup):
            return group.leave(request, now_ms)
        return self.consumer_groups.classic_leave(group, request, now_ms)

    def _group_of_member(self, group_id: str, member_id: str) -> ClassicGroup | ConsumerGroup:
        require_group_id(group_id)
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Group {group_id} has no member {member_id!r}; rejoin.",
            )
        return group

    def _require_session_timeout(self, session_timeout_ms: int) -> None:
        settings = self.context.settings
        low = settings.group_min_session_timeout_ms
        high = settings.group_max_session_timeout_ms
        if not low <= session_timeout_ms <= high:
            raise ApiError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"Session timeout {session_timeout_ms} ms is out of range: {low} to {high} ms "
                "(group.min.session.timeout.ms, group.max.session.timeout.ms).",
            )

    # --- offsets

    def commit_offsets(
        self, request: CommitRequest, now_ms: int
    ) -> Result[tuple[CommittedPartition, ...]]:
        """OffsetCommit and TxnOffsetCommit: the outcome for each partition."""
        group, committer = self.groups.get(request.group_id), request.committer
        kept_alive: Result[None] = Result()
        validator = None
        if group is not None:
            validator = group.validate_offset_commit(committer)
            if isinstance(group, ClassicGroup) and not committer.is_transactional:
                kept_alive = group.offset_committed(committer.member_id, now_ms)
        elif committer.generation_or_epoch >= 0:
            if committer.api_version >= 9:
                raise group_not_found(request.group_id)
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION, f"Group {request.group_id} was deleted; rejoin."
            )
        records, outcomes = self.offsets.commit(
            request,
            validator,
            metadata_max_bytes=self.context.settings.offset_metadata_max_bytes,
            now_ms=now_ms,
        )
        return Result(tuple(records), outcomes, timers=kept_alive.timers)

    def fetch_offsets(self, request: FetchRequest) -> tuple[FetchedOffset, ...]:
        """OffsetFetch: the offsets, -1 where there is none. An unknown group has none."""
        group = self.groups.get(request.group_id)
        if group is not None:
            group.validate_offset_fetch(request.member_id, request.member_epoch)
        return self.offsets.fetch(request)

    def delete_offsets(
        self, group_id: str, topics: Iterable[tuple[str, tuple[int, ...]]]
    ) -> Result[tuple[CommittedPartition, ...]]:
        """OffsetDelete: the outcome for each partition."""
        group = self._group(group_id)
        group.validate_offset_delete()
        records, outcomes = self.offsets.delete(group, topics)
        return Result(tuple(records), outcomes)

    def topic_deleted(self, topic: str, topic_id: uuid.UUID) -> Result[None]:
        """A topic was deleted: delete its committed offsets and share groups' offsets."""
        offsets = self.offsets.delete_topic(topic, topic_id)
        return Result((*offsets, *self.share_groups.topic_deleted(topic_id)))

    # --- administration

    def delete_group(self, group_id: str) -> Result[ErrorCode]:
        """DeleteGroups, for one group. Raises GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP."""
        group = self._group(group_id)
        group.validate_delete()
        offsets = tuple(self.offsets.delete_group(group_id))
        return Result((*offsets, *group.tombstones()), ErrorCode.NONE)

    def list_groups(self) -> list[GroupOverview]:
        return [
            GroupOverview(group.group_id, group.protocol_type, group.state_name, group.kind)
            for group in self.groups.values()
        ]

    def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups knows classic groups only: raises GROUP_ID_NOT_FOUND for others."""
        group = self.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        if not isinstance(group, ClassicGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
            )
        return group.describe()

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        return group

    # --- timers and metadata

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        """A timer that some result had set fired: ("group", group id, ...) or ("shard", ...)."""
        if name == EXPIRY_TIMER:
            return self._expire_offsets(now_ms)
        group = self.groups.get(name[1])
        return group.handle_timer(name[2:], now_ms) if group is not None else Result()

    def _expire_offsets(self, now_ms: int) -> Result[None]:
        retention_ms = self.context.settings.offsets_retention_ms
        records: list[CoordinatorRecord] = []
        for group in list(self.groups.values()):
            if group.kind is GroupKind.SHARE:
                continue
            expired, none_left = self.offsets.expire(
                group, retention_ms=retention_ms, now_ms=now_ms
            )
            records += expired
            if none_left and group.is_empty and not _has_pending_members(group):
                records += group.tombstones()
        if records:
            logger.info("removing expired offsets and groups: %d records", len(records))
        return Result(tuple(records), timers=(self._next_expiry(now_ms),))

    def _next_expiry(self, now_ms: int) -> SetTimer:
        interval_ms = self.context.settings.offsets_retention_check_interval_ms
        return SetTimer(EXPIRY_TIMER, now_ms + interval_ms)

    def topics_changed(self, topics: Topics, now_ms: int) -> Result[None]:
        """The cluster's topics changed."""
        self.context.topics = topics
        return combine(group.topics_changed(now_ms) for group in list(self.groups.values()))


def _has_pending_members(group: Group) -> bool:
    """Whether a member id was handed out whose member has not joined yet."""
    return isinstance(group, ClassicGroup) and bool(group.members.pending_ids)
