"""A real socket for StatsD: samples, bad lines, and packets that the kernel dropped."""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import pytest

from millstream.bridges.config import StatsdConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.sending import Sender
from millstream.bridges.statsd.receiver import Receiver
from millstream.bridges.udp import kernel_drops
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import PATIENCE_SECONDS, read_records


def started(millstream: SharedBroker, **given: Any) -> tuple[Receiver, Sender, Counts, str]:
    topic, counts = millstream.unique_topic(), Counts()
    sender = Sender(millstream.client_settings(), counts)
    receiver = Receiver(StatsdConfig("app", "127.0.0.1:0", topic, **given), sender, counts)
    return receiver, sender, counts, topic


def send(receiver: Receiver, *packets: bytes) -> None:
    host, _, port = receiver.address.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for packet in packets:
            out.sendto(packet, (host, int(port)))


def test_samples_are_aggregated_and_bad_lines_counted(millstream: SharedBroker) -> None:
    receiver, sender, counts, topic = started(millstream, interval_seconds=3600)
    receiver.start()
    send(receiver, b"hits:1|c\nhits:2|c\nhits:1|c\nnonsense\n", b"hits:x|c")
    until = time.monotonic() + PATIENCE_SECONDS
    while counts.of("statsd_packets") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    receiver.stop()  # writes the interval
    sender.close()
    (record,) = read_records(millstream, topic, 1)
    assert json.loads(record.value())["value"] == 4.0
    assert counts.of("statsd_samples") == 3
    assert counts.of("statsd_bad_lines", reason="no type") == 1
    assert counts.of("statsd_bad_lines", reason="bad value") == 1


def test_each_sample_can_be_a_record(millstream: SharedBroker) -> None:
    receiver, sender, _, topic = started(millstream, interval_seconds=0)
    receiver.start()
    send(receiver, b"a:1|c|#x:y\na:2|c")
    records = read_records(millstream, topic, 2)
    receiver.stop()
    sender.close()
    assert [json.loads(it.value())["value"] for it in records] == [1.0, 2.0]
    assert records[0].key() == b"a"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell")
def test_packets_that_the_kernel_drops_are_counted_exactly_and_written(
    millstream: SharedBroker,
) -> None:
    receiver, sender, counts, topic = started(millstream, interval_seconds=3600, buffer_bytes=4096)
    number = 500
    send(receiver, *(b"hits:1|c" for _ in range(number)))  # nobody reads yet
    dropped = kernel_drops(receiver._socket)
    assert dropped
    receiver.start()
    receiver.stop()
    sender.close()
    assert counts.of("statsd_packets") + dropped == number
    hits, loss = read_records(millstream, topic, 2)
    assert json.loads(hits.value())["value"] == number - dropped
    assert json.loads(loss.value())["kernel_drops"] == dropped
    assert counts.of("statsd_kernel_drops") == dropped


def test_records_that_the_cluster_does_not_take_are_reported_later(
    millstream: SharedBroker,
) -> None:
    receiver, sender, _, topic = started(millstream, interval_seconds=3600)
    real = sender.send

    def refuse(topic: str, record: Any, done: Any) -> None:
        done(Written(status=503, error="away"))

    sender.send = refuse  # type: ignore[method-assign, assignment]
    receiver._take(b"hits:1|c")
    receiver._finish(0, 1)  # neither the record nor the report of its loss is taken
    sender.send = real  # type: ignore[method-assign]
    receiver._finish(1, 2)
    receiver.stop()
    sender.close()
    (loss,) = read_records(millstream, topic, 1)
    assert json.loads(loss.value())["records_refused"] == 1
    assert dict(loss.headers()) == {"millstream-loss": b"1"}


def test_address_that_cannot_be_used_is_named(millstream: SharedBroker) -> None:
    sender = Sender(millstream.client_settings(), Counts())
    with pytest.raises(MillstreamError, match=r"statsd app: 192\.0\.2\.1:8125: "):
        Receiver(StatsdConfig("app", "192.0.2.1:8125", "t"), sender, Counts())
    sender.close()
