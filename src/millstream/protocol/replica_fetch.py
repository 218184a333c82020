"""Fetch as followers send it, v17: the request encoded, the response decoded without copies.

The layout is in `fetch.py`; the replica's id and epoch are a tagged field (KIP-903).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
_INDEX = Struct(">i")
_NO_RACK = b"\x01"
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
    topics: Mapping[UUID, Sequence[ReplicaPosition]],
    forgotten: Mapping[UUID, Sequence[int]],
    *,
    session: tuple[int, int],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
) -> bytes:
    """The body of a request. `session` is its id and epoch."""
    parts = [
        _HEAD.pack(max_wait_ms, min_bytes, max_bytes, 0, *session),
        write_array_length(len(topics), compact=True),
    ]
    for topic_id, positions in topics.items():
        parts += (topic_id.bytes, write_array_length(len(positions), compact=True))
        for position in positions:
            parts += (_PARTITION.pack(*position), NO_TAGS)
        parts.append(NO_TAGS)
    parts.append(write_array_length(len(forgotten), compact=True))
    for topic_id, indexes in forgotten.items():
        parts += (topic_id.bytes, write_array_length(len(indexes), compact=True))
        parts += (*map(_INDEX.pack, indexes), NO_TAGS)
    replica = _REPLICA.pack(replica_id, replica_epoch) + NO_TAGS
    parts += (_NO_RACK, write_tags({1: replica}))
    return b"".join(parts)


class ReplicaResponse(NamedTuple):
    error: int  # of the response as a whole
    session_id: int
    answers: list[ReplicaAnswer]


def decode_replica_fetch(body: memoryview) -> ReplicaResponse:
    """The records are views of `body`.

    Raises `ProtocolError`.
    """
    try:
        return _decode(body)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed FetchResponse v{VERSION}: truncated") from None


def _decode(body: memoryview) -> ReplicaResponse:
    _, error, session_id = _RESPONSE.unpack_from(body)
    count, position = read_array_length(body, _RESPONSE.size, compact=True)
    answers: list[ReplicaAnswer] = []
    for _ in range(count):
        topic_id = uuid_of(bytes(body[position : position + 16]))
        size, position = read_array_length(body, position + 16, compact=True)
        for _ in range(size):
            answer, position = _decode_partition(body, position, topic_id)
            answers.append(answer)
        position = skip_tags(body, position)
    return ReplicaResponse(error, session_id, answers)


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
