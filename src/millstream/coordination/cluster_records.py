"""The records of `__cluster_metadata`, in the formats of Apache Kafka's KRaft.

A record has no key. Its value is a frame, so that DumpLogSegments --cluster-metadata-decoder reads
our metadata log, and Kafka itself could take it over:

    unsigned varint   frame version, 1
    unsigned varint   the record's type
    unsigned varint   the version of its schema
    ...               the message, always flexible

    type  record                            version written  what it says
    0     RegisterBrokerRecord              3                a broker started: id, epoch, endpoints
    2     TopicRecord                       0                a topic exists, with this id
    3     PartitionRecord                   1                a partition in full
    4     ConfigRecord                      0                a setting of a resource; null unsets
    5     PartitionChangeRecord             1                what changed about a partition
    9     RemoveTopicRecord                 0                the topic and its partitions are gone
    12    FeatureLevelRecord                0                a feature's finalized level
    15    ProducerIdsRecord                 0                producer ids below this are given away
    17    BrokerRegistrationChangeRecord    2                a broker is fenced or unfenced
    20    NoOpRecord                        0                nothing
    25    AbortTransactionRecord            0                discards the records since 23

Types that only Kafka writes:

    1     UnregisterBrokerRecord            the broker is gone
    7, 8  (Un)FenceBrokerRecord             read as BrokerRegistrationChangeRecord
    23    BeginTransactionRecord            what follows counts only from 24 on
    24    EndTransactionRecord              the records since 23 count
    28    ClearElrRecord                    read as NoOpRecord: eligible leaders are not kept

Access control, credentials and quotas (11, 14, 18, 19 and 22) are in `cluster_security.py`. All
other types are carried as bytes (`cluster_carried.py`).
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from millstream.coordination.cluster_carried import CarriedRecord, read_carried
from millstream.coordination.cluster_security import SECURITY_SCHEMAS, SecurityRecord
from millstream.coordination.record_codec import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Reader,
    Schema,
    UnknownVersion,
    write_varint,
)

FRAME_VERSION = 1
NO_LEADER = -1
UNCHANGED_LEADER = -2

DIRECTORY_UNASSIGNED = uuid.UUID(int=0)
"""Kafka's way to say that a replica's log directory is not recorded."""


class BrokerEndpoint(NamedTuple):
    """The address of a broker's listener."""

    name: str
    host: str
    port: int
    security_protocol: int = 0  # PLAINTEXT


class BrokerFeature(NamedTuple):
    """The levels of a feature that a broker can work at."""

    name: str
    min_supported_version: int
    max_supported_version: int


class RegisterBrokerRecord(NamedTuple):
    """A broker has started."""

    broker_id: int
    incarnation_id: uuid.UUID
    broker_epoch: int
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = None
    fenced: bool = False
    is_migrating_zk_broker: bool = False
    in_controlled_shutdown: bool = False
    log_dirs: tuple[uuid.UUID, ...] = ()


class BrokerRegistrationChangeRecord(NamedTuple):
    """A broker is fenced or unfenced, or its directories changed."""

    broker_id: int
    broker_epoch: int
    fenced: int = 0  # -1 unfenced, 0 as before, 1 fenced
    in_controlled_shutdown: int = 0
    log_dirs: tuple[uuid.UUID, ...] = ()


class TopicRecord(NamedTuple):
    """A topic exists; its partitions follow."""

    name: str
    topic_id: uuid.UUID


class PartitionRecord(NamedTuple):
    """A partition exists, in full."""

    partition_id: int
    topic_id: uuid.UUID
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    directories: tuple[uuid.UUID, ...] = ()
    leader_recovery_state: int = 0


class PartitionChangeRecord(NamedTuple):
    """Setting a leader, even the same one, bumps the leader epoch; None: unchanged."""

    partition_id: int
    topic_id: uuid.UUID
    isr: tuple[int, ...] | None = None
    leader: int = UNCHANGED_LEADER
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = -1
    directories: tuple[uuid.UUID, ...] | None = None


class ConfigRecord(NamedTuple):
    """A setting of a resource; a null value removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class RemoveTopicRecord(NamedTuple):
    """A topic is deleted, with its partitions and settings."""

    topic_id: uuid.UUID


class FeatureLevelRecord(NamedTuple):
    """A feature works at this level; 0 means not at all."""

    name: str
    feature_level: int


class ProducerIdsRecord(NamedTuple):
    """All producer ids below this one are allocated."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class NoOpRecord(NamedTuple):
    """A no-op: Kafka writes it as a sign of life."""


class UnregisterBrokerRecord(NamedTuple):
    """A broker has left the cluster for good."""

    broker_id: int
    broker_epoch: int


class BeginTransactionRecord(NamedTuple):
    """The records that follow count only once the transaction ends."""

    name: str | None = None


class EndTransactionRecord(NamedTuple):
    """The records since the transaction began count."""


class AbortTransactionRecord(NamedTuple):
    """The records since the transaction began are void."""

    reason: str | None = None


class _BrokerFencing(NamedTuple):
    broker_id: int
    broker_epoch: int


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | NoOpRecord
    | UnregisterBrokerRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | SecurityRecord
    | CarriedRecord
)

_BROKERS = ArrayOf(INT32)
_NULLABLE_BROKERS = ArrayOf(INT32, nullable=True)
_UUIDS = ArrayOf(UUID)


def _flexible(cls: type[Any], *fields: Field) -> Schema[Any]:
    return Schema(cls, fields, flexible_since=0)


_ENDPOINT = _flexible(
    BrokerEndpoint,
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
    Field("security_protocol", INT16),
)
_FEATURE = _flexible(
    BrokerFeature,
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)
_REGISTER_BROKER = _flexible(
    RegisterBrokerRecord,
    Field("broker_id", INT32),
    Field("is_migrating_zk_broker", BOOL, since=2, default=False),
    Field("incarnation_id", UUID),
    Field("broker_epoch", INT64),
    Field("endpoints", ArrayOf(_ENDPOINT)),
    Field("features", ArrayOf(_FEATURE)),
    Field("rack", NULLABLE_STRING),
    Field("fenced", BOOL),
    Field("in_controlled_shutdown", BOOL, since=1, default=False),
    Field("log_dirs", _UUIDS, since=3, tag=0, default=()),
)
_BROKER_CHANGE = _flexible(
    BrokerRegistrationChangeRecord,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64),
    Field("fenced", INT8, tag=0, default=0),
    Field("in_controlled_shutdown", INT8, since=1, tag=1, default=0),
    Field("log_dirs", _UUIDS, since=2, tag=2, default=()),
)
_PARTITION = _flexible(
    PartitionRecord,
    Field("partition_id", INT32),
    Field("topic_id", UUID),
    Field("replicas", _BROKERS),
    Field("isr", _BROKERS),
    Field("removing_replicas", _BROKERS),
    Field("adding_replicas", _BROKERS),
    Field("leader", INT32),
    Field("leader_epoch", INT32),
    Field("partition_epoch", INT32),
    Field("directories", _UUIDS, since=1, default=()),
    Field("leader_recovery_state", INT8, tag=0, default=0),
)
_PARTITION_CHANGE = _flexible(
    PartitionChangeRecord,
    Field("partition_id", INT32),
    Field("topic_id", UUID),
    Field("isr", _NULLABLE_BROKERS, tag=0),
    Field("leader", INT32, tag=1, default=UNCHANGED_LEADER),
    Field("replicas", _NULLABLE_BROKERS, tag=2),
    Field("removing_replicas", _NULLABLE_BROKERS, tag=3),
    Field("adding_replicas", _NULLABLE_BROKERS, tag=4),
    Field("leader_recovery_state", INT8, tag=5, default=-1),
    Field("directories", ArrayOf(UUID, nullable=True), since=1, tag=8),
)
_CONFIG = _flexible(
    ConfigRecord,
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("name", STRING),
    Field("value", NULLABLE_STRING),
)
_PRODUCER_IDS = _flexible(
    ProducerIdsRecord,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64),
    Field("next_producer_id", INT64),
)
_TOPIC = _flexible(TopicRecord, Field("name", STRING), Field("topic_id", UUID))
_REMOVE_TOPIC = _flexible(RemoveTopicRecord, Field("topic_id", UUID))
_FEATURE_LEVEL = _flexible(FeatureLevelRecord, Field("name", STRING), Field("feature_level", INT16))
_NO_OP = _flexible(NoOpRecord)
_UNREGISTER_BROKER = _flexible(
    UnregisterBrokerRecord, Field("broker_id", INT32), Field("broker_epoch", INT64)
)
_BEGIN = _flexible(BeginTransactionRecord, Field("name", NULLABLE_STRING, tag=0))
_END = _flexible(EndTransactionRecord)
_ABORT = _flexible(AbortTransactionRecord, Field("reason", NULLABLE_STRING, tag=0))
_FENCING = _flexible(_BrokerFencing, Field("broker_id", INT32), Field("broker_epoch", INT64))

# Type -> (schema, version written, newest version whose known part we can read).
_TYPES: dict[int, tuple[Schema[Any], int, int]] = {
    0: (_REGISTER_BROKER, 3, 4),
    1: (_UNREGISTER_BROKER, 0, 0),
    2: (_TOPIC, 0, 0),
    3: (_PARTITION, 1, 2),
    4: (_CONFIG, 0, 0),
    5: (_PARTITION_CHANGE, 1, 2),
    9: (_REMOVE_TOPIC, 0, 0),
    12: (_FEATURE_LEVEL, 0, 0),
    15: (_PRODUCER_IDS, 0, 0),
    17: (_BROKER_CHANGE, 2, 3),
    20: (_NO_OP, 0, 0),
    23: (_BEGIN, 0, 0),
    24: (_END, 0, 0),
    25: (_ABORT, 0, 0),
    **{number: (schema, 0, 0) for number, schema in SECURITY_SCHEMAS.items()},
}
_FENCE, _UNFENCE, _CLEAR_ELR = 7, 8, 28
_BY_CLASS = {
    schema.cls: (number, schema, version) for number, (schema, version, _) in _TYPES.items()
}


def encode_record(record: MetadataRecord) -> bytes:
    """The value of a record of the metadata log."""
    if isinstance(record, PartitionRecord) and _is_lone(record):
        return _encode_lone_partition(record)
    if isinstance(record, CarriedRecord):
        return record.value
    number, schema, version = _BY_CLASS[type(record)]
    out = bytearray((FRAME_VERSION,))
    write_varint(out, number)
    write_varint(out, version)
    out += schema.encode(record, version)
    return bytes(out)


def decode_record(value: bytes) -> MetadataRecord:
    """The record; one that Millstream does not interpret is carried. Raises `CorruptRecord`."""
    if len(value) == _LONE_PARTITION.size:
        partition = _decode_lone_partition(value)
        if partition is not None:
            return partition
    reader = Reader(value)
    frame_version = reader.varint()
    if frame_version != FRAME_VERSION:
        raise UnknownVersion(f"a metadata record in frame version {frame_version}; 1 is known")
    number = reader.varint()
    version = reader.varint()
    if number in _TYPES:
        schema, _, newest = _TYPES[number]
        if version > newest:
            raise UnknownVersion(
                f"{schema.cls.__name__} of version {version}; 0 to {newest} are known"
            )
        record: MetadataRecord = schema.decode(value, version, reader.position)
        return record
    if number in (_FENCE, _UNFENCE):
        broker: _BrokerFencing = _FENCING.decode(value, version, reader.position)
        return BrokerRegistrationChangeRecord(*broker, fenced=1 if number == _FENCE else -1)
    if number == _CLEAR_ELR:
        return NoOpRecord()
    return read_carried(number, version, value, reader.position)


# A partition with one replica and nothing else to say has a fixed size. They are nearly all that a
# start has to read, and that the creation of topics writes, so this shape has a codec of its own,
# five times as fast.
_LONE_PARTITION = struct.Struct(">3si16sBiBiHiiiB16sB")
_LONE_PARTITION_FRAME = bytes((FRAME_VERSION, 3, 1))


def _is_lone(it: PartitionRecord) -> bool:
    return (
        len(it.replicas) == len(it.isr) == len(it.directories) == 1
        and not it.removing_replicas
        and not it.adding_replicas
        and it.leader_recovery_state == 0
    )


def _encode_lone_partition(it: PartitionRecord) -> bytes:
    return _LONE_PARTITION.pack(
        _LONE_PARTITION_FRAME, it.partition_id, it.topic_id.bytes, 2, it.replicas[0], 2, it.isr[0],
        0x0101, it.leader, it.leader_epoch, it.partition_epoch, 2, it.directories[0].bytes, 0,
    )  # fmt: skip


def _decode_lone_partition(value: bytes) -> PartitionRecord | None:
    (frame, index, topic_id, replicas, replica, isr, in_sync, moving, leader,
     leader_epoch, partition_epoch, directories, directory, tags) = (
        _LONE_PARTITION.unpack(value)
    )  # fmt: skip
    # Counts are one more than they say; no replica is removed or added, and no tag follows.
    if frame != _LONE_PARTITION_FRAME or (replicas, isr, moving, directories, tags) != (
        2, 2, 0x0101, 2, 0,
    ):  # fmt: skip
        return None
    return PartitionRecord(
        partition_id=index,
        topic_id=_uuid(topic_id),
        replicas=(replica,),
        isr=(in_sync,),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=(_uuid(directory),),
    )


@lru_cache(maxsize=64)
def _uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)
