"""Topics to sockets: to strangers, and to bridges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from confluent_kafka import Producer

from millstream.bridges.config import ZeromqInConfig, ZeromqOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.sending import Sender
from millstream.bridges.zeromq.frames import Heartbeat, parse_frames
from millstream.bridges.zeromq.inbound import Inbound
from millstream.bridges.zeromq.outbound import Outbound
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records
from tests.bridges.zeromq.conftest import wait_for

ANY = ("tcp://127.0.0.1:*",)
Zmq = zmq.Context[zmq.Socket[bytes]]


class Topic:
    """A topic with a sender to a socket."""

    def __init__(self, millstream: SharedBroker) -> None:
        self.name, self.counts = millstream.unique_topic(), Counts()
        self.settings = millstream.client_settings()
        self.producer = Producer(self.settings | {"linger.ms": 0})
        self.running: list[Outbound | Inbound] = []

    def start(self, kind: str, **given: Any) -> Outbound:
        config = ZeromqOutConfig(self.name, kind, self.name, ANY, start="earliest", **given)
        made = Outbound(config, self.settings, self.counts)
        made.start()
        self.running.append(made)
        return made

    def write(self, *values: bytes | None) -> None:
        for value in values:
            self.producer.produce(self.name, value, b"k", partition=0)
        assert self.producer.flush(60) == 0

    def stop(self) -> None:
        for each in self.running:
            each.stop()
        self.running = []


@pytest.fixture
def topic(millstream: SharedBroker) -> Iterator[Topic]:
    made = Topic(millstream)
    yield made
    made.stop()


def connected(context: Zmq, kind: int, outbound: Outbound) -> zmq.Socket[bytes]:
    made = context.socket(kind)
    if kind == zmq.SUB:
        made.setsockopt(zmq.SUBSCRIBE, b"k")
    made.connect(outbound.address)
    return made


def test_stranger_gets_key_and_value(topic: Topic, context: Zmq) -> None:
    topic.write(b"1", None)
    into = connected(context, zmq.PULL, topic.start("push", numbered=False))
    assert [into.recv_multipart() for _ in range(2)] == [[b"k", b"1"], [b"k", b""]]


def test_stranger_subscribes_to_keys(topic: Topic, context: Zmq) -> None:
    into = connected(context, zmq.SUB, topic.start("pub", numbered=False))
    into.setsockopt(zmq.RCVTIMEO, 100)
    found: list[list[bytes]] = []

    def is_received() -> bool:
        topic.write(b"again")  # what comes before the subscription is not sent
        try:
            found.append(into.recv_multipart())
        except zmq.Again:
            return False
        return True

    wait_for(is_received)
    assert found == [[b"k", b"again"]]


def test_group_waits_for_receivers_and_continues_after_a_restart(
    topic: Topic, context: Zmq
) -> None:
    """A PUSH socket without a receiver takes nothing, so nothing is committed or lost."""
    topic.write(b"1", b"2")
    topic.start("push", numbered=False)
    wait_for(lambda: topic.counts.of("zeromq_pauses") == 1)
    topic.stop()
    assert topic.counts.of("records_out") == 0
    first = connected(context, zmq.PULL, topic.start("push", numbered=False))
    assert [first.recv_multipart()[1] for _ in range(2)] == [b"1", b"2"]
    wait_for(lambda: topic.counts.of("records_out") == 2)
    topic.stop()
    topic.write(b"3")
    second = connected(context, zmq.PULL, topic.start("push", numbered=False))
    assert second.recv_multipart()[1] == b"3"


def test_heartbeats_have_the_next_number(topic: Topic, context: Zmq) -> None:
    into = connected(context, zmq.PULL, topic.start("push"))
    heartbeat = parse_frames(into.recv_multipart())
    assert isinstance(heartbeat, Heartbeat)
    assert heartbeat.next == 0


@pytest.mark.parametrize(("sends", "receives"), [("push", "pull"), ("pub", "sub")])
def test_bridge_to_bridge_loses_nothing_and_knows_it(
    topic: Topic, millstream: SharedBroker, sends: str, receives: str
) -> None:
    target, counts = millstream.unique_topic(), Counts()
    outbound = topic.start(sends, hwm=10_000)
    sender = Sender(topic.settings, counts)
    config = ZeromqInConfig("in", receives, target, connect=(outbound.address,))
    inbound = Inbound(config, topic.settings, sender, counts)
    topic.running.append(inbound)
    inbound.start()
    wait_for(lambda: counts.of("zeromq_messages") > 0)  # a heartbeat: it is connected
    values = [b"%d" % it for it in range(500)]
    topic.write(*values, None)
    found = read_records(millstream, target, 501)
    topic.stop()
    sender.close()
    assert [it.value() for it in found] == [*values, None]
    assert [int(dict(it.headers())["zmq-sequence"]) for it in found] == list(range(501))
    assert counts.of("zeromq_lost") == 0
    assert topic.counts.of("records_out") == 501
