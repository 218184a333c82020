"""The messages of DescribeSharePartitions: written and read as any other."""

from __future__ import annotations

from millstream.errors import ErrorCode
from millstream.protocol.apis import APIS
from millstream.protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from millstream.protocol.own.describe_share_partitions import KEY

API = "describe_share_partitions"


def test_key_is_that_of_the_list() -> None:
    assert APIS[KEY].name == API


def test_request_is_read_as_written() -> None:
    topics = [{"topic_name": "orders", "partitions": [0, 2]}]
    body = encode_request(API, 0, {"group_id": "g", "topics": topics})
    request = decode_request(API, 0, 0, body)
    assert request.group_id == "g"
    assert [(it.topic_name, it.partitions) for it in request.topics] == [("orders", (0, 2))]


def test_response_is_read_as_written() -> None:
    held = {
        "first_offset": 1,
        "last_offset": 3,
        "delivery_state": 1,
        "delivery_count": 2,
        "member_id": "m",
        "remaining_ms": 900,
    }
    partition = {"partition_index": 0, "error_code": ErrorCode.NONE, "batches": [held]}
    body = encode_response(
        API, 0, {"topics": [{"topic_name": "orders", "partitions": [partition]}]}
    )
    [topic] = decode_response(API, 0, body).topics
    [batch] = topic.partitions[0].batches
    assert {name: getattr(batch, name) for name in held} == held
