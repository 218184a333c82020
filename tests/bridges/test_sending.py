"""Records to topics, with their places or the reasons why they have none."""

from __future__ import annotations

import random

from millstream.admin.outgoing import Outgoing
from millstream.bridges.counts import Counts
from millstream.bridges.sending import Sender, status_of
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records


def test_records_are_written_with_everything_they_have(millstream: SharedBroker) -> None:
    topic, counts = millstream.unique_topic(), Counts()
    sender = Sender(millstream.client_settings(), counts)
    given = Outgoing(b"v", b"k", [("h", None)], 0, 1_700_000_000_000)
    written, refused = sender.send_and_wait(topic, [given, Outgoing(b"v", partition=99)])
    sender.close()
    assert (written.partition, written.offset, written.error) == (0, 0, None)
    assert written.timestamp_ms == 1_700_000_000_000
    assert refused.status == 422
    assert refused.error
    (record,) = read_records(millstream, topic, 1)
    assert (record.key(), record.value(), record.headers()) == (b"k", b"v", [("h", None)])
    assert (counts.of("records_in"), counts.of("records_refused")) == (1, 1)


def test_record_that_the_cluster_refuses_has_its_reason(millstream: SharedBroker) -> None:
    sender = Sender(millstream.client_settings(), Counts())
    large_value = random.Random(1).randbytes(3_000_000)  # cannot be compressed
    (large,) = sender.send_and_wait(millstream.unique_topic(), [Outgoing(large_value)])
    sender.close()
    assert large.status == 413


def test_many_records_of_a_stream_are_each_delivered(millstream: SharedBroker) -> None:
    topic, found = millstream.unique_topic(), []
    sender = Sender(millstream.client_settings(), Counts())
    records = [Outgoing(b"%d" % it, b"k", [("n", b"%d" % it)], 0) for it in range(100)]
    assert sender.send_many(topic, records, lambda *it: found.append(it[:2])) == []
    sender.close()
    assert found == [(it, None) for it in records]
    assert [it.headers() for it in read_records(millstream, topic, 100)][99] == [("n", b"99")]


def test_record_of_a_stream_that_the_producer_refuses_has_its_error(
    millstream: SharedBroker,
) -> None:
    settings = millstream.client_settings() | {"message.max.bytes": "1000"}
    topic, found = millstream.unique_topic(), []
    sender = Sender(settings, Counts())
    records = [Outgoing(b"x" * 2000, partition=0), Outgoing(b"y", partition=0)]
    refused = sender.send_many(topic, records, lambda *it: found.append(it[:2]))
    sender.close()
    assert found == [(records[1], None)]
    assert [(it, status_of(error)) for it, error in refused] == [(records[0], 413)]


def test_record_that_the_client_cannot_take_is_refused(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    sender = Sender(millstream.client_settings(), Counts())
    half, cut = Outgoing(b"v", headers=[("\ud800", b"")]), Outgoing(b"v", headers=[("a\0b", b"")])
    found = sender.send_and_wait(topic, [half, cut, Outgoing(b"v")])
    (unnamed,) = sender.send_and_wait("a\0b", [Outgoing(b"v")])
    sender.close()
    assert [it.status for it in found] == [422, 422, 200]
    assert "surrogate" in str(found[0].error)
    assert "NUL" in str(found[1].error)
    assert unnamed.status == 422


def test_unreachable_cluster_is_an_error_in_time() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "delivery.timeout.ms": 500, "linger.ms": 0}
    settings |= {"request.timeout.ms": 400}
    sender = Sender(settings, Counts())
    (written,) = sender.send_and_wait("t", [Outgoing(b"x")])
    sender.close()
    assert written.status == 503
