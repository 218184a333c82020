"""The topic of events: conditions, partitions, and what a reader of committed records sees."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from millstream.cli.entry import main
from millstream.cli.options import BOOTSTRAP_VARIABLE
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError, MillstreamError
from millstream.events import Event, EventLog, NotAnEvent, Origin
from millstream.events import log as log_module
from millstream.events.handler import stored_events
from millstream.events.log import Conflict
from millstream.records.record import Record, encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.patience import PATIENCE_SECONDS

NOW_MS = int(time.time() * 1000)  # retention takes older records


@pytest.fixture
def log(millstream: SharedBroker) -> Iterator[EventLog]:
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        log.create(partitions=3)
        yield log


def test_events_are_appended_once_and_read_in_order(log: EventLog) -> None:
    events = stored_events("a", 0, [Event("one"), Event("two", {"n": 1})], Origin("c"))
    partition = log.partition_of("a")
    assert log.append(partition, events) == 0
    assert log.append(partition, events) == 0  # the same again, as after a lost answer
    assert log.end_offset(partition) == 2
    with pytest.raises(Conflict, match="at version 2"):
        log.append(partition, stored_events("a", 0, [Event("other")], Origin("d")))
    log.append(partition, stored_events("a", 2, [Event("three")], Origin("e")))
    read = list(log.events(partition, 0, 3))
    assert [it.event.type for it in read] == ["one", "two", "three"]
    assert [it.version for it in read] == [1, 2, 3]
    assert list(log.events(partition, 1, 2)) == [read[1]]


def test_partition_is_that_of_other_clients(log: EventLog, millstream: SharedBroker) -> None:
    chosen: dict[str, int] = {}
    producer = Producer(
        {"bootstrap.servers": millstream.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for number in range(20):
        producer.produce(
            log.topic,
            b"{}",
            f"id-{number}",
            headers={"millstream-version": "1"},
            on_delivery=lambda error, message: chosen.update(
                {message.key().decode(): message.partition()}
            ),
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert chosen == {key: log.partition_of(key) for key in chosen}
    assert len(chosen) == 20


def test_topic_without_conditional_append_is_refused(millstream: SharedBroker) -> None:
    with EventLog(millstream.bootstrap_servers, millstream.unique_topic()) as log:
        create_topics(log.cluster, [NewTopic(log.topic, 1)])
        with pytest.raises(ConfigError, match="set it to version, or use SingleWriter"):
            log.check_conditional()


def test_events_of_one_command_are_one_batch_of_bounded_size(log: EventLog) -> None:
    events = stored_events("a", 0, [Event("x", {"y": "z" * 600_000})] * 2, Origin("c"))
    with pytest.raises(MillstreamError, match="more than 1000000"):
        log.append(0, events)


def read_all(log: EventLog) -> list[Record]:
    """All committed records, once the markers of transactions are visible: an end of a transaction
    is answered before that."""
    records: list[Record] = []
    offset, end = 0, log.end_offset(0)
    while offset < end:
        read = log.read(0, offset, wait_ms=100)
        records += read.records
        offset = read.next_offset
    return records


@pytest.mark.parametrize("commit", [True, False])
def test_reader_sees_committed_records_only(log: EventLog, commit: bool) -> None:
    plain = EventLog.beside(log, f"{log.topic}-plain")
    create_topics(log.cluster, [NewTopic(plain.topic, 1)])
    producer = RawProducer(log.cluster)
    producer.begin(str(uuid.uuid4()))
    for number in range(2):
        identity = producer.identity(plain.topic, 0)
        batch = encode_batch(
            [Record(0, NOW_MS, b"k", b"%d" % number)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.base_sequence,
            is_transactional=True,
        )
        producer.send(plain.topic, 0, batch, 1)
        producer.flush()
        assert plain.read(0, 0).records == []
    producer.end(commit=commit)
    plain.append_batch(0, encode_batch([Record(0, NOW_MS, b"k", b"after")]))
    seen = [it.value for it in read_all(plain)]
    assert seen == ([b"0", b"1", b"after"] if commit else [b"after"])


def test_record_that_is_no_event_is_named_with_a_cure_that_works(
    log: EventLog, millstream: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = stored_events("a", 0, [Event("one")], Origin("c"))
    partition = log.partition_of("a")
    log.append(partition, events)
    foreign = Record(0, NOW_MS, b"x", b"{}", (("millstream-version", b"1"),))
    log.append_batch(partition, encode_batch([foreign]))
    log.append(partition, stored_events("a", 1, [Event("two")], Origin("d")))
    with pytest.raises(NotAnEvent, match=f"record {partition}:1 is not an event") as caught:
        list(log.events(partition, 0, 3))
    command = shlex.split(str(caught.value).partition("Remove the record: ")[2])
    assert command[0] == "millstream"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, millstream.bootstrap_servers)
    with pytest.raises(SystemExit) as ended:
        main([*command[1:], "--yes"])
    assert ended.value.code in (None, 0)
    assert [it.event.type for it in log.events(partition, 0, 3)] == ["one", "two"]
    log.append(partition, stored_events("a", 2, [Event("three")], Origin("e")))


def test_record_is_missed_only_where_it_could_be_read(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader does not show all committed records at once."""
    partition = log.partition_of("a")
    offset = log.append(partition, stored_events("a", 0, [Event("one")], Origin("c")))
    assert log.has_record(partition, offset)
    monkeypatch.setattr(log_module, "last_stable_offset", lambda *_: offset)
    monkeypatch.setattr(log, "read", lambda *_, **__: pytest.fail("it cannot be there yet"))
    assert log.has_record(partition, offset)
