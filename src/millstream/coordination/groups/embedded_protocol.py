"""What members of classic consumer groups say to each other inside JoinGroup and SyncGroup.

To the classic protocol these bytes are opaque. A consumer group with classic members (`upgrade.py`)
must read their subscriptions and write their assignments, since there is no leader to do it.

    subscription   int16 version, topics, user data; from 1: owned partitions; from 2: generation;
                   from 3: rack
    assignment     int16 version, partitions by topic name, user data

Versions only add fields at the end, so a later one is read as the last that we know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.group import Topics
from millstream.coordination.record_codec import (
    BYTES,
    INT32,
    NULLABLE_STRING,
    STRING,
    ArrayOf,
    CorruptRecord,
    Field,
    Schema,
)

_NEWEST_VERSION = 3
_NULLABLE_BYTES = replace(BYTES, nullable=True)


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddedSubscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[NamedPartitions, ...] = ()
    generation: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedAssignment:
    assigned_partitions: tuple[NamedPartitions, ...]
    user_data: bytes | None = None


_NAMED_PARTITIONS: Schema[Any] = Schema(
    NamedPartitions, (Field("topic", STRING), Field("partitions", ArrayOf(INT32)))
)
_SUBSCRIPTION = Schema(
    EmbeddedSubscription,
    (
        Field("topics", ArrayOf(STRING)),
        Field("user_data", _NULLABLE_BYTES),
        Field("owned_partitions", ArrayOf(_NAMED_PARTITIONS), since=1, default=()),
        Field("generation", INT32, since=2, default=-1),
        Field("rack_id", NULLABLE_STRING, since=3),
    ),
)
_ASSIGNMENT = Schema(
    EmbeddedAssignment,
    (
        Field("assigned_partitions", ArrayOf(_NAMED_PARTITIONS)),
        Field("user_data", _NULLABLE_BYTES),
    ),
)


def version_of(message: bytes) -> int:
    if len(message) < 2:
        raise CorruptRecord("an embedded consumer protocol message without a version")
    version: int = struct.unpack_from(">h", message)[0]
    if version < 0:
        raise CorruptRecord(f"version {version} of the embedded consumer protocol")
    return min(version, _NEWEST_VERSION)


def decode_subscription(message: bytes) -> EmbeddedSubscription:
    """Raises `CorruptRecord` for bytes that are no subscription."""
    return _SUBSCRIPTION.decode(message, version_of(message), position=2)


def encode_subscription(subscription: EmbeddedSubscription, version: int) -> bytes:
    return struct.pack(">h", version) + _SUBSCRIPTION.encode(subscription, version)


def decode_assignment(message: bytes) -> EmbeddedAssignment:
    """Raises `CorruptRecord` for bytes that are no assignment."""
    return _ASSIGNMENT.decode(message, version_of(message), position=2)


def encode_assignment(assignment: EmbeddedAssignment, version: int) -> bytes:
    return struct.pack(">h", version) + _ASSIGNMENT.encode(assignment, version)


def by_topic_id(partitions: tuple[NamedPartitions, ...], topics: Topics) -> Assignment:
    """The partitions under their topics' ids; topics that are gone are left out."""
    found: dict[UUID, frozenset[int]] = {}
    for named in partitions:
        topic_id = topics.topic_id(named.topic)
        if topic_id is not None and named.partitions:
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(named.partitions)
    return found


def by_topic_name(
    partitions: Mapping[UUID, Iterable[int]], topics: Topics
) -> tuple[NamedPartitions, ...]:
    """The partitions under their topics' names; topics that are gone are left out."""
    named = [(topics.topic_name(topic_id), held) for topic_id, held in partitions.items()]
    return tuple(
        NamedPartitions(name, tuple(sorted(held)))
        for name, held in sorted((name, held) for name, held in named if name is not None)
    )
