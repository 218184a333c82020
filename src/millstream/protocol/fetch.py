"""Fetch v4-18 by hand: responses are lists of buffers, so that megabytes of records are not copied.

request   replica id (to v14) | max wait | min bytes | max bytes | isolation level
          | session id, session epoch (v7)
          | topics: name (v13: id) | partitions: index, leader epoch (v9), offset,
            last fetched epoch (v12), log start offset (v5), max bytes
          | forgotten topics (v7) | rack id (v11) | tagged cluster id, replica state (v15)
response  throttle time | error, session id (v7)
          | topics | partitions: index, error, high watermark, last stable offset,
            log start offset (v5), aborted transactions, preferred replica (v11), records,
            tagged diverging epoch and current leader (v12)
          | tagged node endpoints (v16)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.endpoints import NodeEndpoint, encode_endpoints
from millstream.protocol.produce import TopicKey
from millstream.protocol.wire import (
    INT32,
    NO_TAGS,
    Buffer,
    Piece,
    read_array_length,
    read_nullable_string,
    read_string,
    read_tags,
    skip_tags,
    uuid_of,
    write_array_length,
    write_nullable_string,
    write_tags,
    write_unsigned_varint,
)
from millstream.records.batch import NO_LEADER_EPOCH

FIRST_FLEXIBLE = 12
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_SESSIONS = 7
FIRST_WITH_ENDPOINTS = 16

CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2  # of tools that compare replicas: they read to the end of any of them
READ_COMMITTED = 1

_LIMITS = Struct(">iiib")
_SESSION = Struct(">ii")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
_RESULT_V4 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_EPOCH_AND_OFFSET = Struct(">iq")
_THROTTLE_TIME = Struct(">i")
_LEADER = Struct(">ii")
_REPLICA_STATE = Struct(">iq")
# A whole request for one partition as most consumers send it from v15 on: without a rack, forgotten
# partitions or tags. The bytes at the end: tags of the partition, tags of the topic, forgotten
# topics, rack, tags of the request.
_ONE_PARTITION_REQUEST = Struct(">iiibii B16sB iiqiqi 5s")
_ONE_PARTITION_END = b"\0\0\x01\x01\0"
# The same, as a client repeats it: all but the offset, the epoch of the last record that it has and
# its log start stays the same.
_REPEATED_REQUEST = Struct(">47s q i q 9s")
_ONE_ELEMENT = 2  # the length of a compact array is one more than the number of elements
# The start of a response with one partition, by topic id.
_ONE_PARTITION_RESPONSE = Struct(">ihiB16sB ihqqq")
_NO_PREFERRED_REPLICA = b"\xff\xff\xff\xff"
_ONE_PARTITION_OFFSETS = Struct(">34s qqq 5s")
_NO_TAGS_AT_END = 3 * NO_TAGS  # of partition, topic and response
_EMPTY_END = b"\x01" + _NO_TAGS_AT_END  # no records


class FetchPartition(NamedTuple):
    """A partition in a request."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    replica_epoch: int = -1  # of a follower: which incarnation of the broker fetches
    rack_id: str | None = None


class FetchedPartition(NamedTuple):
    """A partition in a response."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Piece = b""
    aborted: Sequence[tuple[int, int]] | None = None  # producer id, first offset
    diverging_epoch: tuple[int, int] | None = None  # epoch, end offset
    current_leader: tuple[int, int] | None = None  # id, epoch
    preferred_replica: int = -1  # KIP-392: where this consumer should read


def decode_fetch_request(body: Buffer, version: int) -> FetchRequest:
    """Raises `ProtocolError` for a malformed request."""
    if version >= 15 and len(body) == _ONE_PARTITION_REQUEST.size:
        request = _decode_one_partition(body)
        if request is not None:
            return request
    try:
        return _decode(body, version)
    except (struct.error, IndexError):
        raise ProtocolError(f"malformed FetchRequest v{version}: truncated") from None


def _decode_one_partition(body: Buffer) -> FetchRequest | None:
    """A request for one partition, if the body has the form of one; at a sixth of the cost."""
    (
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topic_count,
        topic_id,
        partition_count,
        index,
        epoch,
        offset,
        last_epoch,
        _,
        partition_max_bytes,
        end,
    ) = _ONE_PARTITION_REQUEST.unpack(body)
    if topic_count != _ONE_ELEMENT or partition_count != _ONE_ELEMENT or end != _ONE_PARTITION_END:
        return None
    partition = FetchPartition(index, epoch, offset, last_epoch, partition_max_bytes)
    return FetchRequest(
        CONSUMER_REPLICA_ID,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        [(uuid_of(topic_id), [partition])],
        [],
    )


def split_repeated_request(body: Buffer, version: int) -> tuple[tuple[bytes, bytes], int] | None:
    """What a client that repeats a request for one partition does not change, and the offset; None
    if the request has another form, or the epoch of the client's last record is to be checked."""
    if version < 15 or len(body) != _REPEATED_REQUEST.size:
        return None
    head, offset, last_epoch, _, tail = _REPEATED_REQUEST.unpack(body)
    return None if last_epoch != NO_LEADER_EPOCH else ((head, tail), offset)


def _decode(body: Buffer, version: int) -> FetchRequest:
    compact = version >= FIRST_FLEXIBLE
    position = 0
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    rack_id: str | None = None
    if version < 15:
        (replica_id,) = INT32.unpack_from(body)
        position = 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(body, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= FIRST_WITH_SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(body, position)
        position += 8
    topics, position = _decode_topics(body, position, version)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= FIRST_WITH_SESSIONS:
        forgotten, position = _decode_forgotten(body, position, version)
    if version >= 11:
        rack, position = read_nullable_string(body, position, compact=compact)
        rack_id = rack or None
    if compact:
        tags, _ = read_tags(body, position)
        if version >= 15 and 1 in tags:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(tags[1])
    # Bytes may follow, and are ignored as Kafka ignores them.
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        replica_epoch,
        rack_id,
    )


def _read_topic_key(body: Buffer, position: int, version: int) -> tuple[TopicKey, int]:
    if version >= FIRST_WITH_TOPIC_IDS:
        return uuid_of(bytes(body[position : position + 16])), position + 16
    return read_string(body, position, compact=version >= FIRST_FLEXIBLE)


def _decode_topics(
    body: Buffer, position: int, version: int
) -> tuple[list[tuple[TopicKey, list[FetchPartition]]], int]:
    compact = version >= FIRST_FLEXIBLE
    count, position = read_array_length(body, position, compact=compact)
    topics = []
    for _ in range(count):
        key, position = _read_topic_key(body, position, version)
        partition_count, position = read_array_length(
            body, position, compact=compact, element_bytes_min=16
        )
        partitions = []
        for _ in range(partition_count):
            partition, position = _decode_partition(body, position, version)
            partitions.append(partition)
        if compact:
            position = skip_tags(body, position)
        topics.append((key, partitions))
    return topics, position


def _decode_partition(body: Buffer, position: int, version: int) -> tuple[FetchPartition, int]:
    epoch = last_epoch = NO_LEADER_EPOCH
    if version >= FIRST_FLEXIBLE:
        index, epoch, offset, last_epoch, _, max_bytes = _PARTITION_V12.unpack_from(body, position)
        position = skip_tags(body, position + _PARTITION_V12.size)
    elif version >= 9:
        index, epoch, offset, _, max_bytes = _PARTITION_V9.unpack_from(body, position)
        position += _PARTITION_V9.size
    elif version >= 5:
        index, offset, _, max_bytes = _PARTITION_V5.unpack_from(body, position)
        position += _PARTITION_V5.size
    else:
        index, offset, max_bytes = _PARTITION_V4.unpack_from(body, position)
        position += _PARTITION_V4.size
    return FetchPartition(index, epoch, offset, last_epoch, max_bytes), position


def _decode_forgotten(
    body: Buffer, position: int, version: int
) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    compact = version >= FIRST_FLEXIBLE
    count, position = read_array_length(body, position, compact=compact)
    forgotten = []
    for _ in range(count):
        key, position = _read_topic_key(body, position, version)
        size, position = read_array_length(body, position, compact=compact, element_bytes_min=4)
        size = max(size, 0)
        indexes = list(struct.unpack_from(f">{size}i", body, position))
        position += 4 * size
        if compact:
            position = skip_tags(body, position)
        forgotten.append((key, indexes))
    return forgotten, position


def encode_fetch_response(
    version: int,
    topics: Iterable[tuple[TopicKey, Sequence[FetchedPartition]]],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> list[Piece]:
    """The response body in pieces; the records are among them, not copied.

    `endpoints` are those of leaders that partitions of the response name.
    """
    topics = list(topics)
    is_short = len(topics) == 1 and len(topics[0][1]) == 1 and not endpoints and not throttle_ms
    if is_short and version >= FIRST_WITH_TOPIC_IDS:
        return _encode_one_partition(*topics[0], error, session_id)
    compact = version >= FIRST_FLEXIBLE
    head = _THROTTLE_TIME.pack(throttle_ms)
    if version >= FIRST_WITH_SESSIONS:
        head += struct.pack(">hi", error, session_id)
    small = [head, write_array_length(len(topics), compact=compact)]
    buffers: list[Piece] = []
    for key, partitions in topics:
        small.append(_encode_topic_key(key, compact))
        small.append(write_array_length(len(partitions), compact=compact))
        for partition in partitions:
            small.append(_encode_partition(version, partition))
            if partition.records:
                buffers += (b"".join(small), partition.records)
                small = []
            if compact:
                small.append(_partition_tags(partition))
        if compact:
            small.append(NO_TAGS)
    if endpoints and version >= FIRST_WITH_ENDPOINTS:
        small.append(write_tags({0: encode_endpoints(endpoints)}))
    elif compact:
        small.append(NO_TAGS)
    if small:
        buffers.append(b"".join(small))
    return buffers


def _encode_one_partition(
    key: TopicKey, partitions: Sequence[FetchedPartition], error: ErrorCode, session_id: int
) -> list[Piece]:
    """What most consumers get, at half the cost: a response with one partition, by topic id."""
    assert isinstance(key, UUID)
    (partition,) = partitions
    index, code, high_watermark, stable, start, records, aborted, *_ = partition
    head = _ONE_PARTITION_RESPONSE.pack(
        0,  # throttle time
        error,
        session_id,
        _ONE_ELEMENT,
        key.bytes,
        _ONE_ELEMENT,
        index,
        code,
        high_watermark,
        stable,
        start,
    )
    length = write_unsigned_varint(len(records) + 1)
    head += _encode_aborted(aborted, compact=True) + _preferred(partition) + length
    end = _partition_tags(partition) + NO_TAGS + NO_TAGS  # of partition, topic and response
    return [head, records, end] if records else [head + end]


class RepeatedResponse:
    """Responses with one partition and no session, from v15 on: encoded but for the offsets and
    records, at a third of the cost of `_encode_one_partition`."""

    __slots__ = ("_end", "_head")

    def __init__(self, topic_id: UUID, partition: int, *, committed: bool) -> None:
        nothing = FetchedPartition(partition, aborted=[] if committed else None)
        (whole,) = _encode_one_partition(topic_id, [nothing], ErrorCode.NONE, session_id=0)
        assert isinstance(whole, bytes)
        self._head = whole[:34]
        self._end = whole[58:63]  # aborted transactions, preferred replica

    def encode(
        self, high_watermark: int, last_stable_offset: int, start_offset: int, records: Piece
    ) -> list[Piece]:
        head = _ONE_PARTITION_OFFSETS.pack(
            self._head, high_watermark, last_stable_offset, start_offset, self._end
        )
        if not records:
            return [head + _EMPTY_END]
        return [head + write_unsigned_varint(len(records) + 1), records, _NO_TAGS_AT_END]


def _encode_topic_key(key: TopicKey, compact: bool) -> bytes:
    if isinstance(key, str):
        return write_nullable_string(key, compact=compact)
    return key.bytes


def _encode_partition(version: int, partition: FetchedPartition) -> bytes:
    """A partition without its records, which the caller appends."""
    compact = version >= FIRST_FLEXIBLE
    index, error, high_watermark, stable, start, records, aborted, *_ = partition
    if version >= 5:
        fixed = _RESULT_V5.pack(index, error, high_watermark, stable, start)
    else:
        fixed = _RESULT_V4.pack(index, error, high_watermark, stable)
    transactions = _encode_aborted(aborted, compact=compact)
    preferred_replica = _preferred(partition) if version >= 11 else b""
    size = len(records)
    length = write_unsigned_varint(size + 1) if compact else INT32.pack(size)
    return fixed + transactions + preferred_replica + length


def _preferred(partition: FetchedPartition) -> bytes:
    preferred = partition.preferred_replica
    return _NO_PREFERRED_REPLICA if preferred < 0 else INT32.pack(preferred)


def _encode_aborted(aborted: Sequence[tuple[int, int]] | None, *, compact: bool) -> bytes:
    if aborted is None:
        return b"\0" if compact else b"\xff\xff\xff\xff"
    if not aborted:
        return b"\x01" if compact else b"\0\0\0\0"
    tags = NO_TAGS if compact else b""
    transactions = b"".join(_ABORTED.pack(*transaction) + tags for transaction in aborted)
    return write_array_length(len(aborted), compact=compact) + transactions


def _partition_tags(partition: FetchedPartition) -> bytes:
    if partition.diverging_epoch is None and partition.current_leader is None:
        return NO_TAGS
    tags = {}
    if partition.diverging_epoch is not None:
        tags[0] = _EPOCH_AND_OFFSET.pack(*partition.diverging_epoch) + NO_TAGS
    if partition.current_leader is not None:
        tags[1] = _LEADER.pack(*partition.current_leader) + NO_TAGS
    return write_tags(tags)
