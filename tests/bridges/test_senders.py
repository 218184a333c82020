"""Senders and receivers of other people: programs in C, libzmq, Datadog's StatsD client, JeroMQ."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import bridge_to, read_all, read_records, wait_for
from tests.peers.c_programs import udp_sender, zeromq_peer
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import java_program

NUMBER = 500


def statsd_table(topic: str) -> dict[str, Any]:
    return {"app": {"listen": "127.0.0.1:0", "topic": topic, "interval_seconds": 3600}}


def test_samples_of_a_program_in_c_add_up(millstream: SharedBroker) -> None:
    try:
        sender = udp_sender()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    topic, number = millstream.unique_topic(), 20_000
    with bridge_to(millstream, statsd=statsd_table(topic)) as bridge:
        host, _, port = bridge.receivers[0].address.partition(":")
        command = [str(sender), "statsd", host, port, str(number), "50000", "8"]
        subprocess.run(command, check=True, capture_output=True)
        counts = bridge.counts
        wait_for(lambda: counts.of("statsd_packets") == number)
        assert counts.of("statsd_samples") == number
        assert counts.of("statsd_bad_lines") == 0
    found = {}
    for record in read_all(millstream, topic):
        body = json.loads(record.value())
        found[body["name"]] = body
    assert found["requests.0"]["value"] == found["requests.4"]["value"] == number / 8
    assert (
        sum(it["count"] for name, it in found.items() if name.startswith("latency")) == number / 4
    )
    expected = sum(2 * (it % 5000) for it in range(3, number, 4))  # sent with a rate of 0.5
    assert sum(it["value"] for name, it in found.items() if name.startswith("bytes")) == expected
    assert found["load.2"]["value"] == max(range(2, number, 8)) % 100


def libzmq(*arguments: str | int) -> subprocess.Popen[str]:
    """A program in C with ZeroMQ's own library, not the one that pyzmq brings."""
    try:
        command = [str(zeromq_peer()), *(str(it) for it in arguments)]
    except PeerMissing as missing:
        pytest.skip(str(missing))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["pull", "sub"])
def test_libzmq_sends_to_a_topic_and_loss_is_unknown(millstream: SharedBroker, kind: str) -> None:
    topic, into = millstream.unique_topic(), {"type": kind}
    if kind == "pull":
        tables = into | {"bind": ["tcp://127.0.0.1:*"], "topic": topic}
        with bridge_to(millstream, zeromq={"in": {"a": tables}}) as bridge:
            with libzmq("push", bridge.zeromq_in[0].address, NUMBER) as peer:
                pass
            loss, *found = read_records(millstream, topic, NUMBER + 1)
        expected = range(NUMBER)
    else:
        with libzmq("pub", "tcp://127.0.0.1:*", NUMBER) as peer:
            assert peer.stdout is not None
            address = peer.stdout.readline().strip()
            tables = into | {"connect": [address], "topic": topic, "subscribe": ["k1"]}
            expected = range(1, NUMBER, 3)
            with bridge_to(millstream, zeromq={"in": {"a": tables}}):
                loss, *found = read_records(millstream, topic, len(expected) + 1)
    assert peer.returncode == 0
    assert loss.headers() == [("millstream-loss", b"unknown")]
    assert [it.value() for it in found] == [b"value %d" % it for it in expected]
    assert [it.key() for it in found] == [b"k%d" % (it % 3) for it in expected]


@pytest.mark.parametrize("kind", ["push", "pub"])
def test_libzmq_receives_a_topic(millstream: SharedBroker, kind: str) -> None:
    topic, sent = millstream.unique_topic(), 0
    producer = Producer(millstream.client_settings() | {"linger.ms": 1})
    out = {"type": kind, "bind": ["tcp://127.0.0.1:*"], "topic": topic, "numbered": False}
    out |= {"start": "earliest", "hwm": 100_000}
    with bridge_to(millstream, zeromq={"out": {topic: out}}) as bridge:
        address = bridge.zeromq_out[0].address
        with libzmq("pull" if kind == "push" else "sub", address, NUMBER, "k") as peer:
            while peer.poll() is None and sent < 100 * NUMBER:
                # What is published before a subscription is known is for nobody.
                producer.produce(topic, b"%d" % sent, b"k", partition=0)
                sent += 1
                producer.poll(0.002)
            assert peer.stdout is not None
            lines = peer.stdout.read().splitlines()
    assert peer.returncode == 0
    first = int(lines[0].split()[1])
    assert lines == [f"k {it}" for it in range(first, first + NUMBER)]
    assert kind == "pub" or first == 0


def java(*arguments: str | int) -> list[str]:
    try:
        program = java_program("SenderProgram", bundle="senders")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    return [*program, *(str(it) for it in arguments)]


@pytest.mark.slow
@pytest.mark.java
def test_datadogs_client_is_understood(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    with bridge_to(millstream, statsd=statsd_table(topic)) as bridge:
        host, _, port = bridge.receivers[0].address.partition(":")
        subprocess.run(java("statsd", host, port, NUMBER), check=True)
        wait_for(lambda: bridge.counts.of("statsd_samples") == 5 * NUMBER)
        assert bridge.counts.of("statsd_bad_lines") == 0
    found = {}
    for record in read_all(millstream, topic):
        body = json.loads(record.value())
        found[body["name"]] = body
    assert found["shop.orders"] | {"from": 0, "to": 0} == {
        "name": "shop.orders", "type": "c", "tags": {"env": "test"}, "from": 0, "to": 0,
        "value": 2.0 * NUMBER,
    }  # fmt: skip
    assert found["shop.load"]["value"] == NUMBER - 1
    assert found["shop.latency"]["max"] == NUMBER - 1
    assert found["shop.size"]["count"] == NUMBER
    assert found["shop.users"]["value"] == 3


@pytest.mark.slow
@pytest.mark.java
def test_jeromq_sends_to_a_topic_and_loss_is_unknown(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    into = {"type": "pull", "bind": ["tcp://127.0.0.1:*"], "topic": topic}
    with bridge_to(millstream, zeromq={"in": {"a": into}}) as bridge:
        subprocess.run(java("push", bridge.zeromq_in[0].address, NUMBER), check=True)
        loss, *found = read_records(millstream, topic, NUMBER + 1)
    assert loss.headers() == [("millstream-loss", b"unknown")]
    assert [it.value() for it in found] == [b"value %d" % it for it in range(NUMBER)]
    assert Counter(it.key() for it in found).keys() == {b"k0", b"k1", b"k2"}


@pytest.mark.slow
@pytest.mark.java
def test_jeromq_receives_a_topic(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    producer = Producer(millstream.client_settings())
    for number in range(NUMBER):
        producer.produce(topic, b"%d" % number, b"k", partition=0)
    assert producer.flush(60) == 0
    out = {"type": "push", "bind": ["tcp://127.0.0.1:*"], "topic": topic, "numbered": False}
    out |= {"start": "earliest"}
    with bridge_to(millstream, zeromq={"out": {topic: out}}) as bridge:
        done = subprocess.run(
            java("pull", bridge.zeromq_out[0].address, NUMBER),
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    assert done.stdout.split() == [word for it in range(NUMBER) for word in ("k", str(it))]
