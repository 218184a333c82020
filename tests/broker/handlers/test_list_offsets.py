"""ListOffsets: the ends of a log, and offsets by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import append, create_topic
from tests.broker.handlers.transaction_calls import new_producer
from tests.peers.wire import Wire

HOUR_AGO_MS = 3_600_000


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def topic(wire: Wire, millstream: SharedBroker, now_ms: int) -> str:
    """Offsets 0 to 3, with timestamps now - 3000, - 1000, - 2000 and - 2000."""
    name = millstream.unique_topic()
    create_topic(wire, name)
    for age_ms in (3000, 1000):
        append(wire, name, b"x", timestamp_ms=now_ms - age_ms)
    append(wire, name, b"x", b"x", timestamp_ms=now_ms - 2000)
    return name


def look_up(wire: Wire, topic: str, timestamp: int, version: int = 11, **fields: Any) -> Any:
    isolation = fields.pop("isolation_level", 0)
    partition = {"partition_index": 0, "timestamp": timestamp, **fields}
    options: dict[str, Any] = {"isolation_level": isolation} if version >= 2 else {}
    answer = wire.call(
        "list_offsets",
        version,
        replica_id=-1,
        topics=[{"name": topic, "partitions": [partition]}],
        **options,
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(2, 12))
def test_latest_committed_offset_is_where_an_open_transaction_begins(
    millstream: SharedBroker, wire: Wire, topic: str, now_ms: int, version: int
) -> None:
    with new_producer(millstream, protocol=2) as producer:
        producer.produce(topic, [b"a"], timestamp_ms=now_ms)
        assert look_up(wire, topic, -1, version).offset == 5
        assert look_up(wire, topic, -1, version, isolation_level=1).offset == 4
        assert look_up(wire, topic, now_ms, version).offset == 4
        assert look_up(wire, topic, now_ms, version, isolation_level=1).offset == -1


@pytest.mark.parametrize("version", range(1, 12))
def test_ends_of_the_log_in_every_version(wire: Wire, topic: str, version: int) -> None:
    assert look_up(wire, topic, -1, version).offset == 4
    assert look_up(wire, topic, -2, version).offset == 0


def test_timestamp_finds_the_first_record_as_new_or_newer(
    wire: Wire, topic: str, now_ms: int
) -> None:
    for age_ms, offset in ((9000, 0), (3000, 0), (2500, 1), (1500, 1), (1000, 1)):
        found = look_up(wire, topic, now_ms - age_ms)
        assert (found.error_code, found.offset) == (0, offset)
    nothing = look_up(wire, topic, now_ms + HOUR_AGO_MS)
    assert (nothing.error_code, nothing.offset, nothing.timestamp) == (0, -1, -1)


def test_special_timestamps(wire: Wire, topic: str, now_ms: int) -> None:
    newest = look_up(wire, topic, -3)
    assert (newest.offset, newest.timestamp) == (1, now_ms - 1000)
    assert look_up(wire, topic, -4).offset == 0
    assert look_up(wire, topic, -5).offset == -1


@pytest.mark.parametrize(("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_special_timestamps_have_their_first_version(
    wire: Wire, topic: str, timestamp: int, first_version: int
) -> None:
    too_old = look_up(wire, topic, timestamp, first_version - 1)
    assert too_old.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert look_up(wire, topic, timestamp, first_version).error_code == 0


def test_read_committed_is_the_last_stable_offset(wire: Wire, topic: str) -> None:
    assert look_up(wire, topic, -1, isolation_level=1).offset == 4


def test_leader_epoch_is_checked(wire: Wire, topic: str) -> None:
    assert look_up(wire, topic, -1, current_leader_epoch=0).error_code == 0
    newer = look_up(wire, topic, -1, current_leader_epoch=9)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_unknown_topic_is_refused(wire: Wire, millstream: SharedBroker) -> None:
    unknown = look_up(wire, millstream.unique_topic(), -1)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
