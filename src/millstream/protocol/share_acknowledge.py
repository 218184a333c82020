"""ShareAcknowledge v1-2 by hand.

request   group id | member id | session epoch | is renew ack (v2) | topics as in ShareFetch
response  throttle time | error | error message | lock duration (v2)
          | topics: id | partitions: index, error, message, leader id, leader epoch
          | node endpoints
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.share_fetch import (
    FIRST_WITH_RENEWAL,
    AcknowledgedTopics,
    read_acknowledged_topics,
)
from millstream.protocol.wire import (
    INT32,
    NO_TAGS,
    Buffer,
    read_nullable_string,
    write_array_length,
    write_nullable_string,
)


class ShareAcknowledgeRequest(NamedTuple):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    is_renew_ack: bool
    topics: AcknowledgedTopics


class AcknowledgedPartition(NamedTuple):
    """The result of the acknowledgements of one partition."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    leader: tuple[int, int] = (0, 0)  # id and epoch, where the error is about the leader


def decode_share_acknowledge_request(body: Buffer, version: int) -> ShareAcknowledgeRequest:
    """Raises `ProtocolError` for a malformed request."""
    try:
        group_id, position = read_nullable_string(body, 0, compact=True)
        member_id, position = read_nullable_string(body, position, compact=True)
        (session_epoch,) = INT32.unpack_from(body, position)
        position += 4
        is_renew_ack = False
        if version >= FIRST_WITH_RENEWAL:
            is_renew_ack = body[position] != 0
            position += 1
        topics, _ = read_acknowledged_topics(body, position)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed ShareAcknowledgeRequest v{version}: truncated") from None
    return ShareAcknowledgeRequest(group_id, member_id, session_epoch, is_renew_ack, topics)


def encode_share_acknowledge_response(
    version: int,
    topics: Iterable[tuple[UUID, Sequence[AcknowledgedPartition]]],
    *,
    lock_duration_ms: int = 0,
    error: ErrorCode = ErrorCode.NONE,
    error_message: str | None = None,
) -> bytes:
    topics = list(topics)
    pieces = [
        struct.pack(">ih", 0, error),  # throttle time first
        write_nullable_string(error_message, compact=True),
    ]
    if version >= FIRST_WITH_RENEWAL:
        pieces.append(INT32.pack(lock_duration_ms))
    pieces.append(write_array_length(len(topics), compact=True))
    for topic_id, partitions in topics:
        pieces += (topic_id.bytes, write_array_length(len(partitions), compact=True))
        for partition in partitions:
            pieces += (
                struct.pack(">ih", partition.partition, partition.error),
                write_nullable_string(partition.error_message, compact=True),
                struct.pack(">ii", *partition.leader),
                NO_TAGS,  # of the leader
                NO_TAGS,
            )
        pieces.append(NO_TAGS)
    pieces += (write_array_length(0, compact=True), NO_TAGS)  # no node endpoints
    return b"".join(pieces)
