"""ShareFetch v1-2 by hand: records are not copied, and it is the hot path of queues.

request   group id | member id | session epoch | max wait | min bytes | max bytes | max records
          | batch size | acquire mode, is renew ack (v2)
          | topics: id | partitions: index | acknowledgements: first offset, last offset, types
          | forgotten topics: id | partitions
response  throttle time | error | error message | lock duration
          | topics: id | partitions: index, error, message, acknowledge error, message,
            leader id, leader epoch | records | acquired: first offset, last offset, delivery count
          | node endpoints

Both are flexible in every version. ShareAcknowledge has the same acknowledgements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.wire import (
    NO_TAGS,
    Buffer,
    read_array_length,
    read_nullable_string,
    skip_tags,
    uuid_of,
    write_array_length,
    write_nullable_string,
    write_unsigned_varint,
)

FIRST_WITH_RENEWAL = 2
BATCH_OPTIMIZED = 0  # acquire modes: batches of the log stay whole,
RECORD_LIMIT = 1  # or max records is taken literally

UUID_BYTES = 16
_LIMITS = Struct(">iiiiii")
_MODE = Struct(">b?")
_INDEX = Struct(">i")
_OFFSETS = Struct(">qq")
_ERROR = Struct(">ih")
_LEADER = Struct(">ii")
_ACQUIRED = Struct(">qqhx")  # with its empty tagged fields


class Acknowledgement(NamedTuple):
    """The acknowledgement of consecutive records: one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: bytes


PartitionAcknowledgements: TypeAlias = tuple[int, list[Acknowledgement]]
AcknowledgedTopics: TypeAlias = list[tuple[UUID, list[PartitionAcknowledgements]]]


class ShareFetchRequest(NamedTuple):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    acquire_mode: int
    is_renew_ack: bool
    topics: AcknowledgedTopics
    forgotten: list[tuple[UUID, list[int]]]


class SharedPartition(NamedTuple):
    """A partition in a response."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    acknowledge_error: ErrorCode = ErrorCode.NONE
    acknowledge_message: str | None = None
    leader: tuple[int, int] = (0, 0)  # id and epoch, where the error is about the leader
    records: Buffer = b""
    acquired: Sequence[tuple[int, int, int]] = ()  # first offset, last offset, delivery count


def decode_share_fetch_request(body: Buffer, version: int) -> ShareFetchRequest:
    """Raises `ProtocolError` for a malformed request."""
    try:
        return _decode(body, version)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed ShareFetchRequest v{version}: truncated") from None


def _decode(body: Buffer, version: int) -> ShareFetchRequest:
    group_id, position = read_nullable_string(body, 0, compact=True)
    member_id, position = read_nullable_string(body, position, compact=True)
    epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size = _LIMITS.unpack_from(
        body, position
    )
    position += _LIMITS.size
    mode, is_renew_ack = 0, False
    if version >= FIRST_WITH_RENEWAL:
        mode, is_renew_ack = _MODE.unpack_from(body, position)
        position += _MODE.size
    topics, position = read_acknowledged_topics(body, position)
    forgotten, _ = _read_forgotten(body, position)
    return ShareFetchRequest(
        group_id,
        member_id,
        epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        max_records,
        batch_size,
        mode,
        is_renew_ack,
        topics,
        forgotten,
    )


def read_acknowledged_topics(body: Buffer, position: int) -> tuple[AcknowledgedTopics, int]:
    """Topics, their partitions, and the acknowledgements of each."""
    count, position = read_array_length(body, position, compact=True)
    topics: AcknowledgedTopics = []
    for _ in range(count):
        topic_id = uuid_of(bytes(body[position : position + UUID_BYTES]))
        partition_count, position = read_array_length(body, position + UUID_BYTES, compact=True)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INDEX.unpack_from(body, position)
            acknowledgements, position = _read_acknowledgements(body, position + 4)
            position = skip_tags(body, position)
            partitions.append((index, acknowledgements))
        position = skip_tags(body, position)
        topics.append((topic_id, partitions))
    return topics, position


def _read_acknowledgements(body: Buffer, position: int) -> tuple[list[Acknowledgement], int]:
    count, position = read_array_length(body, position, compact=True, element_bytes_min=18)
    acknowledgements = []
    for _ in range(count):
        first_offset, last_offset = _OFFSETS.unpack_from(body, position)
        size, position = read_array_length(body, position + _OFFSETS.size, compact=True)
        size = max(size, 0)
        types = bytes(body[position : position + size])
        position = skip_tags(body, position + size)
        acknowledgements.append(Acknowledgement(first_offset, last_offset, types))
    return acknowledgements, position


def _read_forgotten(body: Buffer, position: int) -> tuple[list[tuple[UUID, list[int]]], int]:
    count, position = read_array_length(body, position, compact=True)
    forgotten = []
    for _ in range(count):
        topic_id = uuid_of(bytes(body[position : position + UUID_BYTES]))
        size, position = read_array_length(
            body, position + UUID_BYTES, compact=True, element_bytes_min=4
        )
        size = max(size, 0)
        indexes = list(struct.unpack_from(f">{size}i", body, position))
        position = skip_tags(body, position + 4 * size)
        forgotten.append((topic_id, indexes))
    return forgotten, position


def encode_share_fetch_response(
    topics: Iterable[tuple[UUID, Sequence[SharedPartition]]],
    *,
    lock_duration_ms: int = 0,
    error: ErrorCode = ErrorCode.NONE,
    error_message: str | None = None,
) -> list[Buffer]:
    """The response body in pieces; the records are among them, not copied."""
    topics = list(topics)
    small = [
        struct.pack(">ih", 0, error),  # throttle time first
        write_nullable_string(error_message, compact=True),
        _INDEX.pack(lock_duration_ms),
        write_array_length(len(topics), compact=True),
    ]
    buffers: list[Buffer] = []
    for topic_id, partitions in topics:
        small += (topic_id.bytes, write_array_length(len(partitions), compact=True))
        for partition in partitions:
            small.append(_encode_partition(partition))
            if partition.records:
                buffers += (b"".join(small), partition.records)
                small = []
            small.append(write_array_length(len(partition.acquired), compact=True))
            small += (_ACQUIRED.pack(*run) for run in partition.acquired)
            small.append(NO_TAGS)
        small.append(NO_TAGS)
    small += (write_array_length(0, compact=True), NO_TAGS)  # no node endpoints
    buffers.append(b"".join(small))
    return buffers


def _encode_partition(partition: SharedPartition) -> bytes:
    """A partition without its records, which the caller appends."""
    return b"".join(
        (
            _ERROR.pack(partition.partition, partition.error),
            write_nullable_string(partition.error_message, compact=True),
            struct.pack(">h", partition.acknowledge_error),
            write_nullable_string(partition.acknowledge_message, compact=True),
            _LEADER.pack(*partition.leader),
            NO_TAGS,
            write_unsigned_varint(len(partition.records) + 1),
        )
    )
