"""Multicast on the loopback interface, from end to end: a topic to a group, and a group to a topic,
with packets dropped on purpose and asked for again. Also from a sender in C."""

from __future__ import annotations

import json
import random
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.bridges.config import MoldInConfig, MoldOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.mold.inbound import GAP_KEY, Inbound
from millstream.bridges.mold.outbound import Outbound
from millstream.bridges.mold.packets import parse_packet
from millstream.bridges.sending import Sender
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records, wait_for
from tests.peers.c_programs import udp_sender
from tests.peers.cache import PeerMissing

LOOPBACK = "127.0.0.1"
NUMBER = 60


def group() -> str:
    """A group and a port that no other test uses at the same time."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    return f"239.{port >> 8}.{port & 255}.7:{port}"


class Streams:
    """Streams of the session's broker, stopped at the end."""

    def __init__(self, millstream: SharedBroker) -> None:
        self.counts = Counts()
        self.settings = millstream.client_settings()
        self.sender = Sender(self.settings, self.counts)
        self.running: list[Inbound | Outbound] = []

    def receive(self, topic: str, listen: str, request: str | None, is_lost: Any) -> Inbound:
        config = MoldInConfig("in", listen, topic, request, LOOPBACK)
        return self._started(Inbound(config, self.settings, self.sender, self.counts, is_lost))

    def publish(self, topic: str, to: str) -> Outbound:
        config = MoldOutConfig(
            "out", topic, to, f"{LOOPBACK}:0", LOOPBACK, session="s", start="earliest", ttl=0
        )
        return self._started(Outbound(config, self.settings, self.counts))

    def _started(self, made: Any) -> Any:
        made.start()
        self.running.append(made)
        return made

    def stop(self) -> None:
        for one in reversed(self.running):
            one.stop()
        self.sender.close()


@pytest.fixture
def streams(millstream: SharedBroker) -> Iterator[Streams]:
    made = Streams(millstream)
    yield made
    made.stop()


def test_topic_reaches_two_receivers_of_a_group_though_packets_are_lost(
    streams: Streams, millstream: SharedBroker
) -> None:
    source, targets = millstream.unique_topic(), [millstream.unique_topic() for _ in range(2)]
    admin = AdminClient(streams.settings)
    admin.create_topics([NewTopic(source, 1)])[source].result(60)
    to, lost = group(), [0, 0]
    outbound = streams.publish(source, to)

    def losing(receiver: int) -> Any:
        dice = random.Random(receiver)
        heard = 0

        def is_lost(data: bytes) -> bool:
            nonlocal heard
            heard += bool(parse_packet(data).messages)
            found = heard > 1 and bool(parse_packet(data).messages) and dice.random() < 0.3
            lost[receiver] += found
            return found

        return is_lost

    for receiver, target in enumerate(targets):
        streams.receive(target, to, outbound.requests_address, losing(receiver))
    producer = Producer(streams.settings | {"linger.ms": 0})
    for number in range(NUMBER):
        producer.produce(source, b"%d" % number, partition=0)
        if number % 5 == 0:
            assert producer.flush(60) == 0
            wait_for(lambda: outbound._sequence == number + 2)  # noqa: B023 - called at once
    assert producer.flush(60) == 0
    for target in targets:
        found = read_records(millstream, target, NUMBER)
        assert [it.value() for it in found] == [b"%d" % it for it in range(NUMBER)]
    assert min(lost) > 0
    assert streams.counts.of("mold_lost") == 0
    assert streams.counts.of("mold_answers") > 0


def test_gaps_of_a_sender_in_c_become_gap_records(
    streams: Streams, millstream: SharedBroker
) -> None:
    """Nobody answers requests, so what was not sent is given up."""
    try:
        sender = udp_sender()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    target, listen = millstream.unique_topic(), group()
    streams.receive(target, listen, None, lambda _: False)
    host, _, port = listen.partition(":")
    command = [sender, "mold", host, port, LOOPBACK, "day 1", "1", "41", "7"]
    subprocess.run([str(it) for it in command], check=True)
    lost = {13, 14, 27, 28, 41}  # the packets 7, 14 and 21, the last of one message
    found = read_records(millstream, target, 41 - len(lost) + 3)
    values = [it.value() for it in found if it.key() != GAP_KEY]
    assert values == [b"price %d" % it for it in range(1, 42) if it not in lost]
    gaps = [json.loads(it.value()) for it in found if it.key() == GAP_KEY]
    assert [(it["first"], it["last"]) for it in gaps] == [(13, 14), (27, 28), (41, 41)]
