"""The consumer protocol (KIP-848): heartbeats, leaving, timeouts.

Everything a member does is a heartbeat. One is handled in three steps:

    1  the member is created or changed; when that, or a change of the topics, matters to the
       assignment, the group epoch is bumped
    2  when the group epoch is ahead of the assignment, the target is recomputed, at most every
       `consumer.assignment.interval.ms`: a timer makes up for what was put off (Kafka
       waits for the next heartbeat)
    3  the member takes a step from what it owns towards its target

A member that sends no heartbeat within the session timeout, or does not give up its partitions
within its rebalance timeout, is fenced: it is removed, and its partitions are free.

Regular expressions are resolved synchronously, not in a thread as in Kafka: RE2 matches a name in
two microseconds. New topics are matched with the first heartbeat ten seconds or more after the last
time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from millstream.coordination.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
)
from millstream.coordination.groups import upgrade
from millstream.coordination.groups.assignors import (
    NO_PARTITIONS,
    Assignment,
    Subscriber,
    assignor_named,
)
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    SyncRequest,
)
from millstream.coordination.groups.consumer import (
    ConsumerGroup,
    epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from millstream.coordination.groups.consumer_assignment import Reconciliation, reconcile
from millstream.coordination.groups.consumer_member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Subscription,
    owned_partitions,
)
from millstream.coordination.groups.consumer_messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DescribedConsumer,
    MayDescribe,
    Partitions,
)
from millstream.coordination.groups.consumer_prospect import Prospect
from millstream.coordination.groups.consumer_validation import (
    require_epoch,
    require_instance,
    require_released,
    require_room,
    validate_heartbeat,
)
from millstream.coordination.groups.group import Group, GroupContext, group_timer
from millstream.coordination.groups.regex import (
    ResolvedRegex,
    matching_topics,
    regex_tombstone,
    validate_regex,
)
from millstream.coordination.result import Result, ResultBuilder
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

REGEX_REFRESH_INTERVAL_MIN_MS = 10_000
_MEMBER_TIMERS = ("session", "rebalance", "join", "sync")


class ConsumerGroups:
    """The consumer groups of a shard. They are in the shard's `groups`, with all other groups."""

    def __init__(self, groups: dict[str, Group], context: GroupContext) -> None:
        self.groups = groups
        self.context = context

    # --- records ---------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any | None) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id, self)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            del self.groups[key.group_id]
        else:
            group.replay(key, value)

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerHeartbeat, now_ms: int
    ) -> Result[ConsumerHeartbeatResponse]:
        validate_heartbeat(request, self.context.settings.group_consumer_assignors)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, now_ms)
        out = ResultBuilder()
        group = self._group_for(request, out, now_ms)
        require_room(group, request.member_id, request.instance_id, self.context.settings)
        if not request.member_id:  # only in version 0: later clients choose their own
            request = replace(request, member_id=self.context.new_member_suffix())
        before = self._member_for(group, request, out)
        updated, owned = _updated(before, request), request.owned
        after = self.advance(group, before, updated, owned, out, now_ms, request.may_describe)
        self.extend_session(group, after, out, now_ms)
        sends_assignment = (
            request.member_epoch == 0 or request.is_full or before.assigned != after.assigned
        )
        return out.result(
            ConsumerHeartbeatResponse(
                after.member_id,
                after.epoch,
                self.context.group_config(group.group_id).consumer_heartbeat_interval_ms,
                {t: frozenset(p) for t, p in after.assigned.items()} if sends_assignment else None,
            )
        )

    def _group_for(
        self, request: ConsumerHeartbeat, out: ResultBuilder, now_ms: int
    ) -> ConsumerGroup:
        """The group, or a new one that its records create when they are replayed."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None and request.member_epoch == 0:
            return ConsumerGroup(request.group_id, self)
        if group is None or request.member_epoch != 0:
            raise group_not_found(request.group_id, group)
        return upgrade.to_consumer_group(self, group, out, now_ms)

    def _member_for(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, out: ResultBuilder
    ) -> ConsumerMember:
        """The member as it was before this heartbeat: known, new, or in a predecessor's place."""
        if request.instance_id is None:
            if request.member_epoch == 0:
                return group.members.get(request.member_id) or ConsumerMember(request.member_id)
            member = group.member(request.member_id)
            require_epoch(member, request)
            return member
        predecessor = group.static_member(request.instance_id)
        if request.member_epoch != 0:
            member = require_instance(group, predecessor, request.member_id, request.instance_id)
            require_epoch(member, request)
            return member
        if predecessor is None:
            return ConsumerMember(request.member_id)
        if not predecessor.uses_classic_protocol:
            require_released(predecessor, request)
        return self.succeed(group, predecessor, request.member_id, out)

    def succeed(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, out: ResultBuilder
    ) -> ConsumerMember:
        """A static member rejoins under a new id and keeps its partitions."""
        new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        out.extend(
            (
                *member_tombstones(group.group_id, old.member_id),
                new.subscription_record(group.group_id),
                target_record(group.group_id, member_id, group.target_of(old)),
                new.assignment_record(group.group_id),
            )
        )
        return new

    # --- the three steps -------------------------------------------------------------------------

    def advance(
        self,
        group: ConsumerGroup,
        before: ConsumerMember,
        updated: ConsumerMember,
        owned: Partitions | None,
        out: ResultBuilder,
        now_ms: int,
        may_describe: MayDescribe | None = None,
    ) -> ConsumerMember:
        """Advance the member and its group as far as possible; returns the changed member. With
        `may_describe`, expressions are resolved, to topics that the member's client may see."""
        prospect = self.enrol(group, before, updated, out, now_ms, may_describe)
        epoch, target = self._target_for(prospect, updated, out, now_ms)
        changed = before.subscription != updated.subscription
        return self.step(prospect, updated, epoch, target, owned, changed, out, now_ms)

    def enrol(
        self,
        group: ConsumerGroup,
        before: ConsumerMember,
        updated: ConsumerMember,
        out: ResultBuilder,
        now_ms: int,
        may_describe: MayDescribe | None,
    ) -> Prospect:
        """Step 1: write changes of the member, and bump the group epoch if needed."""
        prospect = Prospect(group)
        is_known = before.member_id in group.members
        if updated != before or not is_known:
            prospect.put(updated)
            out.extend((updated.subscription_record(group.group_id),))
        is_new = not is_known and group.static_member(updated.instance_id) is None
        bump = is_new or before.subscription != updated.subscription
        self._forget_regexes(prospect, out)
        if may_describe is not None:
            bump |= self._resolve_regexes(prospect, out, now_ms, may_describe)
        self._bump_epoch(prospect, bump, out)
        return prospect

    def _forget_regexes(self, prospect: Prospect, out: ResultBuilder) -> None:
        """Drop expressions to which nobody subscribes any more."""
        unwanted = prospect.resolved.keys() - prospect.regexes()
        if unwanted:
            for regex in sorted(unwanted):
                out.extend((regex_tombstone(prospect.group.group_id, regex),))
            prospect.resolved = {
                regex: known for regex, known in prospect.resolved.items() if regex not in unwanted
            }

    def _resolve_regexes(
        self, prospect: Prospect, out: ResultBuilder, now_ms: int, may_describe: MayDescribe
    ) -> bool:
        """Resolve new expressions, refresh old ones; returns whether topics changed."""
        group, topics = prospect.group, self.context.topics
        wanted = prospect.regexes()
        resolved = dict(prospect.resolved)
        due = wanted - resolved.keys()
        for regex in due:
            validate_regex(regex)
        if (
            wanted
            and group.matched_version != topics.version
            and now_ms >= group.matched_at_ms + REGEX_REFRESH_INTERVAL_MIN_MS
        ):
            due = wanted
            group.matched_version, group.matched_at_ms = topics.version, now_ms
        changed = False
        for regex in sorted(due):
            known = resolved.get(regex)
            matched = frozenset(filter(may_describe, matching_topics(regex, topics.names())))
            if known is None or known.topics != matched:
                changed = True
                resolved[regex] = ResolvedRegex(matched, topics.version, now_ms)
                out.extend((resolved[regex].record(group.group_id, regex),))
        prospect.resolved = resolved
        return changed

    def _bump_epoch(self, prospect: Prospect, bump: bool, out: ResultBuilder) -> None:
        """Bump the group epoch if requested, or if the subscribed topics have changed."""
        group, topics = prospect.group, self.context.topics
        if not bump and group.compared_version == topics.version:
            return
        fingerprint = prospect.metadata_hash(topics)
        group.compared_version = topics.version
        if not bump and fingerprint == group.metadata_hash:
            return
        prospect.epoch = group.epoch + 1
        out.extend((epoch_record(group.group_id, prospect.epoch, fingerprint),))
        if group.has_legacy_metadata:
            out.write(ConsumerGroupPartitionMetadataKey(group.group_id), None)

    def _target_for(
        self, prospect: Prospect, member: ConsumerMember, out: ResultBuilder, now_ms: int
    ) -> tuple[int, Assignment]:
        """Step 2: the target's epoch and the member's part of it, recomputed if needed."""
        group = prospect.group
        if group.assignment_epoch < prospect.epoch:
            interval_ms = self.context.group_config(group.group_id).consumer_assignment_interval_ms
            due_ms = group.assignment_timestamp_ms + interval_ms
            if not group.assignment_timestamp_ms or now_ms >= due_ms:
                targets = self._assign(prospect, out, now_ms)
                return prospect.epoch, targets.get(member.member_id, NO_PARTITIONS)
            out.set_timer(group_timer(group.group_id, "assign"), due_ms)
        return group.assignment_epoch, group.target_of(member)

    def _assign(self, prospect: Prospect, out: ResultBuilder, now_ms: int) -> dict[str, Assignment]:
        """Compute the target assignment of the new group state, and write the differences."""
        group, topics = prospect.group, self.context.topics
        members = list(prospect.members())
        topic_ids = {s: prospect.topic_ids(s, topics) for s in prospect.subscriptions}
        every_id: frozenset[UUID] = frozenset().union(*topic_ids.values())
        counts = {topic_id: topics.partition_count(topic_id) or 0 for topic_id in every_id}
        default = self.context.settings.group_consumer_assignors[0]
        assign = assignor_named(group.preferred_assignor(default, members))
        targets = assign(
            {
                member.member_id: Subscriber(
                    topic_ids[member.subscription], group.target_of(member), member.instance_id
                )
                for member in members
            },
            counts,
        )
        out.extend(
            tuple(
                target_record(group.group_id, member_id, target)
                for member_id, target in sorted(targets.items())
                if group.target.get(member_id) != target
            )
        )
        out.extend((target_epoch_record(group.group_id, prospect.epoch, now_ms),))
        return targets

    def step(
        self,
        prospect: Prospect,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        owned: Partitions | None,
        subscription_changed: bool,
        out: ResultBuilder,
        now_ms: int,
    ) -> ConsumerMember:
        """Step 3: move the member towards its target."""
        if member.is_reconciled_to(target_epoch) and not subscription_changed:
            return member
        group = prospect.group
        after = reconcile(
            member,
            Reconciliation(
                target_epoch=target_epoch,
                target=target,
                subscribed_topics=prospect.topic_ids(member.subscription, self.context.topics),
                subscription_changed=subscription_changed,
                owned=owned,
                is_owned=group.is_owned,
            ),
        )
        if after != member:
            out.extend((after.assignment_record(group.group_id),))
            timer = group_timer(group.group_id, "rebalance", after.member_id)
            if after.uses_classic_protocol:
                pass  # a join and a sync timer watch over it
            elif after.state is MemberState.UNREVOKED_PARTITIONS:
                out.set_timer(timer, now_ms + after.rebalance_timeout_ms)
            else:
                out.cancel_timer(timer)
        return after

    # --- leaving ---------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat, now_ms: int) -> Result[ConsumerHeartbeatResponse]:
        group = self.group(request.group_id)
        out = ResultBuilder()
        response = ConsumerHeartbeatResponse(request.member_id, request.member_epoch)
        if request.instance_id is None:
            self.fence(group, [group.member(request.member_id)], "it left", out, now_ms)
            return out.result(response)
        member = require_instance(
            group, group.static_member(request.instance_id), request.member_id, request.instance_id
        )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            # It will rejoin: its session continues, and it keeps its partitions.
            out.extend((member.left_for_a_while().assignment_record(group.group_id),))
        else:
            self.fence(group, [member], "it left", out, now_ms)
        return out.result(response)

    def fence(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        reason: str,
        out: ResultBuilder,
        now_ms: int,
    ) -> None:
        """Remove members. When only classic ones are left, the group goes back to classic."""
        if not members:
            return
        for member in members:
            logger.info("group %s: removed member %s: %s", group.group_id, member.member_id, reason)
            for timer in _MEMBER_TIMERS:
                out.cancel_timer(group_timer(group.group_id, timer, member.member_id))
        if upgrade.can_downgrade(group, members, self.context.settings):
            upgrade.to_classic_group(self, group, members, out, now_ms)
            return
        prospect = Prospect(group)
        for member in members:
            out.extend(tuple(member_tombstones(group.group_id, member.member_id)))
            prospect.remove(member)
        self._forget_regexes(prospect, out)
        self._bump_epoch(prospect, True, out)

    # --- timers ----------------------------------------------------------------------------------

    def extend_session(
        self, group: ConsumerGroup, member: ConsumerMember, out: ResultBuilder, now_ms: int
    ) -> None:
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        else:
            session_ms = self.context.group_config(group.group_id).consumer_session_timeout_ms
        out.set_timer(group_timer(group.group_id, "session", member.member_id), now_ms + session_ms)

    def loaded(self, group: ConsumerGroup, now_ms: int) -> Result[None]:
        out = ResultBuilder()
        for member in group.members.values():
            self.extend_session(group, member, out, now_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS and not member.classic:
                timer = group_timer(group.group_id, "rebalance", member.member_id)
                out.set_timer(timer, now_ms + member.rebalance_timeout_ms)
        return out.result()

    def timer_fired(self, group: ConsumerGroup, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        out = ResultBuilder()
        match name:
            case ("assign",):
                if group.members and group.assignment_epoch < group.epoch:
                    self._assign(Prospect(group), out, now_ms)
            case ("session", member_id):
                self._fence_if_there(group, member_id, "its session timed out", out, now_ms)
            case ("rebalance", member_id):
                member = group.members.get(member_id)
                if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
                    reason = f"it gave up no partitions in {member.rebalance_timeout_ms} ms"
                    self.fence(group, [member], reason, out, now_ms)
            case ("join" | "sync" as phase, member_id):
                reason = f"it did not {phase} within its rebalance timeout"
                self._fence_if_there(group, member_id, reason, out, now_ms)
        return out.result()

    def _fence_if_there(
        self, group: ConsumerGroup, member_id: str, reason: str, out: ResultBuilder, now_ms: int
    ) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self.fence(group, [member], reason, out, now_ms)

    # --- the classic protocol in a consumer group -----------------------------------------

    def classic_join(
        self, group: ConsumerGroup, request: JoinRequest, token: object, now_ms: int
    ) -> Result[Any]:
        return upgrade.join(self, group, request, token, now_ms)

    def classic_sync(
        self, group: ConsumerGroup, request: SyncRequest, token: object, now_ms: int
    ) -> Result[Any]:
        return upgrade.sync(self, group, request, token, now_ms)

    def classic_heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int
    ) -> Result[Any]:
        return upgrade.heartbeat(self, group, request, now_ms)

    def classic_leave(
        self, group: ConsumerGroup, request: LeaveRequest, now_ms: int
    ) -> Result[Any]:
        return upgrade.leave(self, group, request, now_ms)

    # --- description -----------------------------------------------------------------------------

    def group(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise group_not_found(group_id, group)
        return group

    def describe(self, group_id: str) -> ConsumerGroupDescription:
        """Raises GROUP_ID_NOT_FOUND, also for a group of another kind."""
        group = self.group(group_id)
        default = self.context.settings.group_consumer_assignors[0]
        return ConsumerGroupDescription(
            group_id,
            state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=group.preferred_assignor(default, group.members.values()),
            members=tuple(
                DescribedConsumer(
                    member,
                    owned_partitions(member),
                    group.target.get(member.member_id, NO_PARTITIONS),
                )
                for member in group.members.values()
            ),
        )


def group_not_found(group_id: str, group: Group | None) -> ApiError:
    what = "was not found" if group is None else "is not a consumer group"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the changes of its heartbeat."""
    names, regex = member.subscription
    if request.topic_names is not None:
        names = frozenset(request.topic_names)
    if request.topic_regex is not None:
        regex = request.topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscription=Subscription(names, regex),
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        classic=None,
    )
