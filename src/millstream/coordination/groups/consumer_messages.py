"""Requests and responses of the consumer protocol (KIP-848), independent of protocol versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from millstream.coordination.groups.consumer_member import ConsumerMember
from millstream.errors import ErrorCode

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
MayDescribe: TypeAlias = Callable[[str], bool]


def may_describe_all(topic: str) -> bool:
    """The right of a client to see topics, where there is no authorizer."""
    return True


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A heartbeat; None (or -1) in a field means that it has not changed since the last one."""

    group_id: str
    member_id: str
    member_epoch: int  # 0 to join, -1 to leave, -2 for a static member that will be back
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    api_version: int = 1
    # Whether the client may see a topic: an expression matches only those.
    may_describe: MayDescribe = field(default=may_describe_all, compare=False, repr=False)

    @property
    def is_full(self) -> bool:
        """Whether it contains all fields, as after an error: then the answer does too."""
        subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribed and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None  # None: as before


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    member: ConsumerMember
    assigned: Partitions  # including those to be given up
    target: Partitions


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """ConsumerGroupDescribe's answer for one group."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
