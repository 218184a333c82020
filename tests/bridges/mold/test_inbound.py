"""A stream of packets to a topic: dropped on purpose, asked for, given up, continued."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.bridges.config import MoldInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.mold.inbound import GAP_KEY, Inbound, last_position
from millstream.bridges.mold.packets import packets_of, session_of
from millstream.bridges.sending import Sender
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records, wait_for

SESSION = session_of("day 1")


@pytest.fixture
def started(millstream: SharedBroker) -> Iterator[Any]:
    """Starts streams to one topic, and stops them."""
    topic, counts = millstream.unique_topic(), Counts()
    settings = millstream.client_settings()
    sender = Sender(settings, counts)
    running: list[Inbound] = []

    def start() -> Inbound:
        config = MoldInConfig("a", "127.0.0.1:0", topic)
        inbound = Inbound(config, settings, sender, counts)
        inbound.start()
        running.append(inbound)
        return inbound

    start.topic, start.counts, start.settings = topic, counts, settings  # type: ignore[attr-defined]
    yield start
    for one in running:
        one.stop()
    sender.close()


def send(inbound: Inbound, *packets: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for packet in packets:
            out.sendto(packet, inbound._stream.getsockname())


def one(sequence: int) -> bytes:
    return next(packets_of(SESSION, sequence, [b"%d" % sequence]))


def test_lost_packets_become_a_gap_record(started: Any, millstream: SharedBroker) -> None:
    inbound = started()
    send(inbound, one(1), b"nonsense", one(2), one(6))
    records = read_records(millstream, started.topic, 4)
    assert [it.value() for it in records[:2]] == [b"1", b"2"]
    assert records[2].key() == GAP_KEY
    gap = json.loads(records[2].value())
    assert (gap["first"], gap["last"], gap["session"]) == (3, 5, "day 1")
    assert dict(records[3].headers()) == {"mold-session": SESSION, "mold-sequence": b"6"}
    assert started.counts.of("mold_lost") == 3
    assert started.counts.of("mold_bad_packets") == 1
    assert started.counts.of("mold_requests") > 0


def test_stream_continues_after_a_restart(started: Any, millstream: SharedBroker) -> None:
    first = started()
    send(first, one(1), one(2))
    read_records(millstream, started.topic, 2)
    first.stop()
    assert last_position(started.settings, started.topic) == (SESSION, 2)
    second = started()
    send(second, one(4))
    found = read_records(millstream, started.topic, 4)
    assert found[2].key() == GAP_KEY
    assert json.loads(found[2].value())["first"] == 3


def test_empty_messages_are_records_unless_a_bridge_sent_them(
    started: Any, millstream: SharedBroker
) -> None:
    inbound = started()
    send(inbound, *packets_of(SESSION, 1, [b"a", b"", b"b"]))
    assert [it.value() for it in read_records(millstream, started.topic, 3)] == [b"a", b"", b"b"]
    inbound._config = MoldInConfig("a", "127.0.0.1:0", started.topic, skip_empty=True)
    send(inbound, *packets_of(SESSION, 4, [b"", b"c"]))
    assert read_records(millstream, started.topic, 4)[3].value() == b"c"


def test_what_the_cluster_does_not_take_becomes_a_gap(
    started: Any, millstream: SharedBroker
) -> None:
    inbound = started()
    real = inbound._sender.send
    refused = []

    def refuse(topic: str, record: Any, done: Any) -> None:
        refused.append(record)
        done(Written(status=503, error="away"))

    send(inbound, one(1))
    read_records(millstream, started.topic, 1)
    inbound._sender.send = refuse
    send(inbound, one(2), one(3))
    wait_for(lambda: len(refused) >= 3)  # the report, too
    inbound._sender.send = real
    gap = read_records(millstream, started.topic, 2)[1]
    body = json.loads(gap.value())
    assert (gap.key(), body["first"], body["last"]) == (GAP_KEY, 2, 3)
    assert body["reason"] == "not written: away"
    assert started.counts.of("mold_lost") == 2
    send(inbound, one(4))
    assert read_records(millstream, started.topic, 3)[2].value() == b"4"
    inbound.stop()
    assert last_position(started.settings, started.topic) == (SESSION, 4)


def test_request_that_cannot_be_sent_does_not_end_the_stream(
    started: Any, millstream: SharedBroker
) -> None:
    inbound = started()
    inbound._config = MoldInConfig("a", "127.0.0.1:0", started.topic, "255.255.255.255:9")
    send(inbound, one(1), one(3))  # a broadcast needs a permission that the socket does not have
    assert [it.value() for it in read_records(millstream, started.topic, 3)][2] == b"3"
    assert started.counts.of("failures") == 0


def test_position_is_found_before_markers_of_transactions(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    settings = millstream.client_settings()
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    headers = {"mold-session": SESSION, "mold-sequence": b"7"}
    producer.produce(topic, b"a", partition=0, headers=headers)
    producer.commit_transaction(60)
    assert last_position(settings, topic) == (SESSION, 7)


def test_topic_without_a_stream_has_no_position(millstream: SharedBroker) -> None:
    settings = millstream.client_settings()
    assert last_position(settings, millstream.unique_topic()) == (None, None)
