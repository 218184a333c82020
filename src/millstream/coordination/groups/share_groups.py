"""Share groups (KIP-932): heartbeats, leaving, timeouts, initialization of state.

A heartbeat is handled in four steps, the first three as in consumer groups:

    1  the member is created or changed; when that, or a change of the topics, matters to the
       assignment, the group epoch is bumped
    2  when the group epoch is ahead of the assignment, the target is recomputed, at most every
       `share.assignment.interval.ms`: a timer makes up for what was put off
    3  the member goes over to its target
    4  partitions that somebody subscribes to and the persister knows nothing of are written down as
       initializing, and the runtime is asked to initialize them

Only initialized partitions are assigned. When the runtime reports them (`state_initialized`), the
target is computed at once, and the runtime repeats the heartbeat that asked for them, so that a new
group has its partitions after one round trip. (Kafka answers first, initializes after, and assigns
with a later heartbeat.) What was written down as initializing when the coordinator died is
asked for again by the next heartbeat; the persister does not mind.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from millstream.coordination.group_records import ShareGroupMetadataKey
from millstream.coordination.groups.assignors import Assignment, Subscriber
from millstream.coordination.groups.consumer_prospect import metadata_hash
from millstream.coordination.groups.group import (
    Group,
    GroupContext,
    GroupSettings,
    group_timer,
)
from millstream.coordination.groups.share import (
    ShareGroup,
    epoch_record,
    member_tombstones,
    target_epoch_record,
    target_records,
)
from millstream.coordination.groups.share_assignor import SIMPLE_ASSIGNOR, assign_simple
from millstream.coordination.groups.share_member import LEAVE_EPOCH, ShareMember
from millstream.coordination.groups.share_messages import (
    Initialization,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from millstream.coordination.groups.share_state_partitions import (
    NO_STATE,
    NamedPartitions,
    Partitions,
    StatePartitions,
)
from millstream.coordination.result import CoordinatorRecord, Result, ResultBuilder
from millstream.coordination.share_state import NO_START_OFFSET, SharePartitionKey
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

MEMBER_ID_CHARACTERS_MAX = 36  # of a UUID as text: what clients send


class ShareGroups:
    """The share groups of a shard. They are in the shard's `groups`, with all other groups."""

    def __init__(self, groups: dict[str, Group], context: GroupContext) -> None:
        self.groups = groups
        self.context = context
        # Initializations in progress, with their deadlines. A reload drops them.
        self._initializing_until_ms: dict[SharePartitionKey, int] = {}

    # --- records ---------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any | None) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ShareGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ShareGroup(key.group_id, self)
        if value is None and isinstance(key, ShareGroupMetadataKey):
            del self.groups[key.group_id]
        else:
            group.replay(key, value)

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat, now_ms: int) -> Result[ShareHeartbeatResponse]:
        _validate(request)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        is_joining = request.member_epoch == 0
        group = self.group_to_be(request.group_id) if is_joining else self.group(request.group_id)
        _require_room(group, request.member_id, self.context.settings)
        before = _member_for(group, request)
        updated = _updated(before, request)
        out = ResultBuilder()
        members = group.members
        is_changed = is_joining and before.member_id not in members
        if is_changed or updated != before:
            out.extend((updated.subscription_record(group.group_id),))
            members = {**members, updated.member_id: updated}
        is_changed |= updated.topic_names != before.topic_names
        epoch = self._bump_epoch(group, members, is_changed, out)
        target_epoch, target = self._target_for(group, members, updated, epoch, out, now_ms)
        after = updated
        if updated.epoch != target_epoch or epoch > group.epoch:
            assigned = self._subscribed_part(updated, target)
            after = updated.moved_to(target_epoch, assigned, known_epoch=request.member_epoch)
        if after != updated:
            out.extend((after.assignment_record(group.group_id),))
        self._extend_session(group, updated, out, now_ms)
        # A full heartbeat gets a full answer; so does a member that missed its last epoch.
        sends_assignment = (
            request.topic_names is not None
            or request.member_epoch != before.epoch
            or before.assigned != after.assigned
        )
        return out.result(
            ShareHeartbeatResponse(
                after.member_id,
                after.epoch,
                self.context.group_config(group.group_id).share_heartbeat_interval_ms,
                after.assigned if sends_assignment else None,
                self._begin_initialization(group, members, epoch, out, now_ms),
            )
        )

    def _bump_epoch(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareMember],
        is_changed: bool,
        out: ResultBuilder,
    ) -> int:
        """The group epoch, bumped if a member, the topics or initialized partitions changed."""
        topics = self.context.topics
        names = _subscribed(group, members)
        bump = is_changed or (
            group.assignment_epoch >= group.epoch and self._is_assignment_short(group, names)
        )
        if not bump and group.compared_version == topics.version:
            return group.epoch
        fingerprint = metadata_hash(names, topics)
        group.compared_version = topics.version
        if not bump and fingerprint == group.metadata_hash:
            return group.epoch
        out.extend((epoch_record(group.group_id, group.epoch + 1, fingerprint),))
        return group.epoch + 1

    def _is_assignment_short(self, group: ShareGroup, names: Iterable[str]) -> bool:
        """Whether some subscribed, initialized partition is not assigned."""
        assignable = group.state.assignable()
        ids = map(self.context.topics.topic_id, names)
        return any(t in assignable and assignable[t] != group.covered(t) for t in ids if t)

    def _target_for(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareMember],
        member: ShareMember,
        epoch: int,
        out: ResultBuilder,
        now_ms: int,
    ) -> tuple[int, Assignment]:
        """The target's epoch and the member's part of it, recomputed if needed."""
        if group.assignment_epoch < epoch:
            interval_ms = self.context.group_config(group.group_id).share_assignment_interval_ms
            due_ms = group.assignment_timestamp_ms + interval_ms
            if not group.assignment_timestamp_ms or now_ms >= due_ms:
                targets = self._assign(group, members, group.state, epoch, out, now_ms)
                return epoch, targets[member.member_id]
            out.set_timer(group_timer(group.group_id, "assign"), due_ms)
        return group.assignment_epoch, group.target_of(member.member_id)

    def _assign(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareMember],
        state: StatePartitions,
        epoch: int,
        out: ResultBuilder,
        now_ms: int,
    ) -> dict[str, Assignment]:
        """Compute the target assignment of the new group state, and write the differences."""
        targets = assign_simple(
            {
                member_id: Subscriber(self._topic_ids(member), group.target_of(member_id))
                for member_id, member in members.items()
            },
            state.assignable(),
        )
        out.extend(target_records(group, sorted(targets.items())))
        out.extend((target_epoch_record(group.group_id, epoch, now_ms),))
        return targets

    def _subscribed_part(self, member: ShareMember, target: Assignment) -> Assignment:
        """The member's part of the target, which may be older than its subscription."""
        topic_ids = self._topic_ids(member)
        return {t: partitions for t, partitions in target.items() if t in topic_ids}

    def _topic_ids(self, member: ShareMember) -> frozenset[UUID]:
        """The topics that the member is subscribed to, and that exist."""
        ids = map(self.context.topics.topic_id, member.topic_names)
        return frozenset(topic_id for topic_id in ids if topic_id is not None)

    # --- state to initialize ---------------------------------------------------------------------

    def _begin_initialization(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareMember],
        epoch: int,
        out: ResultBuilder,
        now_ms: int,
    ) -> Initialization | None:
        """Record partitions to initialize, unless that is in progress."""
        missing: dict[UUID, NamedPartitions] = {}
        for name in _subscribed(group, members):
            topic_id = self.context.topics.topic_id(name)
            if topic_id is not None:
                partitions = self._uninitialized(group, topic_id, now_ms)
                if partitions:
                    missing[topic_id] = NamedPartitions(name, partitions)
        if not missing:
            return None
        return self.begin_initialization(
            group, missing, dict.fromkeys(_flat(missing), NO_START_OFFSET), epoch, out, now_ms
        )

    def _uninitialized(self, group: ShareGroup, topic_id: UUID, now_ms: int) -> frozenset[int]:
        known = group.state.initialized.get(topic_id)
        count = self.context.topics.partition_count(topic_id) or 0
        if known is not None and len(known.partitions) == count:
            return frozenset()
        return frozenset(
            partition
            for partition in range(count)
            if (known is None or partition not in known.partitions)
            and self._may_initialize(SharePartitionKey(group.group_id, topic_id, partition), now_ms)
        )

    def _may_initialize(self, key: SharePartitionKey, now_ms: int) -> bool:
        return self._initializing_until_ms.get(key, 0) <= now_ms

    def begin_initialization(
        self,
        group: ShareGroup,
        partitions: Partitions,
        start_offsets: Mapping[tuple[UUID, int], int],
        state_epoch: int,
        out: ResultBuilder,
        now_ms: int,
    ) -> Initialization:
        """Partitions to initialize; not requested again until the runtime reports the result."""
        out.extend((group.state.initialization_begun(partitions).record(group.group_id),))
        until_ms = now_ms + self.context.settings.group_share_initialize_retry_interval_ms
        initialization = Initialization(group.group_id, state_epoch, start_offsets)
        self._initializing_until_ms |= dict.fromkeys(initialization.share_partitions(), until_ms)
        return initialization

    def still_to_initialize(self, initialization: Initialization) -> Initialization:
        """Recorded partitions that are neither initialized nor deleted yet."""
        group = self.groups.get(initialization.group_id)
        state = group.state if isinstance(group, ShareGroup) else NO_STATE
        left = set(_flat(state.initializing)) - set(_flat(state.initialized))
        start_offsets = {p: o for p, o in initialization.start_offsets.items() if p in left}
        return initialization._replace(start_offsets=start_offsets)

    def state_initialized(
        self, group_id: str, partitions: Collection[tuple[UUID, int]], now_ms: int
    ) -> Result[ErrorCode]:
        """The persister has the state of these partitions: they can be assigned."""
        self._forget_initializing(group_id, partitions)
        group, done = self.group(group_id), self._named(partitions)
        if not done:  # their topics were deleted
            return Result(response=ErrorCode.NONE)
        state = group.state.initialization_done(done)
        out = ResultBuilder()
        out.extend((state.record(group_id),))
        if group.members:
            fingerprint = metadata_hash(group.subscribers, self.context.topics)
            out.extend((epoch_record(group_id, group.epoch + 1, fingerprint),))
            self._assign(group, group.members, state, group.epoch + 1, out, now_ms)
        return out.result(ErrorCode.NONE)

    def initialization_failed(
        self, group_id: str, partitions: Collection[tuple[UUID, int]]
    ) -> Result[ErrorCode]:
        """The next heartbeat may retry; the persister may have the state nevertheless."""
        self._forget_initializing(group_id, partitions)
        return Result(response=ErrorCode.NONE)

    def _forget_initializing(self, group_id: str, partitions: Collection[tuple[UUID, int]]) -> None:
        for partition in partitions:
            self._initializing_until_ms.pop(SharePartitionKey(group_id, *partition), None)

    def _named(self, partitions: Collection[tuple[UUID, int]]) -> Partitions:
        """The partitions by topic; those of deleted topics are omitted."""
        by_topic: dict[UUID, set[int]] = {}
        for topic_id, partition in partitions:
            by_topic.setdefault(topic_id, set()).add(partition)
        names = {topic_id: self.context.topics.topic_name(topic_id) for topic_id in by_topic}
        return {
            topic_id: NamedPartitions(name, frozenset(by_topic[topic_id]))
            for topic_id, name in names.items()
            if name is not None
        }

    def topic_deleted(self, topic_id: UUID) -> list[CoordinatorRecord]:
        """The topic was deleted: remove its state from all groups."""
        return [
            group.state.without_topics({topic_id}).record(group.group_id)
            for group in self.groups.values()
            if isinstance(group, ShareGroup) and topic_id in group.state.topic_ids()
        ]

    # --- leaving, and timeouts ------------------------------------------------------------------

    def _leave(self, request: ShareHeartbeat) -> Result[ShareHeartbeatResponse]:
        group = self.group(request.group_id)
        out = ResultBuilder()
        self._fence(group, group.member(request.member_id), "it left", out)
        return out.result(ShareHeartbeatResponse(request.member_id, request.member_epoch))

    def _fence(
        self, group: ShareGroup, member: ShareMember, reason: str, out: ResultBuilder
    ) -> None:
        """Remove a member. What it held is redelivered when the locks of the records end."""
        logger.info(
            "share group %s: removed member %s: %s", group.group_id, member.member_id, reason
        )
        out.cancel_timer(group_timer(group.group_id, "session", member.member_id))
        out.extend(member_tombstones(group.group_id, member.member_id))
        left = {m: other for m, other in group.members.items() if m != member.member_id}
        fingerprint = metadata_hash(_subscribed(group, left), self.context.topics)
        out.extend((epoch_record(group.group_id, group.epoch + 1, fingerprint),))

    def _extend_session(
        self, group: ShareGroup, member: ShareMember, out: ResultBuilder, now_ms: int
    ) -> None:
        session_ms = self.context.group_config(group.group_id).share_session_timeout_ms
        out.set_timer(group_timer(group.group_id, "session", member.member_id), now_ms + session_ms)

    def loaded(self, group: ShareGroup, now_ms: int) -> Result[None]:
        out = ResultBuilder()
        for member in group.members.values():
            self._extend_session(group, member, out, now_ms)
        return out.result()

    def timer_fired(self, group: ShareGroup, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        out = ResultBuilder()
        match name:
            case ("assign",):
                if group.members and group.assignment_epoch < group.epoch:
                    self._assign(group, group.members, group.state, group.epoch, out, now_ms)
            case ("session", member_id):
                if member_id in group.members:
                    member = group.members[member_id]
                    self._fence(group, member, "its session timed out", out)
        return out.result()

    # --- which group -----------------------------------------------------------------------------

    def group(self, group_id: str) -> ShareGroup:
        """Raises GROUP_ID_NOT_FOUND, also for a group of another kind."""
        group = self.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            what = "not found" if group is None else "is not a share group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        return group

    def group_to_be(self, group_id: str) -> ShareGroup:
        """The group, or a new one that its records create when they are replayed."""
        return self.group(group_id) if group_id in self.groups else ShareGroup(group_id, self)

    def describe(self, group_id: str) -> ShareGroupDescription:
        group = self.group(group_id)
        return ShareGroupDescription(
            group_id,
            state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=SIMPLE_ASSIGNOR,
            members=tuple(group.members.values()),
        )


def _validate(request: ShareHeartbeat) -> None:
    """Raise INVALID_REQUEST for an invalid request."""
    _require(
        0 < len(request.member_id) <= MEMBER_ID_CHARACTERS_MAX, "Invalid member id in the request."
    )
    _require(bool(request.group_id), "GroupId can't be empty.")
    _require(request.rack_id != "", "RackId can't be empty.")
    if request.member_epoch == 0:
        _require(bool(request.topic_names), "SubscribedTopicNames must be set in first request.")
    _require(request.member_epoch >= LEAVE_EPOCH, "MemberEpoch is invalid.")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _require_room(group: ShareGroup, member_id: str, settings: GroupSettings) -> None:
    if member_id not in group.members and len(group.members) >= settings.group_share_max_size:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            "The share group has reached its maximum capacity of "
            f"{settings.group_share_max_size} members.",
        )


def _member_for(group: ShareGroup, request: ShareHeartbeat) -> ShareMember:
    """The member before this heartbeat; a member with an unexpected epoch is fenced.

    Its previous epoch is valid too: then it did not receive the answer with the new one.
    """
    if request.member_epoch == 0:
        return group.members.get(request.member_id) or ShareMember(request.member_id)
    member = group.member(request.member_id)
    if request.member_epoch not in (member.epoch, member.previous_epoch):
        size = "greater" if request.member_epoch > member.epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a {size} member epoch ({request.member_epoch}) than the "
            f"one known by the group coordinator ({member.epoch}). The member must abandon all "
            "its partitions and rejoin.",
        )
    return member


def _updated(member: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """The member with what its heartbeat says; what it does not say stays."""
    names = request.topic_names
    return replace(
        member,
        rack_id=request.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=member.topic_names if names is None else frozenset(names),
    )


def _subscribed(group: ShareGroup, members: Mapping[str, ShareMember]) -> Iterable[str]:
    """The topics that these members subscribe to."""
    if members is group.members:
        return group.subscribers
    return {name for member in members.values() for name in member.topic_names}


def _flat(partitions: Partitions) -> list[tuple[UUID, int]]:
    return [(t, partition) for t, named in partitions.items() for partition in named.partitions]
