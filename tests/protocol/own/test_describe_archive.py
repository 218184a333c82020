"""The messages of DescribeArchive: written and read as any other."""

from __future__ import annotations

import pytest

from millstream.errors import ErrorCode
from millstream.protocol.apis import APIS
from millstream.protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from millstream.protocol.own.describe_archive import KEY

API = "describe_archive"


def test_key_is_that_of_the_list() -> None:
    assert APIS[KEY].name == API


@pytest.mark.parametrize("topics", [None, (), ("orders", "clicks")])
def test_request_is_read_as_written(topics: tuple[str, ...] | None) -> None:
    asked = None if topics is None else list(topics)
    assert decode_request(API, 0, 0, encode_request(API, 0, {"topics": asked})).topics == topics


def test_response_is_read_as_written() -> None:
    told = {
        "partition_index": 3,
        "start_offset": 1,
        "end_offset": 20,
        "local_start_offset": 15,
        "log_end_offset": 30,
        "files": 2,
        "records": 19,
        "size_bytes": 400,
        "segment_bytes": 1000,
        "lag_bytes": 7,
        "newest_ms": 1_700_000_000_000,
        "archived_ms": 1_700_000_000_001,
        "problem": "the bucket is gone",
    }
    fields = {
        "error_code": ErrorCode.NONE,
        "topics": [{"topic_name": "orders", "partitions": [told]}],
    }
    [topic] = decode_response(API, 0, encode_response(API, 0, fields)).topics
    [partition] = topic.partitions
    assert {name: getattr(partition, name) for name in told} == told
