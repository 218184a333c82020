"""The interface of all kinds of groups, and the context they depend on.

A shard holds groups of several kinds under one name space: a group id is classic, consumer
(KIP-848) or share (KIP-932), never two at once. Offsets belong to the id, not to the kind, so the
commands on offsets ask the group only a few questions, whatever its kind; they make up `Group`.

`GroupContext` is everything a group depends on: settings and topics. Time and randomness are
parameters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from millstream.config.groups import GroupConfig
from millstream.coordination.group_records import OffsetCommitValue
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.errors import ApiError, ErrorCode

UNKNOWN_MEMBER_ID = ""
UNKNOWN_GENERATION = -1
_DEFAULT_GROUP_CONFIG = GroupConfig()

# Called for each partition of a commit, with topic, topic id and partition; raises `ApiError`.
PartitionValidator: TypeAlias = Callable[[str, uuid.UUID, int], None]


class GroupKind(Enum):
    """A group's type, by the name that ListGroups gives it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker settings for groups: Kafka's names with underscores."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    group_max_session_timeout_ms: int = 1_800_000
    group_min_session_timeout_ms: int = 6_000
    # A member without an id cannot send heartbeats, so its JoinGroup itself times out.
    group_new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2_147_483_647
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_share_max_size: int = 200
    group_share_initialize_retry_interval_ms: int = 30_000


class Topics(Protocol):
    """The cluster's topics, as groups see them."""

    @property
    def version(self) -> int:
        """Incremented with every change of the metadata."""
        ...

    def names(self) -> Iterable[str]: ...

    def topic_id(self, name: str) -> uuid.UUID | None: ...

    def topic_name(self, topic_id: uuid.UUID) -> str | None: ...

    def partition_count(self, topic_id: uuid.UUID) -> int | None: ...


class NoTopics:
    """The topics of an empty cluster."""

    version = 0

    def names(self) -> Iterable[str]:
        return ()

    def topic_id(self, name: str) -> uuid.UUID | None:
        return None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return None

    def partition_count(self, topic_id: uuid.UUID) -> int | None:
        return None


@dataclass(slots=True)
class GroupContext:
    """The context of groups. The shard replaces `topics` when the metadata changes."""

    settings: GroupSettings
    topics: Topics
    # Suffixes of member ids: random in the broker, counted in tests and simulations.
    new_member_suffix: Callable[[], str] = lambda: str(uuid.uuid4())
    # The group's own settings, overriding the broker's (`consumer.session.timeout.ms`, ...).
    group_config: Callable[[str], GroupConfig] = lambda group_id: _DEFAULT_GROUP_CONFIG


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    kind: GroupKind


class Group(Protocol):
    """A group of any kind, as the shard and the commands on offsets see it."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    @property
    def protocol_type(self) -> str:
        """`consumer` for consumers, "" for a simple group, anything for classic ones."""
        ...

    @property
    def state_name(self) -> str:
        """The name in ListGroups and DescribeGroups: Empty, Stable, PreparingRebalance, ..."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    @property
    def member_count(self) -> int: ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes the topic; True if unknown."""
        ...

    def validate_offset_commit(self, commit: OffsetCommitter) -> PartitionValidator | None:
        """Raise `ApiError` unless this committer may commit; may return a check per partition."""
        ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def validate_offset_delete(self) -> None: ...

    def validate_delete(self) -> None:
        """Raise NON_EMPTY_GROUP unless the group may be deleted."""
        ...

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """The records that remove the group, its offsets excepted."""
        ...

    def offset_expiry_base_ms(self, offset: OffsetCommitValue) -> int | None:
        """Start of the retention of an unsubscribed topic's offset; None if not started."""
        ...

    def loaded(self, now_ms: int) -> Result[None]:
        """The log has been replayed: set the timers of the members."""
        ...

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        """A timer of this group fired; `name` is what follows ("group", group id)."""
        ...

    def topics_changed(self, now_ms: int) -> Result[None]:
        """The cluster's topics changed (`context.topics` is new)."""
        ...


@dataclass(frozen=True, slots=True)
class OffsetCommitter:
    """The committer of offsets, from the request."""

    member_id: str
    generation_or_epoch: int
    group_instance_id: str | None
    api_version: int
    is_transactional: bool = False


def group_timer(group_id: str, *name: str) -> tuple[str, ...]:
    """The full name of a group's timer."""
    return ("group", group_id, *name)


def require_group_id(group_id: str | None) -> None:
    if not group_id:
        raise ApiError(
            ErrorCode.INVALID_GROUP_ID, "The group id is empty; set the client's group.id."
        )
