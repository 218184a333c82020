"""DeleteRecords: the start of a log moves, and no further than it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import append, create_topic
from tests.peers.wire import Wire


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


def delete(wire: Wire, topic: str, offset: int, version: int = 2) -> Any:
    partition = {"partition_index": 0, "offset": offset}
    answer = wire.call(
        "delete_records", version, topics=[{"name": topic, "partitions": [partition]}], timeout=1000
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_start_of_the_log_moves(wire: Wire, millstream: SharedBroker, version: int) -> None:
    topic = millstream.unique_topic()
    create_topic(wire, topic)
    append(wire, topic, b"a", b"b", b"c")
    moved = delete(wire, topic, 2, version)
    assert (moved.error_code, moved.low_watermark) == (0, 2)
    asked = [{"partition_index": 0, "timestamp": -2}]
    answer = wire.call("list_offsets", 5, topics=[{"name": topic, "partitions": asked}])
    assert answer.topics[0].partitions[0].offset == 2
    assert delete(wire, topic, -1, version).low_watermark == 3


def test_offset_beyond_the_end_is_refused(wire: Wire, millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    create_topic(wire, topic)
    refused = delete(wire, topic, 1)
    assert (refused.error_code, refused.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_unknown_topic_is_refused(wire: Wire, millstream: SharedBroker) -> None:
    refused = delete(wire, millstream.unique_topic(), 0)
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
