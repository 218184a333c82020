"""A partition as a stream, received again: packets are dropped, and the log answers for them."""

from __future__ import annotations

import random
import socket
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.bridges.config import MoldInConfig, MoldOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.mold.inbound import Inbound
from millstream.bridges.mold.outbound import FILLERS_MAX, Budget, Outbound, runs, with_fillers
from millstream.bridges.mold.packets import MESSAGE_BYTES_MAX, packets_of, parse_packet, session_of
from millstream.bridges.sending import Sender
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records

NUMBER = 400


class Record:
    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def test_offsets_without_a_record_are_empty_messages() -> None:
    records = [Record(7, b"a"), Record(10, b"b"), Record(11, b"x" * 70_000)]
    assert with_fillers(6, records, 100) == [b"", b"a", b"", b"", b"b", b""]
    assert with_fillers(6, records, 3) == [b"", b"a", b""]
    assert with_fillers(6, [Record(2**40, b"far")], 3) == [b"", b"", b""]
    assert with_fillers(8, records, 3) == []


def test_stream_goes_on_behind_a_large_hole_and_at_an_earlier_offset() -> None:
    far = 10 + FILLERS_MAX + 1
    records = [Record(7, b"a"), Record(9, b"b"), Record(far, b"c"), Record(3, b"d")]
    assert list(runs(6, records)) == [(6, [b"", b"a", b"", b"b"]), (far, [b"c"]), (3, [b"d"])]
    assert list(runs(0, [Record(2**40, b"a")])) == [(2**40, [b"a"])]


def test_answers_to_one_address_are_bounded() -> None:
    budget = Budget(100)
    assert budget.has_some("a", 5.0)
    budget.take("a", 150)
    assert not budget.has_some("a", 5.9)
    assert budget.has_some("b", 5.9)
    assert budget.has_some("a", 6.0)


def test_largest_message_fits_into_a_packet() -> None:
    (largest,) = packets_of(session_of("a"), 1, [b"x" * MESSAGE_BYTES_MAX])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        assert one.sendto(largest, one.getsockname()) == len(largest)
    assert with_fillers(0, [Record(0, b"x" * (MESSAGE_BYTES_MAX + 1))], 1) == [b""]


def test_record_that_fits_into_no_packet_is_counted(millstream: SharedBroker) -> None:
    counts = Counts()
    config = MoldOutConfig("out", "t", "127.0.0.1:9")
    outbound = Outbound(config, millstream.client_settings(), counts)
    outbound._send_records([Record(0, b"a"), Record(1, b"x" * (MESSAGE_BYTES_MAX + 1))])
    outbound.stop()
    assert counts.of("mold_too_large") == 1


def test_topic_comes_out_as_it_went_in_though_packets_are_lost(millstream: SharedBroker) -> None:
    source, target, settings = (
        millstream.unique_topic(), millstream.unique_topic(), millstream.client_settings(),
    )  # fmt: skip
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(source, 1)])[source].result(60)
    counts, dice = Counts(), random.Random(1)
    lost = []

    def is_lost(data: bytes) -> bool:
        found = len(lost) < 100 and bool(parse_packet(data).messages) and dice.random() < 0.5
        if found:
            lost.append(data)
        return found

    sender = Sender(settings, counts)
    # The request server's address is known only when it listens, and so is that of the receiver.
    receiver = Inbound(MoldInConfig("in", "127.0.0.1:0", target), settings, sender, counts, is_lost)
    port = receiver._stream.getsockname()[1]
    outbound = Outbound(
        MoldOutConfig(
            "out",
            source,
            f"127.0.0.1:{port}",
            "127.0.0.1:0",
            session="trades",
            start="earliest",
        ),
        settings,
        counts,
    )
    receiver._config = MoldInConfig("in", f"127.0.0.1:{port}", target, outbound.requests_address)
    receiver._is_lost = lambda _: False  # the beginning tells where the stream starts
    receiver.start()
    outbound.start()
    producer = Producer(settings | {"linger.ms": 0})
    producer.produce(source, b"0", partition=0)
    assert producer.flush(60) == 0
    read_records(millstream, target, 1)
    receiver._is_lost = is_lost
    for number in range(1, NUMBER):
        producer.produce(source, b"%d" % number, partition=0)
        if number % 10 == 0:
            producer.flush(60)
            time.sleep(0.002)  # packets of few messages
    assert producer.flush(60) == 0
    found = read_records(millstream, target, NUMBER)
    outbound.stop()
    receiver.stop()
    sender.close()
    assert [it.value() for it in found] == [b"%d" % it for it in range(NUMBER)]
    assert lost
    assert counts.of("mold_answers") > 0
    assert counts.of("mold_lost") == 0
