"""The records of `__consumer_offsets`, in the formats of Apache Kafka 4.3.

A record's key leads with its type (int16), its value with the version it is written in (int16).
Only the last record of a key counts, a null value removes it: the topic is compacted.

    type  key                          what its value says                         version written
    1     group, topic, partition      a committed offset                            4 (expiring: 1)
    2     group                        a classic group: generation and members       3
    3     group                        a consumer group (KIP-848): its epoch         0
    4     group                        legacy partition metadata: tombstones only    0
    5     group, member                a consumer group member's subscription        0
    6     group                        the epoch of the target assignment            0
    7     group, member                a member's target assignment                  0
    8     group, member                a member's current assignment                 0
    10-15 group (, member)             share groups                                  0
    16    group, regular expression    the topics that it resolved to                0

Type 0 (offsets of Kafka before 0.9) and 17 to 23 (Kafka Streams groups) are read and ignored.
docs/formats/consumer-offsets.md lays out the bytes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from millstream.coordination.record_codec import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    ArrayOf,
    Field,
    NullableStruct,
    RecordCodec,
    RecordType,
    Schema,
)
from millstream.records.batch import NO_TIMESTAMP

NO_TOPIC_ID: Final = uuid.UUID(int=0)
_ALWAYS_FLEXIBLE: Final = 0


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    offset: int
    metadata: str
    commit_timestamp_ms: int
    leader_epoch: int = -1
    expire_timestamp_ms: int = (
        NO_TIMESTAMP  # only from commits that ask for a retention time (v2-4)
    )
    topic_id: uuid.UUID = NO_TOPIC_ID  # zero if the committer did not send it


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    """A classic group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ClassicMemberRecord:
    member_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # the member's metadata for the chosen protocol
    assignment: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[ClassicMemberRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue:
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataKey:
    """Legacy (before Kafka 4.1): only ever read, or removed with a tombstone."""

    group_id: str


@dataclass(frozen=True, slots=True)
class LegacyPartitionRacks:
    partition: int
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LegacyTopicMetadata:
    topic_id: uuid.UUID
    topic_name: str
    partition_count: int
    partition_racks: tuple[LegacyPartitionRacks, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataValue:
    topics: tuple[LegacyTopicMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol that a member offers: an assignor's name and its opaque metadata."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """The data of a consumer group member that still uses the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int
    assignment_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic_id: uuid.UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class EpochedTopicPartitions:
    """Partitions of a topic; where given, `assignment_epochs` says since when each is assigned."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int
    previous_member_epoch: int
    state: int  # Kafka's MemberState: 0 stable, 1 unrevoked partitions, 2 unreleased, 127 unknown
    assigned_partitions: tuple[EpochedTopicPartitions, ...]
    partitions_pending_revocation: tuple[EpochedTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey:
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...]
    version: int  # of the metadata that it was resolved against
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ShareGroupMemberMetadataKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupMemberMetadataValue:
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupMetadataValue:
    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True)
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int
    assignment_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ShareGroupTargetAssignmentMemberKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupStatePartitionMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class NamedTopicPartitions:
    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedTopic:
    topic_id: uuid.UUID
    topic_name: str


@dataclass(frozen=True, slots=True)
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: tuple[NamedTopicPartitions, ...]
    initialized_topics: tuple[NamedTopicPartitions, ...]
    deleting_topics: tuple[NamedTopic, ...]


GroupRecordKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)

# --- schemas ------------------------------------------------------------------------------------

_GROUP = (Field("group_id", STRING),)
_GROUP_MEMBER = (*_GROUP, Field("member_id", STRING))


def _flexible(cls: type[Any], *fields: Field) -> Schema[Any]:
    return Schema(cls, fields, flexible_since=_ALWAYS_FLEXIBLE)


_OFFSET_COMMIT_VALUE = Schema(
    OffsetCommitValue,
    (
        Field("offset", INT64),
        Field("leader_epoch", INT32, since=3, default=-1),
        Field("metadata", STRING),
        Field("commit_timestamp_ms", INT64),
        Field("expire_timestamp_ms", INT64, since=1, until=1, default=NO_TIMESTAMP),
        Field("topic_id", UUID, since=4, tag=0, default=NO_TOPIC_ID),
    ),
    flexible_since=4,
)
_CLASSIC_MEMBER = Schema(
    ClassicMemberRecord,
    (
        Field("member_id", STRING),
        Field("group_instance_id", NULLABLE_STRING, since=3),
        Field("client_id", STRING),
        Field("client_host", STRING),
        Field("rebalance_timeout_ms", INT32, since=1, default=-1),
        Field("session_timeout_ms", INT32),
        Field("subscription", BYTES),
        Field("assignment", BYTES),
    ),
    flexible_since=4,
)
_GROUP_METADATA_VALUE = Schema(
    GroupMetadataValue,
    (
        Field("protocol_type", STRING),
        Field("generation", INT32),
        Field("protocol", NULLABLE_STRING),
        Field("leader", NULLABLE_STRING),
        Field("current_state_timestamp_ms", INT64, since=2, default=NO_TIMESTAMP),
        Field("members", ArrayOf(_CLASSIC_MEMBER)),
    ),
    flexible_since=4,
)
_LEGACY_RACKS = _flexible(
    LegacyPartitionRacks, Field("partition", INT32), Field("racks", ArrayOf(STRING))
)
_LEGACY_TOPIC = _flexible(
    LegacyTopicMetadata,
    Field("topic_id", UUID),
    Field("topic_name", STRING),
    Field("partition_count", INT32),
    Field("partition_racks", ArrayOf(_LEGACY_RACKS)),
)
_CLASSIC_PROTOCOL = _flexible(ClassicProtocol, Field("name", STRING), Field("metadata", BYTES))
_CLASSIC_MEMBER_METADATA = _flexible(
    ClassicMemberMetadata,
    Field("session_timeout_ms", INT32),
    Field("supported_protocols", ArrayOf(_CLASSIC_PROTOCOL)),
)
_CONSUMER_MEMBER_METADATA = _flexible(
    ConsumerGroupMemberMetadataValue,
    Field("instance_id", NULLABLE_STRING),
    Field("rack_id", NULLABLE_STRING),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", ArrayOf(STRING)),
    Field("subscribed_topic_regex", NULLABLE_STRING),
    Field("rebalance_timeout_ms", INT32),
    Field("server_assignor", NULLABLE_STRING),
    Field("classic_member_metadata", NullableStruct(_CLASSIC_MEMBER_METADATA), tag=0),
)
_TOPIC_PARTITIONS = _flexible(
    TopicPartitions, Field("topic_id", UUID), Field("partitions", ArrayOf(INT32))
)
_EPOCHED_TOPIC_PARTITIONS = _flexible(
    EpochedTopicPartitions,
    Field("topic_id", UUID),
    Field("partitions", ArrayOf(INT32)),
    Field("assignment_epochs", ArrayOf(INT32, nullable=True), tag=0),
)
_NAMED_TOPIC_PARTITIONS = _flexible(
    NamedTopicPartitions,
    Field("topic_id", UUID),
    Field("topic_name", STRING),
    Field("partitions", ArrayOf(INT32)),
)
_NAMED_TOPIC = _flexible(NamedTopic, Field("topic_id", UUID), Field("topic_name", STRING))
_ASSIGNMENT_METADATA = (
    Field("assignment_epoch", INT32),
    Field("assignment_timestamp_ms", INT64, tag=0, default=0),
)
_MEMBER_STATE = (
    Field("member_epoch", INT32),
    Field("previous_member_epoch", INT32),
    Field("state", INT8),
)

RECORD_TYPES: Final = (
    RecordType(
        1,
        Schema(OffsetCommitKey, (*_GROUP, Field("topic", STRING), Field("partition", INT32))),
        _OFFSET_COMMIT_VALUE,
        newest_version=4,
    ),
    RecordType(2, Schema(GroupMetadataKey, _GROUP), _GROUP_METADATA_VALUE, newest_version=4),
    RecordType(
        3,
        Schema(ConsumerGroupMetadataKey, _GROUP),
        _flexible(
            ConsumerGroupMetadataValue,
            Field("epoch", INT32),
            Field("metadata_hash", INT64, tag=0, default=0),
        ),
    ),
    RecordType(
        4,
        Schema(ConsumerGroupPartitionMetadataKey, _GROUP),
        _flexible(ConsumerGroupPartitionMetadataValue, Field("topics", ArrayOf(_LEGACY_TOPIC))),
    ),
    RecordType(5, Schema(ConsumerGroupMemberMetadataKey, _GROUP_MEMBER), _CONSUMER_MEMBER_METADATA),
    RecordType(
        6,
        Schema(ConsumerGroupTargetAssignmentMetadataKey, _GROUP),
        _flexible(ConsumerGroupTargetAssignmentMetadataValue, *_ASSIGNMENT_METADATA),
    ),
    RecordType(
        7,
        Schema(ConsumerGroupTargetAssignmentMemberKey, _GROUP_MEMBER),
        _flexible(
            ConsumerGroupTargetAssignmentMemberValue,
            Field("topic_partitions", ArrayOf(_TOPIC_PARTITIONS)),
        ),
    ),
    RecordType(
        8,
        Schema(ConsumerGroupCurrentMemberAssignmentKey, _GROUP_MEMBER),
        _flexible(
            ConsumerGroupCurrentMemberAssignmentValue,
            *_MEMBER_STATE,
            Field("assigned_partitions", ArrayOf(_EPOCHED_TOPIC_PARTITIONS)),
            Field("partitions_pending_revocation", ArrayOf(_EPOCHED_TOPIC_PARTITIONS)),
        ),
    ),
    RecordType(
        10,
        Schema(ShareGroupMemberMetadataKey, _GROUP_MEMBER),
        _flexible(
            ShareGroupMemberMetadataValue,
            Field("rack_id", NULLABLE_STRING),
            Field("client_id", STRING),
            Field("client_host", STRING),
            Field("subscribed_topic_names", ArrayOf(STRING)),
        ),
    ),
    RecordType(
        11,
        Schema(ShareGroupMetadataKey, _GROUP),
        _flexible(ShareGroupMetadataValue, Field("epoch", INT32), Field("metadata_hash", INT64)),
    ),
    RecordType(
        12,
        Schema(ShareGroupTargetAssignmentMetadataKey, _GROUP),
        _flexible(ShareGroupTargetAssignmentMetadataValue, *_ASSIGNMENT_METADATA),
    ),
    RecordType(
        13,
        Schema(ShareGroupTargetAssignmentMemberKey, _GROUP_MEMBER),
        _flexible(
            ShareGroupTargetAssignmentMemberValue,
            Field("topic_partitions", ArrayOf(_TOPIC_PARTITIONS)),
        ),
    ),
    RecordType(
        14,
        Schema(ShareGroupCurrentMemberAssignmentKey, _GROUP_MEMBER),
        _flexible(
            ShareGroupCurrentMemberAssignmentValue,
            *_MEMBER_STATE,
            Field("assigned_partitions", ArrayOf(_TOPIC_PARTITIONS)),
        ),
    ),
    RecordType(
        15,
        Schema(ShareGroupStatePartitionMetadataKey, _GROUP),
        _flexible(
            ShareGroupStatePartitionMetadataValue,
            Field("initializing_topics", ArrayOf(_NAMED_TOPIC_PARTITIONS)),
            Field("initialized_topics", ArrayOf(_NAMED_TOPIC_PARTITIONS)),
            Field("deleting_topics", ArrayOf(_NAMED_TOPIC)),
        ),
    ),
    RecordType(
        16,
        Schema(ConsumerGroupRegularExpressionKey, (*_GROUP, Field("regular_expression", STRING))),
        _flexible(
            ConsumerGroupRegularExpressionValue,
            Field("topics", ArrayOf(STRING)),
            Field("version", INT64),
            Field("timestamp_ms", INT64),
        ),
    ),
)


def value_version(value: Any) -> int:
    """The version that Kafka 4.3 writes such a value in."""
    match value:
        case OffsetCommitValue():
            # Only version 1 has the expiry that commits of v2 to v4 may ask for.
            return 4 if value.expire_timestamp_ms == NO_TIMESTAMP else 1
        case GroupMetadataValue():
            return 3
        case _:
            return 0


GROUP_RECORDS: Final = RecordCodec(RECORD_TYPES, value_version)
