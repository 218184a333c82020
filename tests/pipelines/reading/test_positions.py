"""Where topics begin and end, asked of a real broker."""

from __future__ import annotations

import pytest

from millstream.errors import ApiError, ConfigError
from millstream.pipelines.offsets import DECISIONS_TOPIC, QueriesEnd
from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.reading.positions import DataLost, Positions, skip_deleted
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
    with pytest.raises(ConfigError, match=f"assign: {topic} has 2 partitions, and no partition 7"):
        positions_of(topics, assign=f'{{"{topic}": [7]}}').partitions()


def test_positions_by_pattern_leave_internal_topics_alone(topics: Topics) -> None:
    topics.fill(topics.create(), [b"a"])
    decisions = positions_of(topics, subscribe=DECISIONS_TOPIC)
    if decisions.find()[1]:
        topics.create(name=DECISIONS_TOPIC, cleanup_policy="compact")
    found = positions_of(topics, subscribePattern=".*").partitions()
    assert found
    assert not [topic for topic, _ in found if topic.startswith("__")]
    assert decisions.partitions(), "whoever names it may look into it"


def test_positions_resolve_offsets_ends_and_moments(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"a", b"b"])
    here = [(topic, 0)]

    def start(*, streaming: bool = True, **options: str) -> int:
        given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic} | options
        read = parse_read_options(given, streaming=streaming)
        return Positions(read).resolve(read.starting, here)[topic, 0]

    assert start() == 2
    assert start(streaming=False) == 0
    assert start(startingOffsets="earliest") == 0
    for offset, found in ((1, 1), (-1, 2), (-2, 0)):
        assert start(startingOffsets=f'{{"{topic}": {{"0": {offset}}}}}') == found
    assert start(startingTimestamp="1000") == 0
    assert start(startingOffsetsByTimestamp=f'{{"{topic}": {{"0": 1000}}}}') == 0
    with pytest.raises(ConfigError, match=r"no record as new as .*Strategy=latest"):
        start(startingTimestamp=str(2**42))
    later = {"startingTimestamp": str(2**42), "startingOffsetsByTimestampStrategy": "latest"}
    assert start(**later) == 2


def test_positions_are_named_for_all_partitions_or_none(topics: Topics) -> None:
    topic = topics.create(partitions=2)

    def start(offsets: str) -> None:
        given = {"subscribe": topic, "startingOffsets": offsets}
        read = parse_read_options(
            {"kafka.bootstrap.servers": topics.bootstrap} | given, streaming=True
        )
        Positions(read).resolve(read.starting, [(topic, 0), (topic, 1)])

    with pytest.raises(ConfigError, match=r"is given for other-0, which is not read"):
        start('{"other": {"0": 1}}')
    with pytest.raises(ConfigError, match=rf"{topic}-1 is read, but is not given an offset"):
        start(f'{{"{topic}": {{"0": 1}}}}')


def test_skip_deleted_fails_or_warns_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
    strict = parse_read_options(given, streaming=False)
    lenient = parse_read_options(given | {"failOnDataLoss": "false"}, streaming=False)
    start, earliest = {("t", 0): 5, ("t", 1): 9}, {("t", 0): 8, ("t", 1): 0}
    with pytest.raises(DataLost, match=r"t-0 offsets 5 to 7.*retention.ms.*failOnDataLoss=false"):
        skip_deleted(strict, start, earliest)
    assert skip_deleted(lenient, start, earliest) == {("t", 0): 8, ("t", 1): 9}
    assert "t-0 offsets 5 to 7" in caplog.text
    assert skip_deleted(strict, start, {("t", 0): 0}) == start


def test_end_of_the_queries_needs_a_topic_of_one_partition(topics: Topics) -> None:
    events, searches, wide = topics.create(), topics.create(), topics.create(partitions=2)
    assert positions_of(topics, subscribe=events).queries_end() is None
    topics.fill(searches, [b"a", b"b"])
    found = positions_of(topics, subscribe=events, queriesTopic=searches).queries_end()
    assert found is not None
    assert found.end == 2
    assert found.topic_id is not None
    with pytest.raises(ConfigError, match=f"topic {wide} of standing queries has 2 partitions"):
        positions_of(topics, subscribe=events, queriesTopic=wide).queries_end()
    with pytest.raises(ConfigError, match="nowhere of standing queries does not exist"):
        positions_of(topics, subscribe=events, queriesTopic="nowhere").queries_end()


def test_batch_that_was_planned_with_another_topic_of_queries_is_not_repeated(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    events, searches = topics.create(), topics.create()
    topics.fill(searches, [b"a", b"b"])
    strict = positions_of(topics, subscribe=events, queriesTopic=searches)
    planned = strict.queries_end()
    assert planned is not None
    assert strict.planned_queries_end(planned) == 2
    assert strict.planned_queries_end(QueriesEnd(2)) == 2  # by an earlier version of Millstream
    assert strict.planned_queries_end(None) is None
    topics.delete(searches)
    topics.create(name=searches)
    topics.fill(searches, [b"c"])
    with pytest.raises(DataLost, match=f"{searches} of standing queries was deleted and recreated"):
        strict.planned_queries_end(planned)
    options = {"queriesTopic": searches, "failOnDataLoss": "false"}
    lenient = positions_of(topics, subscribe=events, **options)
    assert lenient.planned_queries_end(planned) == 1
    assert "deleted and recreated" in caplog.text
