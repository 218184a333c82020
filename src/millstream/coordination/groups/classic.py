"""The classic group protocol: join, sync, heartbeat, leave (clients' `group.protocol=classic`).

Theory of operation. Members join; the group waits until all have (or time is up), increments the
generation, picks a protocol and sends the list of members to the *leader*. The leader computes the
assignment and sends it with its SyncGroup; the SyncGroups of all other members wait for that. Then
the group is stable until a member joins, leaves or times out, and a new rebalance starts.

    EMPTY --join--> PREPARING_REBALANCE --all joined--> COMPLETING_REBALANCE --leader syncs-> STABLE
      ^                   |  ^  ^                              |                                |
      +---nobody left-----+  |  +--member joins, leaves, dies--+                                |
                             +--------------member joins, leaves, dies--------------------------+

The durable state is in `classic_record.py`. A record is written, and replayed into the group,
when a generation becomes stable, when a static member is replaced in a stable group, and when the
group becomes empty. Everything else is volatile and only in this object: the two rebalancing
states, members that are joining, requests that wait, session deadlines. A reload goes back to the
last durable generation; members learn of it (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) and rejoin.
Event methods raise `ApiError` before they change anything.

What the members say to each other (subscriptions, assignments) is opaque here, with one exception:
of `consumer` groups the subscribed topics are read, to know which offsets are in use.
"""

from __future__ import annotations

import logging
from typing import Any

from millstream.coordination.group_records import GroupMetadataKey, GroupMetadataValue
from millstream.coordination.groups.classic_members import ClassicMember
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from millstream.coordination.groups.classic_record import ClassicGroupRecord
from millstream.coordination.groups.classic_state import (
    TRANSITIONS,
    ClassicState,
    InvalidTransition,
)
from millstream.coordination.groups.group import (
    UNKNOWN_MEMBER_ID,
    GroupContext,
    group_timer,
)
from millstream.coordination.result import Result, ResultBuilder
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)


class ClassicGroup(ClassicGroupRecord):
    """One classic group. See the module's docstring for what is durable and what is not."""

    def __init__(self, group_id: str, context: GroupContext) -> None:
        super().__init__(group_id)
        self._context = context
        # Volatile: members of this generation that have not sent their SyncGroup yet.
        self._pending_sync_ids: set[str] = set()
        # Volatile: the first rebalance waits for more members, and again after each new one.
        self._is_initial_rebalance = False
        self._member_came_meanwhile = False
        self._initial_delay_ms = 0
        self._initial_remaining_ms = 0

    # --- join

    def join(self, request: JoinRequest, token: object, now_ms: int) -> Result[None]:
        """A member joins or rejoins. The answer comes for `token`, now or when all have joined."""
        self._require_alive()
        out = ResultBuilder()
        if not self._has_room_for(request.member_id):
            self._remove(request.member_id, out)
            out.answer(token, JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
            return out.result()
        self._require_common_protocol(request)
        if request.member_id == UNKNOWN_MEMBER_ID:
            self._join_as_newcomer(request, token, now_ms, out)
        elif request.member_id in self.members.pending_ids:
            self._add_member(request, request.member_id, token, now_ms, out)
        else:
            self._rejoin(request, token, now_ms, out)
        return out.result()

    def _join_as_newcomer(
        self, request: JoinRequest, token: object, now_ms: int, out: ResultBuilder
    ) -> None:
        prefix = request.group_instance_id or request.client_id
        member_id = f"{prefix}-{self._context.new_member_suffix()}"
        predecessor = self.members.static_member(request.group_instance_id)
        if predecessor is not None:
            self._replace_static(predecessor, member_id, request, token, now_ms, out)
        elif request.group_instance_id is None and request.requires_member_id:
            self.members.pending_ids.add(member_id)
            out.set_timer(self._session_timer(member_id), now_ms + request.session_timeout_ms)
            out.answer(token, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(request, member_id, token, now_ms, out)

    def _add_member(
        self, request: JoinRequest, member_id: str, token: object, now_ms: int, out: ResultBuilder
    ) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        if self.state is ClassicState.PREPARING_REBALANCE and self._is_initial_rebalance:
            self._member_came_meanwhile = True
        self.members.add(
            ClassicMember(
                member_id=member_id,
                group_instance_id=request.group_instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                session_timeout_ms=request.session_timeout_ms,
                protocols=request.protocols,
                join_token=token,
                is_new=True,
            )
        )
        # Without its id it cannot send heartbeats. If its client is gone, this ends the wait.
        deadline_ms = now_ms + self._context.settings.group_new_member_join_timeout_ms
        out.set_timer(self._session_timer(member_id), deadline_ms)
        self._rebalance_or_complete(f"member {member_id} joins", now_ms, out)

    def _rejoin(self, request: JoinRequest, token: object, now_ms: int, out: ResultBuilder) -> None:
        member = self.members.validate(request.member_id, request.group_instance_id)
        unchanged = member.protocols == request.protocols
        leads = self.leader_id == member.member_id
        if self.state is ClassicState.COMPLETING_REBALANCE and unchanged:
            out.answer(token, self._joined(member))  # its first answer was lost
        elif self.state is ClassicState.STABLE and unchanged and not leads:
            out.answer(token, self._joined(member))
        else:
            # A leader may always trigger a rebalance: it may see changes that we cannot.
            self._update_member(member, request, token, out)
            self._rebalance_or_complete(f"member {member.member_id} rejoins", now_ms, out)

    def _update_member(
        self, member: ClassicMember, request: JoinRequest, token: object, out: ResultBuilder
    ) -> None:
        if member.join_token is not None:  # a repeated request: end the earlier one
            out.answer(
                member.join_token, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            )
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.join_token = token

    def _replace_static(
        self,
        member: ClassicMember,
        new_member_id: str,
        request: JoinRequest,
        token: object,
        now_ms: int,
        out: ResultBuilder,
    ) -> None:
        """A static member rejoins and takes its old place; a stable group stays stable."""
        old_leader, old_member_id = self.leader_id, member.member_id
        self._fence_waiting(member, out)
        out.cancel_timer(self._session_timer(old_member_id))
        self._pending_sync_ids.discard(old_member_id)
        self.members.rename(member, new_member_id)
        self._update_member(member, request, token, out)
        self._extend_session(member, now_ms, out)
        reason = f"static member {request.group_instance_id} comes back as {new_member_id}"
        if self.state is not ClassicState.STABLE:
            self._rebalance_or_complete(reason, now_ms, out)
        elif self.members.select_protocol() != self.protocol_name:
            self._rebalance_or_complete(f"{reason} with another protocol", now_ms, out)
        else:
            logger.info("group %s: %s, without a rebalance", self.group_id, reason)
            assignments = {m.member_id: m.assignment for m in self.members}
            out.write(GroupMetadataKey(self.group_id), self.as_value(assignments, now_ms))
            member.join_token = None
            out.answer(token, self._rejoined_static(member, request, old_leader))

    def _rejoined_static(
        self, member: ClassicMember, request: JoinRequest, old_leader: str | None
    ) -> JoinResponse:
        """The answer to a static member that rejoins a stable group.

        From v9 on, a leader is marked as leader and asked not to assign. An older one would assign
        if it saw itself as leader, so it gets the leader's old id.
        """
        leads = self.leader_id == member.member_id
        can_skip = request.can_skip_assignment
        return JoinResponse(
            ErrorCode.NONE,
            member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=(self.leader_id if can_skip else old_leader) or "",
            skip_assignment=can_skip and leads,
            members=self._joined_members() if can_skip and leads else (),
        )

    def _fence_waiting(self, member: ClassicMember, out: ResultBuilder) -> None:
        if member.join_token is not None:
            fenced = JoinResponse(ErrorCode.FENCED_INSTANCE_ID, member.member_id)
            out.answer(member.join_token, fenced)
        if member.sync_token is not None:
            out.answer(member.sync_token, SyncResponse(ErrorCode.FENCED_INSTANCE_ID))
        member.join_token = member.sync_token = None

    # --- rebalance

    def _rebalance_or_complete(self, reason: str, now_ms: int, out: ResultBuilder) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE:
            self._prepare_rebalance(reason, now_ms, out)
        elif not self._is_initial_rebalance and self.members.all_have_joined:
            self._complete_join(now_ms, out)

    def _prepare_rebalance(self, reason: str, now_ms: int, out: ResultBuilder) -> None:
        logger.info("group %s: rebalance after %d: %s", self.group_id, self.generation, reason)
        if self.state is ClassicState.COMPLETING_REBALANCE:
            for member in self.members:
                self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
        self._pending_sync_ids.clear()
        out.cancel_timer(self._timer("sync"))
        self._is_initial_rebalance = self.is_empty
        self._move_to(ClassicState.PREPARING_REBALANCE, now_ms)
        if self._is_initial_rebalance:
            self._initial_delay_ms = self._context.settings.group_initial_rebalance_delay_ms
            self._initial_remaining_ms = max(
                self.members.rebalance_timeout_ms - self._initial_delay_ms, 0
            )
            self._member_came_meanwhile = False
            out.set_timer(self._timer("join"), now_ms + self._initial_delay_ms)
        elif self.members.all_have_joined:
            self._complete_join(now_ms, out)
        else:
            out.set_timer(self._timer("join"), now_ms + self.members.rebalance_timeout_ms)

    def _initial_delay_over(self, now_ms: int, out: ResultBuilder) -> None:
        """Wait again if a member joined meanwhile, at most the rebalance timeout in total."""
        if not self._member_came_meanwhile or not self._initial_remaining_ms:
            self._complete_join(now_ms, out)
            return
        self._member_came_meanwhile = False
        waited_ms = self._initial_delay_ms
        self._initial_delay_ms = min(
            self._context.settings.group_initial_rebalance_delay_ms, self._initial_remaining_ms
        )
        self._initial_remaining_ms = max(self._initial_remaining_ms - waited_ms, 0)
        out.set_timer(self._timer("join"), now_ms + self._initial_delay_ms)

    def _complete_join(self, now_ms: int, out: ResultBuilder) -> None:
        """Start the next generation with the joined members; remove absent dynamic ones."""
        out.cancel_timer(self._timer("join"))
        for member in self.members:
            if member.join_token is None and not member.is_static:
                self._remove(member.member_id, out)
        if not len(self.members):
            self._become_empty(now_ms, out)
        elif not self.members.elect_joined_leader():
            # Only static members, none of which rejoined: wait until one does or sessions expire.
            out.set_timer(self._timer("join"), now_ms + self.members.rebalance_timeout_ms)
        else:
            self._start_generation(now_ms, out)

    def _become_empty(self, now_ms: int, out: ResultBuilder) -> None:
        """No members are left. Replaying the record moves the group to EMPTY."""
        logger.info("group %s: empty after generation %d", self.group_id, self.generation)
        value = GroupMetadataValue(self.protocol_type, self.generation + 1, None, None, now_ms)
        out.write(GroupMetadataKey(self.group_id), value)

    def _start_generation(self, now_ms: int, out: ResultBuilder) -> None:
        self.generation += 1
        self._is_initial_rebalance = False
        self.protocol_name = self.members.select_protocol()
        self._move_to(ClassicState.COMPLETING_REBALANCE, now_ms)
        logger.info(
            "group %s: generation %d of %d members, protocol %s",
            self.group_id,
            self.generation,
            len(self.members),
            self.protocol_name,
        )
        for member in self.members:
            if member.join_token is not None:
                out.answer(member.join_token, self._joined(member))
            member.join_token = None
            member.is_new = False
            member.assignment = b""
            self._extend_session(member, now_ms, out)
        self._pending_sync_ids = {member.member_id for member in self.members}
        out.set_timer(self._timer("sync"), now_ms + self.members.rebalance_timeout_ms)

    def _joined(self, member: ClassicMember) -> JoinResponse:
        leads = self.leader_id == member.member_id
        return JoinResponse(
            ErrorCode.NONE,
            member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            members=self._joined_members() if leads else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members
        )

    # --- sync, heartbeat, leave

    def sync(self, request: SyncRequest, token: object, now_ms: int) -> Result[None]:
        """A member requests its assignment; the leader sends those of all members."""
        self._require_alive()
        member = self.members.validate(request.member_id, request.group_instance_id)
        self._require_generation(request.generation)
        self._require_same_protocol(request)
        out = ResultBuilder()
        if self.state is ClassicState.PREPARING_REBALANCE:
            out.answer(token, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
            return out.result()
        self._pending_sync_ids.discard(member.member_id)
        if not self._pending_sync_ids:
            out.cancel_timer(self._timer("sync"))
        if self.state is ClassicState.STABLE:
            out.answer(token, self._synced(member.assignment))
            return out.result()
        if member.sync_token is not None:  # a repeated request: end the earlier one
            out.answer(member.sync_token, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if member.member_id == self.leader_id:
            self._accept_assignments(dict(request.assignments), now_ms, out)
        return out.result()

    def _accept_assignments(
        self, assignments: dict[str, bytes], now_ms: int, out: ResultBuilder
    ) -> None:
        """The generation is complete. Replaying the record moves the group to STABLE."""
        out.write(GroupMetadataKey(self.group_id), self.as_value(assignments, now_ms))
        for member in self.members:
            if member.sync_token is not None:
                out.answer(member.sync_token, self._synced(assignments.get(member.member_id, b"")))
                member.sync_token = None
                self._extend_session(member, now_ms, out)

    def _synced(self, assignment: bytes) -> SyncResponse:
        return SyncResponse(ErrorCode.NONE, self.protocol_type, self.protocol_name, assignment)

    def _answer_sync(
        self, member: ClassicMember, error: ErrorCode, now_ms: int, out: ResultBuilder
    ) -> None:
        if member.sync_token is not None:
            out.answer(member.sync_token, SyncResponse(error))
            member.sync_token = None
            self._extend_session(member, now_ms, out)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Result[ErrorCode]:
        self._require_alive()
        member = self.members.validate(request.member_id, request.group_instance_id)
        self._require_generation(request.generation)
        out = ResultBuilder()
        self._extend_session(member, now_ms, out)
        rebalancing = self.state is ClassicState.PREPARING_REBALANCE
        return out.result(ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE)

    def leave(self, request: LeaveRequest, now_ms: int) -> Result[tuple[LeftMember, ...]]:
        """Members leave, or an administrator removes them; each has its own result."""
        self._require_alive()
        out = ResultBuilder()
        left = tuple(self._leave_one(leaving, out) for leaving in request.members)
        if any(member.error is ErrorCode.NONE for member in left) and not self.is_empty:
            names = ", ".join(m.member_id or str(m.group_instance_id) for m in left)
            self._rebalance_or_complete(f"left: {names}", now_ms, out)
        return out.result(left)

    def _leave_one(self, leaving: LeavingMember, out: ResultBuilder) -> LeftMember:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID:
            member = self.members.static_member(instance_id)
            if member is None:
                return LeftMember(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self._remove(member.member_id, out)
        elif member_id in self.members.pending_ids:
            self._remove(member_id, out)
        else:
            try:
                self.members.validate(member_id, instance_id)
            except ApiError as error:
                return LeftMember(member_id, instance_id, error.code)
            self._remove(member_id, out)
        return LeftMember(member_id, instance_id)

    # --- timers

    def loaded(self, now_ms: int) -> Result[None]:
        out = ResultBuilder()
        for member in self.members:
            self._extend_session(member, now_ms, out)
        self._start_if_downgraded(now_ms, out)
        return out.result()

    def _start_if_downgraded(self, now_ms: int, out: ResultBuilder) -> None:
        """A consumer group that became classic is written without a leader: it must rebalance."""
        if self.state is ClassicState.STABLE and self.leader_id is None:
            self._prepare_rebalance("the consumer group became classic", now_ms, out)

    def offset_committed(self, member_id: str, now_ms: int) -> Result[None]:
        """A member's commit keeps its session alive, as a heartbeat does."""
        member = self.members.get(member_id)
        if member is None or self.state not in (
            ClassicState.STABLE,
            ClassicState.PREPARING_REBALANCE,
        ):
            return Result()
        out = ResultBuilder()
        self._extend_session(member, now_ms, out)
        return out.result()

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        out = ResultBuilder()
        match name:
            case ("session", member_id):
                self._session_over(member_id, now_ms, out)
            case ("join",) if self.state is ClassicState.PREPARING_REBALANCE:
                if self._is_initial_rebalance:
                    self._initial_delay_over(now_ms, out)
                else:
                    self._complete_join(now_ms, out)
            case ("downgraded",):
                self._start_if_downgraded(now_ms, out)
            case ("sync",) if self._pending_sync_ids:
                silent = ", ".join(sorted(self._pending_sync_ids))
                for member_id in list(self._pending_sync_ids):
                    self._remove(member_id, out)
                self._prepare_rebalance(f"no SyncGroup came from {silent}", now_ms, out)
        return out.result()

    def _session_over(self, member_id: str, now_ms: int, out: ResultBuilder) -> None:
        member = self.members.get(member_id)
        if member is not None and member.needs_no_heartbeat:
            return
        if member is None and member_id not in self.members.pending_ids:
            return
        logger.info("group %s: the session of %s timed out", self.group_id, member_id)
        was_pending = member is None
        self._remove(member_id, out)
        if self.state is ClassicState.PREPARING_REBALANCE or not (was_pending or self.is_empty):
            self._rebalance_or_complete(f"member {member_id} timed out", now_ms, out)

    def topics_changed(self, now_ms: int) -> Result[None]:
        """Members of a classic group watch the topics themselves."""
        return Result()

    # --- helpers

    def _move_to(self, state: ClassicState, now_ms: int) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"group {self.group_id}: {self.state} to {state}")
        self.state = state
        self.state_since_ms = now_ms

    def _remove(self, member_id: str, out: ResultBuilder) -> None:
        """Remove a member and answer its waiting request, so that a live client rejoins."""
        member = self.members.get(member_id)
        if member is not None and member.join_token is not None:
            gone = JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID)
            out.answer(member.join_token, gone)
        if member is not None and member.sync_token is not None:
            out.answer(member.sync_token, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)
        self._pending_sync_ids.discard(member_id)
        out.cancel_timer(self._session_timer(member_id))

    def _timer(self, name: str) -> tuple[str, ...]:
        return group_timer(self.group_id, name)

    def _session_timer(self, member_id: str) -> tuple[str, ...]:
        return group_timer(self.group_id, "session", member_id)

    def _extend_session(self, member: ClassicMember, now_ms: int, out: ResultBuilder) -> None:
        out.set_timer(self._session_timer(member.member_id), now_ms + member.session_timeout_ms)

    def _has_room_for(self, member_id: str) -> bool:
        """While members rejoin, those already back count, so that a lowered limit takes effect."""
        max_size = self._context.settings.group_max_size
        member = self.members.get(member_id)
        match self.state:
            case ClassicState.EMPTY | ClassicState.DEAD:
                return True
            case ClassicState.PREPARING_REBALANCE:
                is_back = member is not None and member.join_token is not None
                return is_back or self.members.awaiting_join_count < max_size
            case _:
                return member is not None or len(self.members) < max_size

    def _require_common_protocol(self, request: JoinRequest) -> None:
        if self.is_empty:
            fits = bool(request.protocol_type) and bool(request.protocols)
        else:
            names = {protocol.name for protocol in request.protocols}
            same_type = request.protocol_type == self.protocol_type
            fits = same_type and self.members.shares_a_protocol(names)
        if not fits:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Group {self.group_id} uses {self.protocol_type!r} with "
                f"{sorted(self.members.common_protocols())}; the member offers "
                f"{request.protocol_type!r} with {[p.name for p in request.protocols]}.",
            )

    def _require_same_protocol(self, request: SyncRequest) -> None:
        same_type = request.protocol_type in (None, self.protocol_type)
        same_name = request.protocol_name in (None, self.protocol_name)
        if not same_type or not same_name:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Generation {self.generation} of {self.group_id} uses {self.protocol_type!r}, "
                f"{self.protocol_name!r}.",
            )
