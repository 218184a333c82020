"""A follower's Fetch, as kio's own messages see it."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.fetch.v17.request import FetchRequest
from kio.serial import entity_reader

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.fetch import (
    FetchedPartition,
    decode_fetch_request,
    encode_fetch_response,
)
from millstream.protocol.replica_fetch import (
    VERSION,
    ReplicaPosition,
    decode_replica_fetch,
    encode_replica_fetch,
)

TOPIC, OTHER = UUID(int=7), UUID(int=8)
POSITION = ReplicaPosition(3, 4, 100, 2, 50, 1000)


def encode() -> bytes:
    return encode_replica_fetch(
        5,
        77,
        {TOPIC: [POSITION, POSITION._replace(partition=4)], OTHER: [POSITION]},
        {OTHER: [1, 2], TOPIC: [0]},
        session=(12, 3),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=9999,
    )


def test_request_is_what_kafka_expects() -> None:
    request, _ = entity_reader(FetchRequest)(encode(), 0)
    assert request.replica_state.replica_id == 5
    assert request.replica_state.replica_epoch == 77
    assert request.max_bytes == 9999
    assert (request.session_id, request.session_epoch) == (12, 3)
    forgotten = [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data]
    assert forgotten == [(OTHER, (1, 2)), (TOPIC, (0,))]
    assert [topic.topic_id for topic in request.topics] == [TOPIC, OTHER]
    partition = request.topics[0].partitions[0]
    assert partition.partition == 3
    assert partition.current_leader_epoch == 4
    assert partition.fetch_offset == 100
    assert partition.last_fetched_epoch == 2
    assert partition.log_start_offset == 50
    assert partition.partition_max_bytes == 1000


def test_request_is_decoded_by_a_leader() -> None:
    request = decode_fetch_request(encode(), VERSION)
    assert (request.replica_id, request.replica_epoch) == (5, 77)
    assert [len(partitions) for _, partitions in request.topics] == [2, 1]
    assert (request.session_id, request.session_epoch) == (12, 3)
    assert request.forgotten == [(OTHER, [1, 2]), (TOPIC, [0])]


def test_response_is_decoded_without_copies() -> None:
    partitions = [
        FetchedPartition(3, ErrorCode.NONE, 10, 9, 1, b"records", [(1, 2), (3, 4)]),
        FetchedPartition(4, ErrorCode.NONE, 10, 9, 1, b"", None, (2, 80)),
        FetchedPartition(5, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 9)),
    ]
    topics = [(TOPIC, partitions), (OTHER, partitions[:1])]
    pieces = encode_fetch_response(VERSION, topics, session_id=12)
    body = memoryview(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]
    error, session_id, answers = decode_replica_fetch(body)
    assert (error, session_id) == (0, 12)
    first, second, third, fourth = answers
    assert (first.topic_id, first.partition, first.error) == (TOPIC, 3, 0)
    assert (first.high_watermark, first.log_start_offset) == (10, 1)
    assert bytes(first.records) == b"records"
    assert first.diverging is None
    assert second.diverging == (2, 80)
    assert third.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (fourth.topic_id, bytes(fourth.records)) == (OTHER, b"records")


def test_response_that_is_cut_off_is_refused() -> None:
    pieces = encode_fetch_response(VERSION, [(TOPIC, [FetchedPartition(3, records=b"records")])])
    body = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
    for size in range(len(body) - 1):
        with pytest.raises(ProtocolError):
            decode_replica_fetch(memoryview(body)[:size])
