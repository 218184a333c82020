"""Metadata v0-13 by hand: the first request of every client.

request   topics: (id, v10) name, null for all (v0: empty for all) | allow auto creation (v4)
          | include authorized operations of the cluster (v8-10) and of topics (v8)
response  throttle time (v3) | brokers: id, host, port, rack (v1) | cluster id (v2)
          | controller id (v1) | topics: error, name, id (v10), is internal (v1), partitions,
            authorized operations (v8) | cluster's authorized operations (v8-10) | error (v13)
partition error, index, leader, leader epoch (v7), replicas, in-sync, offline (v5)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.wire import (
    INT32,
    NO_TAGS,
    Buffer,
    read_array_length,
    read_nullable_string,
    read_string,
    skip_tags,
    uuid_of,
    write_array_length,
    write_nullable_string,
)

FIRST_FLEXIBLE = 9
FIRST_WITH_TOPIC_IDS = 10
OPERATIONS_NOT_ASKED = -(2**31)
ZERO_ID = UUID(int=0)

_PARTITION = Struct(">hii")


class RequestedTopic(NamedTuple):
    topic_id: UUID  # ZERO_ID when asked by name
    name: str | None


class MetadataRequest(NamedTuple):
    topics: list[RequestedTopic] | None  # None: all
    allow_auto_topic_creation: bool
    include_cluster_operations: bool
    include_topic_operations: bool


class BrokerEntry(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionEntry(NamedTuple):
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
    error: ErrorCode = ErrorCode.NONE


class TopicEntry(NamedTuple):
    name: str | None
    topic_id: UUID = ZERO_ID
    partitions: Sequence[PartitionEntry] = ()
    error: ErrorCode = ErrorCode.NONE
    is_internal: bool = False
    operations: int = OPERATIONS_NOT_ASKED


class MetadataResponse(NamedTuple):
    brokers: Sequence[BrokerEntry]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[TopicEntry]
    cluster_operations: int = OPERATIONS_NOT_ASKED


def decode_metadata_request(body: Buffer, version: int) -> MetadataRequest:
    """Raises `ProtocolError` for a malformed request."""
    try:
        return _decode(body, version)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed MetadataRequest v{version}: truncated") from None


def _decode(body: Buffer, version: int) -> MetadataRequest:
    compact = version >= FIRST_FLEXIBLE
    count, position = read_array_length(body, 0, compact=compact)
    topics = []
    for _ in range(count):
        topic, position = _decode_topic(body, position, version)
        topics.append(topic)
    all_topics = count < 0 or (version == 0 and count == 0)
    allow_auto_creation = True
    cluster_operations = topic_operations = False
    if version >= 4:
        allow_auto_creation, position = bool(body[position]), position + 1
    if 8 <= version <= 10:
        cluster_operations, position = bool(body[position]), position + 1
    if version >= 8:
        topic_operations, position = bool(body[position]), position + 1
    if compact:
        position = skip_tags(body, position)
    # Bytes may follow: librdkafka writes "all topics" as int32 even in flexible versions, and Kafka
    # never looks.
    return MetadataRequest(
        None if all_topics else topics, allow_auto_creation, cluster_operations, topic_operations
    )


def _decode_topic(body: Buffer, position: int, version: int) -> tuple[RequestedTopic, int]:
    compact = version >= FIRST_FLEXIBLE
    topic_id = ZERO_ID
    name: str | None
    if version >= FIRST_WITH_TOPIC_IDS:
        topic_id, position = uuid_of(bytes(body[position : position + 16])), position + 16
        name, position = read_nullable_string(body, position, compact=compact)
    else:
        name, position = read_string(body, position, compact=compact)
    if compact:
        position = skip_tags(body, position)
    return RequestedTopic(topic_id, name), position


def encode_metadata_response(version: int, response: MetadataResponse) -> bytes:
    compact = version >= FIRST_FLEXIBLE
    tags = NO_TAGS if compact else b""
    parts = []
    if version >= 3:
        parts.append(b"\0\0\0\0")  # throttle time
    parts.append(write_array_length(len(response.brokers), compact=compact))
    parts += [_encode_broker(version, broker) for broker in response.brokers]
    if version >= 2:
        parts.append(write_nullable_string(response.cluster_id, compact=compact))
    if version >= 1:
        parts.append(INT32.pack(response.controller_id))
    parts.append(write_array_length(len(response.topics), compact=compact))
    parts += [_encode_topic(version, topic) for topic in response.topics]
    if 8 <= version <= 10:
        parts.append(INT32.pack(response.cluster_operations))
    if version >= 13:
        parts.append(b"\0\0")  # no error
    parts.append(tags)
    return b"".join(parts)


def _encode_broker(version: int, broker: BrokerEntry) -> bytes:
    compact = version >= FIRST_FLEXIBLE
    entry = (
        INT32.pack(broker.broker_id)
        + write_nullable_string(broker.host, compact=compact)
        + INT32.pack(broker.port)
    )
    if version >= 1:
        entry += write_nullable_string(broker.rack, compact=compact)
    return entry + NO_TAGS if compact else entry


def _encode_topic(version: int, topic: TopicEntry) -> bytes:
    compact = version >= FIRST_FLEXIBLE
    name = topic.name if version >= 12 else topic.name or ""
    parts = [struct.pack(">h", topic.error), write_nullable_string(name, compact=compact)]
    if version >= FIRST_WITH_TOPIC_IDS:
        parts.append(topic.topic_id.bytes)
    if version >= 1:
        parts.append(b"\x01" if topic.is_internal else b"\x00")
    parts.append(write_array_length(len(topic.partitions), compact=compact))
    parts += [_encode_partition(version, partition) for partition in topic.partitions]
    if version >= 8:
        parts.append(INT32.pack(topic.operations))
    if compact:
        parts.append(NO_TAGS)
    return b"".join(parts)


def _encode_partition(version: int, partition: PartitionEntry) -> bytes:
    compact = version >= FIRST_FLEXIBLE
    entry = _PARTITION.pack(partition.error, partition.partition, partition.leader_id)
    if version >= 7:
        entry += INT32.pack(partition.leader_epoch)
    entry += _encode_ids(partition.replicas, compact) + _encode_ids(partition.in_sync, compact)
    if version >= 5:
        entry += _encode_ids(partition.offline, compact)
    return entry + NO_TAGS if compact else entry


def _encode_ids(ids: Sequence[int], compact: bool) -> bytes:
    return write_array_length(len(ids), compact=compact) + struct.pack(f">{len(ids)}i", *ids)
