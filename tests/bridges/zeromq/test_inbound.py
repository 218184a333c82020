"""Sockets to topics: messages of bridges and of strangers, gaps, restarts, a slow cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import zmq
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.bridges.config import ZeromqInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.sending import Sender
from millstream.bridges.zeromq import inbound as module
from millstream.bridges.zeromq.frames import Heartbeat, Numbered, encode_heartbeat, encode_numbered
from millstream.bridges.zeromq.inbound import GAP_KEY, LOSS_KEY, Inbound, last_numbers
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records
from tests.bridges.zeromq.conftest import wait_for

ID = bytes(range(16))
ANY = ("tcp://127.0.0.1:*",)
Zmq = zmq.Context[zmq.Socket[bytes]]


class Streams:
    """Streams to one topic, made by `make`."""

    def __init__(self, millstream: SharedBroker) -> None:
        self.topic, self.counts = millstream.unique_topic(), Counts()
        self.settings = millstream.client_settings()
        self.sender = Sender(self.settings, self.counts)
        self.running: list[Inbound] = []

    def make(self, kind: str, **given: Any) -> Inbound:
        config = ZeromqInConfig("a", kind, self.topic, **({"bind": ANY} | given))
        self.running.append(Inbound(config, self.settings, self.sender, self.counts))
        return self.running[-1]

    def start(self, kind: str, **given: Any) -> Inbound:
        made = self.make(kind, **given)
        made.start()
        return made

    def stop(self) -> None:
        for one in self.running:
            one.stop()
        self.running = []


@pytest.fixture
def streams(millstream: SharedBroker) -> Iterator[Streams]:
    made = Streams(millstream)
    yield made
    made.stop()
    made.sender.close()


def numbered(number: int, value: bytes | None = None) -> list[bytes]:
    return encode_numbered(Numbered(ID, number, b"k", b"%d" % number if value is None else value))


def pushing(context: Zmq, inbound: Inbound) -> zmq.Socket[bytes]:
    made = context.socket(zmq.PUSH)
    made.setsockopt(zmq.SNDHWM, 10)
    made.setsockopt(zmq.SNDBUF, 4096)
    made.connect(inbound.address)
    return made


def test_skipped_numbers_become_gap_records(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    out = pushing(context, streams.start("pull"))
    for frames in (numbered(0), numbered(4), encode_heartbeat(Heartbeat(ID, 6)), numbered(6)):
        out.send_multipart(frames)
    records = read_records(millstream, streams.topic, 5)
    assert [it.key() for it in records] == [b"k", GAP_KEY, b"k", GAP_KEY, b"k"]
    assert dict(records[2].headers()) == {"zmq-sender": ID.hex().encode(), "zmq-sequence": b"4"}
    gaps = [json.loads(records[it].value()) for it in (1, 3)]
    assert [(it["sender"], it["first"], it["last"]) for it in gaps] == [
        (ID.hex(), 1, 3), (ID.hex(), 5, 5),
    ]  # fmt: skip
    assert streams.counts.of("zeromq_lost", stream="a", reason="not received") == 4


def test_loss_of_strangers_is_said_to_be_unknown(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    out = pushing(context, streams.start("pull"))
    out.send(b"alone")
    out.send_multipart([b"key", b"x", b"y", b"value"])
    out.send_multipart([b""] * 100)
    out.send_multipart([b"MSQ1" + bytes([9]) + bytes(24), b"", b""])
    out.send(b"last")
    loss, alone, many, last = read_records(millstream, streams.topic, 4)
    assert loss.key() == LOSS_KEY
    assert loss.headers() == [("millstream-loss", b"unknown")]
    assert json.loads(loss.value())["lost"] == "unknown"
    assert (alone.key(), alone.value(), alone.headers()) == (None, b"alone", None)
    assert (many.key(), many.value()) == (b"key", b"value")
    assert many.headers() == [("zmq-frame", b"x"), ("zmq-frame", b"y")]
    assert last.value() == b"last"
    assert streams.counts.of("zeromq_unnumbered") == 3
    assert streams.counts.of("zeromq_bad_messages", reason="bad header") == 1
    assert streams.counts.of("zeromq_bad_messages", reason="too many frames") == 1


def test_overflow_of_a_publisher_is_seen(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    """The subscriber does not read, so the publisher drops, and nobody gets an error."""
    number = 2_000
    out = context.socket(zmq.XPUB)
    out.setsockopt(zmq.SNDHWM, 10)
    out.setsockopt(zmq.SNDBUF, 4096)
    out.bind("tcp://127.0.0.1:*")
    address = out.getsockopt_string(zmq.LAST_ENDPOINT)
    inbound = streams.make("sub", bind=(), connect=(address,), hwm=10)
    assert out.recv() == b"\x01"  # it has subscribed
    for each in range(number):
        out.send_multipart(numbered(each, b"x" * 10_000))
    inbound.start()

    def has_come_to_the_end() -> bool:
        out.send_multipart(encode_heartbeat(Heartbeat(ID, number)))  # may be dropped, too
        return inbound._numbers._next.get(ID) == number

    wait_for(has_come_to_the_end)
    streams.stop()
    assert streams.counts.of("zeromq_lost") > 0
    streams.sender._producer.flush(60)
    total = streams.counts.of("records_in")
    seen: list[int] = []
    for record in read_records(millstream, streams.topic, total):
        if record.key() == GAP_KEY:
            gap = json.loads(record.value())
            seen += range(gap["first"], gap["last"] + 1)
        else:
            seen.append(int(dict(record.headers())["zmq-sequence"]))
    assert seen == list(range(number))


def test_backlog_is_read_to_its_end(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    """The descriptor says once that there are messages, however many they are."""
    number = 3 * module.MESSAGES_PER_TURN + 1
    inbound = streams.make("pull", hwm=10 * number)
    out = pushing(context, inbound)
    for each in range(number):
        out.send_multipart(numbered(each))
    inbound.start()
    found = read_records(millstream, streams.topic, number)
    assert [it.value() for it in found] == [b"%d" % it for it in range(number)]


def test_frame_that_is_too_large_is_a_gap(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    """ZeroMQ disconnects its sender, which connects again."""
    out = pushing(context, streams.start("pull", message_bytes_max=1_000))
    out.send_multipart(numbered(0))
    wait_for(lambda: streams.counts.of("zeromq_messages") == 1)
    out.send_multipart(numbered(1, b"x" * 5_000))
    following = count(2)

    def is_seen() -> bool:
        out.send_multipart(numbered(next(following)))
        return streams.counts.of("zeromq_lost") > 0

    wait_for(is_seen)
    gap = json.loads(read_records(millstream, streams.topic, 2)[1].value())
    assert gap["first"] == 1


def test_numbers_continue_after_a_restart(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    first = streams.start("pull")
    out = pushing(context, first)
    out.send_multipart(numbered(0))
    out.send_multipart(numbered(1))
    read_records(millstream, streams.topic, 2)
    streams.stop()
    assert last_numbers(streams.settings, streams.topic, 0) == {ID: 1}
    out = pushing(context, streams.start("pull"))
    out.send_multipart(numbered(4))
    found = read_records(millstream, streams.topic, 4)
    gap = json.loads(found[2].value())
    assert (gap["first"], gap["last"], gap["reason"]) == (2, 3, "not received")


def test_receiver_that_shares_senders_reports_no_gaps(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    out = pushing(context, streams.start("pull", shared=True))
    out.send_multipart(numbered(0))
    out.send_multipart(numbered(4))
    found = read_records(millstream, streams.topic, 3)
    assert [it.key() for it in found] == [LOSS_KEY, b"k", b"k"]
    assert "other receivers" in json.loads(found[0].value())["reason"]
    assert streams.counts.of("zeromq_lost") == 0


def test_sender_waits_while_the_cluster_does_not_take_records(
    streams: Streams, millstream: SharedBroker, context: Zmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster acknowledges nothing: the bridge stops reading, the sender cannot send. Later
    everything is there, in order."""
    monkeypatch.setattr(module, "WAITING_RECORDS_MAX", 50)
    monkeypatch.setattr(module, "MESSAGES_PER_TURN", 10)
    held: list[Any] = []
    send = streams.sender.send_many
    inbound = streams.make("pull", hwm=10)
    is_held = True

    def hold(topic: str, records: Any, delivered: Any) -> list[Any]:
        if is_held:
            held.extend(records)
            return []
        return send(topic, records, delivered)

    monkeypatch.setattr(streams.sender, "send_many", hold)
    inbound.start()
    out = pushing(context, inbound)
    number, is_sent = 0, True
    while is_sent or not streams.counts.of("zeromq_pauses"):
        try:
            out.send_multipart(numbered(number, b"x" * 10_000), zmq.NOBLOCK)
            number, is_sent = number + 1, True
        except zmq.Again:
            is_sent = False
        assert number < 10_000, "100 MB are more than buffers have"
    assert 50 <= len(held) < 60
    assert streams.counts.of("zeromq_pauses") == 1
    is_held = False
    send(streams.topic, held, inbound._delivered)
    records = read_records(millstream, streams.topic, number)
    assert [int(dict(it.headers())["zmq-sequence"]) for it in records] == list(range(number))


def test_topic_that_comes_later_gets_everything(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    """A record that the cluster does not take for now is sent again."""
    inbound = streams.make("pull")
    send, refusals = streams.sender.send_many, []

    def refuse(topic: str, records: Any, delivered: Any) -> list[Any]:
        taken, at_once = [], []
        for record in records:
            if len(refusals) < 4:
                refusals.append(record)
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                if len(refusals) % 2:
                    delivered(record, error, None)
                else:
                    at_once.append((record, error))
            else:
                taken.append(record)
        return at_once + send(topic, taken, delivered)

    streams.sender.send_many = refuse  # type: ignore[method-assign]
    inbound.start()
    out = pushing(context, inbound)
    for number in range(3):
        out.send_multipart(numbered(number))
    records = read_records(millstream, streams.topic, 3)
    assert {it.value() for it in records} == {b"0", b"1", b"2"}
    wait_for(lambda: inbound.problem is None)
    wait_for(lambda: inbound._sent == inbound._settled)
    assert inbound._sent_bytes == inbound._settled_bytes


def test_loop_that_fails_begins_again_with_its_socket(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    inbound = streams.make("pull")
    real = inbound._take

    def fail_once(frames: list[bytes]) -> list[Any]:
        if frames[0] != numbered(1)[0]:
            return real(frames)
        inbound._take = real  # type: ignore[method-assign]
        raise RuntimeError("broken")

    inbound._take = fail_once  # type: ignore[method-assign]
    out = pushing(context, inbound)
    for number in range(3):  # the second is lost with the failure,
        out.send_multipart(numbered(number))
    inbound.start()
    records = read_records(millstream, streams.topic, 3)
    assert [it.key() for it in records] == [b"k", GAP_KEY, b"k"]  # and is a gap
    assert streams.counts.of("failures", part="zeromq a") == 1


def test_record_that_the_topic_never_takes_becomes_a_gap(
    streams: Streams, millstream: SharedBroker, context: Zmq
) -> None:
    topic = NewTopic(streams.topic, 1, config={"max.message.bytes": "2000"})
    admin = AdminClient(streams.settings)
    admin.create_topics([topic])[streams.topic].result(60)
    streams.sender.close()
    streams.sender = Sender(streams.settings | {"compression.type": "none"}, streams.counts)
    out = pushing(context, streams.start("pull"))
    out.send_multipart(numbered(0, b"x" * 100_000))
    (gap,) = read_records(millstream, streams.topic, 1)
    assert gap.key() == GAP_KEY
    assert json.loads(gap.value())["reason"].startswith("refused by the cluster: ")
    out.send(b"y" * 100_000)
    loss = read_records(millstream, streams.topic, 3)[2]
    assert loss.headers() == [("millstream-loss", b"1")]
    assert streams.counts.of("zeromq_lost", reason="refused by the cluster") == 2
