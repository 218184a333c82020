"""What batches and micro-batches read, of topics on a real broker that change in between."""

from __future__ import annotations

import json
import time
from uuid import UUID

import pytest

from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange, Offsets
from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.reading.planning import StreamPlanner, plan_batch
from millstream.pipelines.reading.positions import DataLost, Positions
from millstream.testing.clock import ManualClock
from tests.pipelines.conftest import Topics


def batch_of(topics: Topics, topic: str, **options: str) -> list[OffsetRange]:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic} | options
    read = parse_read_options(given, streaming=False)
    return plan_batch(read, Positions(read))


def planner_of(topics: Topics, clock: ManualClock | None = None, **options: str) -> StreamPlanner:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "startingOffsets": "earliest"} | options
    read = parse_read_options(given, streaming=True)
    return StreamPlanner(read, Positions(read), clock or ManualClock())


def at(topic: str, *offsets: int) -> Offsets:
    return {(topic, number): offset for number, offset in enumerate(offsets)}


def named(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


# Batches


def test_batch_has_a_task_for_each_partition_with_records(topics: Topics) -> None:
    topic = topics.create(partitions=3)
    topics.fill(topic, [b"x"] * 4, partition=0)
    topics.fill(topic, [b"x"] * 2, partition=2)
    assert batch_of(topics, topic) == [OffsetRange(topic, 0, 0, 4), OffsetRange(topic, 2, 0, 2)]
    assert len(batch_of(topics, topic, minPartitions="6")) == 6
    pieces = batch_of(topics, topic, maxRecordsPerPartition="3")
    assert [it.size for it in pieces] == [2, 2, 2]


def test_batch_of_an_empty_topic_has_no_tasks(topics: Topics) -> None:
    assert batch_of(topics, topics.create(partitions=2)) == []


def test_batch_refuses_offsets_beyond_the_end(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 4)
    with pytest.raises(ConfigError, match=f"endingOffsets of {topic}-0 is 9, but .* ends at 4"):
        batch_of(topics, topic, endingOffsets=named(topic, 9))
    begin = {"startingOffsets": named(topic, 9)}
    with pytest.raises(DataLost, match=f"startingOffsets of {topic}-0 is 9, but its log ends at 4"):
        batch_of(topics, topic, **begin)
    assert batch_of(topics, topic, **begin, failOnDataLoss="false") == []


def test_batch_reports_what_was_deleted_before(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 6)
    topics.delete_records(topic, 4)
    assert batch_of(topics, topic) == [OffsetRange(topic, 0, 4, 6)]
    begin = {"startingOffsets": named(topic, 1)}
    with pytest.raises(DataLost, match=f"{topic}-0 offsets 1 to 3.*failOnDataLoss=false"):
        batch_of(topics, topic, **begin)
    assert batch_of(topics, topic, **begin, failOnDataLoss="false") == [OffsetRange(topic, 0, 4, 6)]


# Limits of micro-batches


def test_stream_obeys_least_most_and_delay_together(topics: Topics) -> None:
    topic = topics.create()
    clock = ManualClock()
    planner = planner_of(
        topics,
        clock,
        subscribe=topic,
        minOffsetsPerTrigger="4",
        maxOffsetsPerTrigger="6",
        maxTriggerDelay="10s",
    )
    place = planner.initial()
    topics.fill(topic, [b"x"])
    place = planner.next_end(place)
    assert place == at(topic, 1), "the first batch does not wait"
    topics.fill(topic, [b"x"] * 3)
    assert planner.next_end(place) == place, "three are not enough"
    topics.fill(topic, [b"x"] * 5)
    place = planner.next_end(place)
    assert place == at(topic, 7), "eight are too many at once"
    assert planner.next_end(place) == place
    clock.advance(10_000)
    assert planner.next_end(place) == at(topic, 9), "long enough waited"
    assert planner.latest == at(topic, 9)


def test_stream_is_idle_when_all_is_read_and_no_transaction_is_open(topics: Topics) -> None:
    from confluent_kafka import Producer

    topic = topics.create()
    clock = ManualClock()
    idle = {"idleAfter": "10s", "idleColumn": "at"}
    planner = planner_of(topics, clock, subscribe=topic, maxOffsetsPerTrigger="2", **idle)
    topics.fill(topic, [b"x"] * 3)
    place = planner.initial()
    for expected in (2, 3):
        clock.advance(10_000)
        end = planner.next_end(place)
        assert end == at(topic, expected)
        assert planner.idle_until_ms(place, None) is None, "it is behind"
        place = end
    assert planner.next_end(place) == place
    assert planner.idle_until_ms(place, None) is None
    clock.advance(10_000)
    assert planner.next_end(place) == place
    tick_ms = planner.idle_until_ms(place, None)
    assert tick_ms == clock.now_ms() - 10_000
    assert planner.idle_until_ms(place, tick_ms) == tick_ms, "no other yet"
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"y")
    producer.flush(60)
    clock.advance(10_000)
    assert planner.next_end(place) == place
    assert planner.idle_until_ms(place, tick_ms) == tick_ms, "its records are on their way"
    producer.abort_transaction(60)


def test_stream_that_ends_when_all_is_read_has_no_ticks(topics: Topics) -> None:
    clock = ManualClock()
    planner = planner_of(topics, clock, subscribe=topics.create(), idleAfter="10s", idleColumn="at")
    place = planner.initial()
    planner.fix_target()
    for _ in range(3):
        assert planner.next_end(place) == place
        assert planner.idle_until_ms(place, None) is None
        clock.advance(60_000)


def test_stream_reads_all_at_once_where_spark_asks_for_it(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    planner = planner_of(topics, subscribe=topic, maxOffsetsPerTrigger="2")
    assert planner.next_end(planner.initial(), without_limit=True) == at(topic, 5)


def test_stream_of_what_is_there_now_ends_there(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    planner = planner_of(topics, subscribe=topic, maxOffsetsPerTrigger="3")
    place = planner.initial()
    planner.fix_target()
    topics.fill(topic, [b"x"] * 5)
    topics.grow(topic, 2)
    topics.fill(topic, [b"x"], partition=1)
    place = planner.next_end(place)
    place = planner.next_end(place)
    assert place == at(topic, 5)
    assert planner.next_end(place) == place
    again = planner_of(topics, subscribe=topic)
    again.fix_target()
    place = again.next_end(place)
    assert place == at(topic, 10, 1)
    assert again.next_end(place) == place


# Topics that come, change and go


def test_stream_finds_new_partitions_and_topics(topics: Topics) -> None:
    first = topics.create()
    topics.fill(first, [b"x"])
    planner = planner_of(topics, subscribePattern=f"{first}.*")
    place = planner.next_end(planner.initial())
    assert place == at(first, 1)
    topics.grow(first, 2)
    topics.fill(first, [b"x"] * 2, partition=1)
    other = topics.create(name=f"{first}-other")
    topics.fill(other, [b"x"] * 3)
    end = planner.next_end(place)
    assert end == at(first, 1, 2) | at(other, 3)
    assert planner.tasks(place, end) == [OffsetRange(first, 1, 0, 2), OffsetRange(other, 0, 0, 3)]


def test_stream_reports_records_deleted_before_they_were_read(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 9)
    topics.delete_records(topic, 5)
    with pytest.raises(DataLost, match=f"{topic}-0 offsets 2 to 4"):
        planner_of(topics, subscribe=topic).tasks(at(topic, 2), at(topic, 9))
    lenient = planner_of(topics, subscribe=topic, failOnDataLoss="false")
    assert lenient.tasks(at(topic, 2), at(topic, 9)) == [OffsetRange(topic, 0, 5, 9)]
    assert lenient.tasks(at(topic, 2), at(topic, 4)) == []


def test_stream_reports_a_topic_that_was_deleted(topics: Topics) -> None:
    gone, there = topics.create(), topics.create()
    both = f"{gone},{there}"
    topics.fill(gone, [b"x"] * 3)
    strict = planner_of(topics, subscribe=both)
    lenient = planner_of(topics, subscribe=both, failOnDataLoss="false")
    place = strict.initial()
    topics.delete(gone)
    with pytest.raises(DataLost, match=f"{gone}-0: deleted.*Restore the topic.*failOnDataLoss"):
        strict.next_end(place)
    with pytest.raises(DataLost, match=f"{gone}-0: deleted"):
        planner_of(topics, subscribe=both).tasks(place, at(gone, 3) | at(there, 0))
    assert lenient.next_end(place) == at(there, 0)
    assert lenient.tasks(place, at(gone, 3) | at(there, 0)) == []


@pytest.mark.parametrize("records_now", [2, 9])
def test_stream_reads_a_recreated_topic_from_its_beginning(
    topics: Topics, records_now: int
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    strict = planner_of(topics, subscribe=topic)
    lenient = planner_of(topics, subscribe=topic, failOnDataLoss="false")
    place = strict.next_end(strict.initial())
    assert lenient.next_end(place) == place
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, [b"x"] * records_now)
    with pytest.raises(DataLost, match=f"{topic} was deleted and recreated"):
        strict.next_end(place)
    end = lenient.next_end(place)
    assert end == at(topic, records_now)
    for _ in range(2):  # Spark asks for each scan of the source
        assert lenient.tasks(place, end) == [OffsetRange(topic, 0, 0, records_now)]
    assert lenient.next_end(end) == end


def recreated(topics: Topics, name: str, records: int) -> UUID:
    """Delete a topic and create it again with as many records; the id that it had."""
    with Cluster(topics.bootstrap) as cluster:
        topic_id = cluster.refresh([name])[name].id
    topics.delete(name)
    topics.create(name=name)
    topics.fill(name, [b"new"] * records)
    assert topic_id is not None
    return topic_id


@pytest.mark.parametrize("records", [2, 3, 9], ids=["shorter", "as long", "longer"])
def test_stream_reads_a_topic_recreated_while_it_stood_from_its_beginning(
    topics: Topics, records: int
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"old"] * 3)
    old_id = recreated(topics, topic, records)
    ids = {topic: old_id}
    with pytest.raises(DataLost, match=f"topic {topic} was deleted and recreated"):
        planner_of(topics, subscribe=topic).next_end(at(topic, 3), topic_ids=ids)
    forgiving = {"subscribe": topic, "failOnDataLoss": "false"}
    planner = planner_of(topics, **forgiving)
    end = planner.next_end(at(topic, 3), topic_ids=ids)
    assert end == at(topic, records)
    new_ids = {topic: planner._positions.topic_ids[topic]}
    whole = [OffsetRange(topic, 0, 0, records)]
    assert planner.tasks(at(topic, 3), end, ids, new_ids) == whole
    replaying = planner_of(topics, **forgiving)  # after a crash in this batch
    assert replaying.tasks(at(topic, 3), end, ids, new_ids) == whole
    assert replaying.next_end(end, topic_ids=new_ids) == end


def test_batch_of_a_topic_that_was_recreated_since_is_repeated_without_it(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"old"] * 3)
    ids = {topic: recreated(topics, topic, 9)}
    planner = planner_of(topics, subscribe=topic, failOnDataLoss="false")
    assert planner.tasks(at(topic, 1), at(topic, 3), ids, ids) == []
    assert planner.next_end(at(topic, 3), topic_ids=ids) == at(topic, 9)


def test_first_batch_that_began_at_the_end_is_not_repeated_with_all_history(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    latest = {"subscribe": topic, "startingOffsets": "latest"}
    cut_off = planner_of(topics, **latest)
    start = cut_off.initial()
    topics.fill(topic, [b"x"] * 2)
    end = cut_off.next_end(start)
    assert cut_off.tasks(start, end) == [OffsetRange(topic, 0, 5, 7)]
    topics.fill(topic, [b"x"] * 2)
    restarted = planner_of(topics, **latest)
    assert restarted.tasks(restarted.initial(), end) == []
    assert f"ends at 7 in {topic}-0" in caplog.text
    assert restarted.tasks(end, restarted.next_end(end)) == [OffsetRange(topic, 0, 7, 9)]


def test_batch_of_a_recreated_topic_is_repeated_although_it_has_grown(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 9)
    restarted = planner_of(topics, subscribe=topic, failOnDataLoss="false")
    assert restarted.tasks(at(topic, 8), at(topic, 2)) == [OffsetRange(topic, 0, 0, 2)]


def test_stream_that_began_at_the_end_reads_a_recreated_topic(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 5)
    planner = planner_of(topics, subscribe=topic, startingOffsets="latest", failOnDataLoss="false")
    start = planner.initial()
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, [b"x"] * 2)
    end = planner.next_end(start)
    for _ in range(2):
        assert planner.tasks(start, end) == [OffsetRange(topic, 0, 0, 2)]


def test_first_batch_from_offsets_that_are_named_is_not_left_out(topics: Topics) -> None:
    """Where it begins is known: it ends before that because the topic was recreated."""
    topic = topics.create()
    topics.fill(topic, [b"x"] * 9)
    options = {"startingOffsets": named(topic, 8), "failOnDataLoss": "false"}
    restarted = planner_of(topics, subscribe=topic, **options)
    assert restarted.tasks(restarted.initial(), at(topic, 2)) == [OffsetRange(topic, 0, 0, 2)]


def test_stream_reports_a_planned_batch_that_the_log_has_no_more(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x"] * 3)
    with pytest.raises(DataLost, match=f"{topic}-0 ends at 3, the query is at 8"):
        planner_of(topics, subscribe=topic).tasks(at(topic, 1), at(topic, 8))
    lenient = planner_of(topics, subscribe=topic, failOnDataLoss="false")
    assert lenient.tasks(at(topic, 1), at(topic, 8)) == [OffsetRange(topic, 0, 1, 3)]


def test_stream_reads_up_to_the_first_open_transaction(topics: Topics) -> None:
    from confluent_kafka import Producer

    topic = topics.create()
    topics.fill(topic, [b"x"] * 2)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(60)
    committed = planner_of(topics, subscribe=topic)
    everything = planner_of(
        topics, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"}
    )
    assert committed.next_end(committed.initial()) == at(topic, 2)
    beyond = everything.next_end(everything.initial())
    assert beyond == at(topic, 3)
    # Who was a reader of uncommitted records before has lost nothing.
    assert committed.next_end(beyond) == beyond
    producer.abort_transaction(60)
    deadline = time.monotonic() + 60
    while committed.next_end(beyond) == beyond:  # until the marker is written
        assert time.monotonic() < deadline
    assert committed.next_end(beyond) == at(topic, 4)
