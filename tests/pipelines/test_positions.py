"""Where topics begin and end, asked of a real broker."""

from __future__ import annotations

import pytest

from millstream.errors import ApiError, ConfigError
from millstream.pipelines.options import parse_read_options
from millstream.pipelines.positions import DataLost, Positions, check_for_loss
from tests.pipelines.conftest import Topics


def positions_of(topics: Topics, **options: str) -> Positions:
    given = {"kafka.bootstrap.servers": topics.bootstrap} | options
    return Positions(parse_read_options(given, streaming=False))


def test_positions_find_partitions_by_name_pattern_and_assignment(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    both = [(topic, 0), (topic, 1)]
    assert positions_of(topics, subscribe=topic).partitions() == both
    assert positions_of(topics, subscribePattern=f"{topic[:-1]}.").partitions() == both
    assert positions_of(topics, assign=f'{{"{topic}": [1]}}').partitions() == [(topic, 1)]
    with pytest.raises(ApiError, match=r"there is no topic nowhere at .*; create it first"):
        positions_of(topics, subscribe="nowhere").partitions()


def test_positions_resolve_offsets_ends_and_moments(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"a", b"b"])
    here = [(topic, 0)]

    def start(**options: str) -> int:
        given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic} | options
        read = parse_read_options(given, streaming=False)
        return Positions(read).resolve(read.starting, here)[topic, 0]

    assert start() == 0
    assert start(startingOffsets="latest") == 2
    assert start(startingOffsets=f'{{"{topic}": {{"0": 1}}}}') == 1
    assert start(startingTimestamp="1000") == 0
    with pytest.raises(ConfigError, match=r"no record as new as .*Strategy=latest"):
        start(startingTimestamp=str(2**42))
    later = {"startingTimestamp": str(2**42), "startingOffsetsByTimestampStrategy": "latest"}
    assert start(**later) == 2
    with pytest.raises(ConfigError, match="given for other-0, which is not among what is read"):
        start(startingOffsets='{"other": {"0": 1}}')


def test_check_for_loss_fails_or_reports_and_goes_on() -> None:
    start, earliest = {("t", 0): 5, ("t", 1): 9}, {("t", 0): 8, ("t", 1): 0}
    with pytest.raises(DataLost, match=r"t-0: 5 to 7.*failOnDataLoss=false"):
        check_for_loss(start, earliest, fail=True, report=print)
    told: list[str] = []
    moved = check_for_loss(start, earliest, fail=False, report=told.append)
    assert moved == {("t", 0): 8, ("t", 1): 9}
    assert "t-0: 5 to 7" in told[0]
    assert check_for_loss(start, {("t", 0): 0}, fail=True, report=print) is start
