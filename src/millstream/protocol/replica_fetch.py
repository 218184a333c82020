"""Fetch as followers send it, v17: the request encoded, the response decoded without copies.

The whole request is sent each time, without a session. The layout is in `fetch.py`; the replica's
id and epoch are a tagged field (KIP-903).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from millstream.errors import ProtocolError
from millstream.protocol.wire import (
    NO_TAGS,
    Buffer,
    read_array_length,
    read_tags,
    read_unsigned_varint,
    skip_tags,
    uuid_of,
    write_array_length,
    write_tags,
)

VERSION = 17

_HEAD = Struct(">iiibii")
_PARTITION = Struct(">iiqiqi")
_REPLICA = Struct(">iq")
_RESPONSE = Struct(">ihi")
_RESULT = Struct(">ihqqq")
_EPOCH_AND_OFFSET = Struct(">iq")
_NO_SESSION = (0, -1)
_END = b"\x01\x01"  # no forgotten topics, an empty rack
_ABORTED_BYTES = 17


class ReplicaPosition(NamedTuple):
    """A partition in a request."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class ReplicaAnswer(NamedTuple):
    """A partition in a response."""

    topic_id: UUID
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None  # epoch, end offset
    records: Buffer


def encode_replica_fetch(
    replica_id: int,
    replica_epoch: int,
    topics: Iterable[tuple[UUID, Sequence[ReplicaPosition]]],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
) -> bytes:
    """The body of a request."""
    topics = list(topics)
    parts = [
        _HEAD.pack(max_wait_ms, min_bytes, max_bytes, 0, *_NO_SESSION),
        write_array_length(len(topics), compact=True),
    ]
    for topic_id, positions in topics:
        parts += (topic_id.bytes, write_array_length(len(positions), compact=True))
        for position in positions:
            parts += (_PARTITION.pack(*position), NO_TAGS)
        parts.append(NO_TAGS)
    replica = _REPLICA.pack(replica_id, replica_epoch) + NO_TAGS
    parts += (_END, write_tags({1: replica}))
    return b"".join(parts)


def decode_replica_fetch(body: memoryview) -> tuple[int, list[ReplicaAnswer]]:
    """The error of the response as a whole, and its partitions. The records are views of `body`.

    Raises `ProtocolError`.
    """
    try:
        return _decode(body)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed FetchResponse v{VERSION}: truncated") from None


def _decode(body: memoryview) -> tuple[int, list[ReplicaAnswer]]:
    _, error, _ = _RESPONSE.unpack_from(body)
    count, position = read_array_length(body, _RESPONSE.size, compact=True)
    answers: list[ReplicaAnswer] = []
    for _ in range(count):
        topic_id = uuid_of(bytes(body[position : position + 16]))
        size, position = read_array_length(body, position + 16, compact=True)
        for _ in range(size):
            answer, position = _decode_partition(body, position, topic_id)
            answers.append(answer)
        position = skip_tags(body, position)
    return error, answers


def _decode_partition(body: memoryview, position: int, topic_id: UUID) -> tuple[ReplicaAnswer, int]:
    index, error, high_watermark, _, start = _RESULT.unpack_from(body, position)
    aborted, position = read_unsigned_varint(body, position + _RESULT.size)
    position += max(aborted - 1, 0) * _ABORTED_BYTES + 4  # and the preferred replica
    length, position = read_unsigned_varint(body, position)
    end = position + max(length - 1, 0)
    if end > len(body):
        raise IndexError
    records = body[position:end]
    tags, position = read_tags(body, end)
    diverging = None
    if 0 in tags:
        epoch, end_offset = _EPOCH_AND_OFFSET.unpack_from(tags[0])
        diverging = (epoch, end_offset) if epoch >= 0 or end_offset >= 0 else None
    answer = ReplicaAnswer(topic_id, index, error, high_watermark, start, diverging, records)
    return answer, position
