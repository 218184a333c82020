"""The addresses of brokers in responses, against kio's codec."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.protocol.endpoints import NodeEndpoint
from millstream.protocol.fetch import FetchedPartition, encode_fetch_response
from millstream.protocol.messages import decode_response
from millstream.protocol.produce import ProducedPartition, encode_produce_response
from millstream.protocol.wire import write_nullable_string

ENDPOINTS = [NodeEndpoint(2, "host", 9092, "rack"), NodeEndpoint(300, "::1", 65535)]
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def addresses(response: Any) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(int(it.node_id), it.host, int(it.port), it.rack)
        for it in response.node_endpoints
    ]


@pytest.mark.parametrize("version", range(10, 13))
def test_produce_response_has_the_addresses_of_leaders(version: int) -> None:
    entry = ProducedPartition(3, NOT_LEADER, message="no", current_leader=(300, 7))
    topics = [(write_nullable_string("t", compact=True), [entry])]
    response = decode_response(
        "produce", version, encode_produce_response(version, topics, ENDPOINTS)
    )
    leader = response.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (300, 7)
    assert addresses(response) == ENDPOINTS


def test_older_produce_responses_have_none() -> None:
    entry = ProducedPartition(3, NOT_LEADER, message="no", current_leader=(300, 7))
    topics = [(write_nullable_string("t", compact=True), [entry])]
    plain = [(write_nullable_string("t", compact=True), [entry._replace(current_leader=None)])]
    assert encode_produce_response(9, topics, ENDPOINTS) == encode_produce_response(9, plain)


@pytest.mark.parametrize("version", range(16, 19))
@pytest.mark.parametrize("partition_count", [1, 2])
def test_fetch_response_has_the_addresses_of_leaders(version: int, partition_count: int) -> None:
    entries = [
        FetchedPartition(index, NOT_LEADER, current_leader=(2, 5))
        for index in range(partition_count)
    ]
    pieces = encode_fetch_response(version, [(uuid.uuid4(), entries)], endpoints=ENDPOINTS)
    response = decode_response("fetch", version, b"".join(map(bytes, pieces)))
    assert addresses(response) == ENDPOINTS
    for partition in response.responses[0].partitions:
        assert partition.error_code == NOT_LEADER
        leader = partition.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (2, 5)
