"""Produce v3-13 by hand: the hottest messages.

kio needs 20 µs for a response that `struct` packs in one. Records are not copied: they are slices
of the frame.

    request   transactional id | acks | timeout
              | topics: name (v13: id) | partitions: index, records
    response  topics: name (id) | partitions: index, error, base offset, log append time,
              log start offset (v5), record errors and message (v8), tagged current leader (v10)
              | throttle time | tagged node endpoints (v10)

The response repeats the topic of the request, so its encoded form is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.endpoints import NodeEndpoint, encode_endpoints
from millstream.protocol.wire import (
    INT32,
    NO_TAGS,
    Buffer,
    read_array_length,
    read_nullable_bytes,
    read_nullable_string,
    read_string,
    skip_tags,
    uuid_of,
    write_array_length,
    write_nullable_string,
    write_tags,
)
from millstream.records.batch import NO_TIMESTAMP

FIRST_FLEXIBLE = 9
FIRST_WITH_LEADERS = 10
FIRST_WITH_TOPIC_IDS = 13

TopicKey: TypeAlias = str | UUID
NO_OFFSET = -1

_ACKS_AND_TIMEOUT = Struct(">hi")
_RESULT = Struct(">ihqq")
_RESULT_WITH_START = Struct(">ihqqq")
_LEADER = Struct(">ii")


class ProducedTopic(NamedTuple):
    key: TopicKey
    encoded: bytes  # the key as it stood in the request
    partitions: list[tuple[int, Buffer | None]]  # index, records


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


class ProducedPartition(NamedTuple):
    """The result of one partition."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    message: str | None = None
    current_leader: tuple[int, int] | None = None  # id and epoch, where the client is behind
    record_errors: Sequence[tuple[int, str]] = ()  # index in the batch, why


def decode_produce_request(body: Buffer, version: int) -> ProduceRequest:
    """Raises `ProtocolError` for a malformed request."""
    try:
        return _decode(body, version)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed ProduceRequest v{version}: truncated") from None


def _decode(body: Buffer, version: int) -> ProduceRequest:
    compact = version >= FIRST_FLEXIBLE
    transactional_id, position = read_nullable_string(body, 0, compact=compact)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, position)
    count, position = read_array_length(body, position + 6, compact=compact)
    topics = []
    for _ in range(count):
        topic, position = _decode_topic(body, position, version, compact)
        topics.append(topic)
    if compact:
        skip_tags(body, position)
    # Bytes may follow, and are ignored as Kafka ignores them.
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_topic(
    body: Buffer, position: int, version: int, compact: bool
) -> tuple[ProducedTopic, int]:
    start = position
    key: TopicKey
    if version >= FIRST_WITH_TOPIC_IDS:
        key, position = uuid_of(bytes(body[position : position + 16])), position + 16
    else:
        key, position = read_string(body, position, compact=compact)
    encoded = bytes(body[start:position])
    count, position = read_array_length(body, position, compact=compact, element_bytes_min=5)
    partitions = []
    for _ in range(count):
        (index,) = INT32.unpack_from(body, position)
        records, position = read_nullable_bytes(body, position + 4, compact=compact, wide=True)
        if compact:
            position = skip_tags(body, position)
        partitions.append((index, records))
    if compact:
        position = skip_tags(body, position)
    return ProducedTopic(key, encoded, partitions), position


def encode_produce_response(
    version: int,
    topics: Sequence[tuple[bytes, Sequence[ProducedPartition]]],
    endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> bytes:
    """The response body; topics come in their encoded form, `endpoints` are those of leaders."""
    compact = version >= FIRST_FLEXIBLE
    parts = [write_array_length(len(topics), compact=compact)]
    for encoded, partitions in topics:
        parts.append(encoded)
        parts.append(write_array_length(len(partitions), compact=compact))
        parts += [_encode_partition(version, partition) for partition in partitions]
        if compact:
            parts.append(NO_TAGS)
    parts.append(INT32.pack(throttle_ms))
    if endpoints and version >= FIRST_WITH_LEADERS:
        parts.append(write_tags({0: encode_endpoints(endpoints)}))
    elif compact:
        parts.append(NO_TAGS)
    return b"".join(parts)


def _encode_partition(version: int, partition: ProducedPartition) -> bytes:
    index, error, base_offset, append_time_ms, start_offset, message, leader, errors = partition
    if version < 5:
        return _RESULT.pack(index, error, base_offset, append_time_ms)
    fixed = _RESULT_WITH_START.pack(index, error, base_offset, append_time_ms, start_offset)
    if version < 8:
        return fixed
    compact = version >= FIRST_FLEXIBLE
    if compact and error is ErrorCode.NONE:
        return fixed + b"\x01\x00\x00"  # no record errors, no message, no tags
    encoded = fixed + _encode_record_errors(errors, compact)
    encoded += write_nullable_string(message, compact=compact)
    if not compact:
        return encoded
    tags = {0: _LEADER.pack(*leader) + NO_TAGS} if leader and version >= FIRST_WITH_LEADERS else {}
    return encoded + write_tags(tags)


def _encode_record_errors(errors: Sequence[tuple[int, str]], compact: bool) -> bytes:
    tags = NO_TAGS if compact else b""
    parts = [write_array_length(len(errors), compact=compact)]
    for index, why in errors:
        parts += (INT32.pack(index), write_nullable_string(why, compact=compact), tags)
    return b"".join(parts)
