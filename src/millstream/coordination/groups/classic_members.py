"""The members of a classic group, their common protocols and the leader.

Members come in two kinds. A *dynamic* member is known by the id that the coordinator gave it. A
*static* member (KIP-345) also has an instance id of its own choosing: when it comes back under that
instance id, it takes the old member's place, and a request that still carries the old member id is
fenced.

A protocol here is an assignor: every member offers some, in its order of preference, each with
metadata that only clients understand. The group uses one that all of them offer.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millstream.coordination.group_records import ClassicMemberRecord, ClassicProtocol
from millstream.errors import ApiError, ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. All but the waiting tokens and `is_new` is persisted with each generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]
    assignment: bytes = b""
    # Volatile: the request that waits for the join, or for the leader's assignment, to complete.
    join_token: object | None = None
    sync_token: object | None = None
    is_new: bool = False  # its id was not sent to it yet, so it cannot send heartbeats

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def needs_no_heartbeat(self) -> bool:
        """A known member with a waiting request is assumed to be alive."""
        waits = self.join_token is not None or self.sync_token is not None
        return waits and not self.is_new

    def metadata(self, protocol_name: str | None) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """Its preferred candidate."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def as_record(self, protocol_name: str | None, assignment: bytes) -> ClassicMemberRecord:
        return ClassicMemberRecord(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

    @classmethod
    def from_record(cls, record: ClassicMemberRecord, protocol_name: str | None) -> ClassicMember:
        rebalance_timeout_ms = record.rebalance_timeout_ms
        if rebalance_timeout_ms == -1:  # written before there was one
            rebalance_timeout_ms = record.session_timeout_ms
        return cls(
            member_id=record.member_id,
            group_instance_id=record.group_instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=record.session_timeout_ms,
            protocols=(ClassicProtocol(protocol_name or "", record.subscription),),
            assignment=record.assignment,
        )


class Membership:
    """The members of one group by id and by instance id, the leader, and those about to join."""

    def __init__(self) -> None:
        self._members: dict[str, ClassicMember] = {}
        self._static_ids: dict[str, str] = {}  # instance id -> member id
        # Ids handed out with MEMBER_ID_REQUIRED whose owners have not come back yet. Volatile.
        self.pending_ids: set[str] = set()
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicMember | None:
        return self._members.get(member_id)

    def static_member(self, group_instance_id: str | None) -> ClassicMember | None:
        member_id = self._static_ids.get(group_instance_id or "")
        return self._members.get(member_id) if member_id is not None else None

    def validate(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member; raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for one replaced."""
        if group_instance_id is not None:
            static = self.static_member(group_instance_id)
            if static is not None and static.member_id != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Member {static.member_id} has taken over the instance id "
                    f"{group_instance_id!r}; two consumers use the same group.instance.id.",
                )
            if static is None:
                raise _unknown_member(member_id)
        member = self._members.get(member_id)
        if member is None:
            raise _unknown_member(member_id)
        return member

    def add(self, member: ClassicMember) -> None:
        if member.group_instance_id is not None:
            self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._members[member.member_id] = member
        self.pending_ids.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        self.pending_ids.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is None:
            return
        if member.group_instance_id is not None:
            self._static_ids.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)

    def rename(self, member: ClassicMember, new_member_id: str) -> None:
        """Give a static member's place to its successor."""
        del self._members[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = new_member_id
        member.member_id = new_member_id
        self._members[new_member_id] = member
        self._static_ids[member.group_instance_id or ""] = new_member_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        leader = self._members.get(self.leader_id or "")
        if leader is not None and leader.join_token is not None:
            return True
        for member in self._members.values():
            if member.join_token is not None:
                self.leader_id = member.member_id
                return True
        return False

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.join_token is not None for member in self._members.values())

    @property
    def all_have_joined(self) -> bool:
        return not self.pending_ids and self.awaiting_join_count == len(self._members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def common_protocols(self) -> set[str]:
        """The protocols that every member offers."""
        offers = [{protocol.name for protocol in member.protocols} for member in self]
        return set.intersection(*offers) if offers else set()

    def shares_a_protocol(self, names: Iterable[str]) -> bool:
        return not self._members or not self.common_protocols().isdisjoint(names)

    def select_protocol(self) -> str:
        """Each member votes for its preferred common protocol; most votes win."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self._members.values())
        return votes.most_common(1)[0][0]


def _unknown_member(member_id: str) -> ApiError:
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"The group has no member {member_id!r}: it left or its session timed out; join again.",
    )


def subscribed_topics(metadata: bytes) -> set[str]:
    """The topics in a consumer's subscription; raises ValueError for malformed bytes.

    Layout (every version begins like version 0): int16 version, int32 count, then for each topic an
    int16 length and UTF-8.
    """
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position, topics = 6, set()
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            if size < 0 or position + 2 + size > len(metadata):
                raise ValueError("a topic name past the end of the subscription")
            topics.add(metadata[position + 2 : position + 2 + size].decode())
            position += 2 + size
    except struct.error as error:
        raise ValueError(f"not a consumer's subscription: {error}") from error
    return topics
