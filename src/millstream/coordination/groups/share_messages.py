"""Requests and responses of share groups (KIP-932), free of the wire's versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.share_member import ShareMember
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A heartbeat; None in a field means that it has not changed since the last one."""

    group_id: str
    member_id: str
    member_epoch: int  # 0 to join, -1 to leave
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class Initialization(NamedTuple):
    """Share partitions whose state is to be initialized, each with the offset to begin at."""

    group_id: str
    state_epoch: int
    start_offsets: Mapping[tuple[UUID, int], int]

    def share_partitions(self) -> list[SharePartitionKey]:
        return [SharePartitionKey(self.group_id, *partition) for partition in self.start_offsets]


@dataclass(frozen=True, slots=True)
class ShareHeartbeatResponse:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None  # None: as before
    # What must be initialized before the member can be given all that it subscribed to.
    initialization: Initialization | None = None


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """ShareGroupDescribe's answer for one group."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ShareMember, ...] = ()


class AlteredPartition(NamedTuple):
    """The outcome of AlterShareGroupOffsets for one partition, before its state was written."""

    topic: str
    topic_id: UUID | None  # None: there is no such topic
    partition: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class AlteredOffsets:
    partitions: tuple[AlteredPartition, ...]
    initialization: Initialization


class DeletedTopic(NamedTuple):
    """A topic of DeleteShareGroupOffsets: refused, or with the partitions whose state must go."""

    topic: str
    topic_id: UUID | None = None
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    keys: tuple[SharePartitionKey, ...] = ()
