"""The end of a partition."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from millstream.bridges import tail
from millstream.bridges.tail import Tail, last_headers
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.transactional import wait_for_markers


def test_headers_of_the_last_records(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    assert last_headers(settings, topic, 0, 10) == []
    producer = Producer(settings)
    for number in range(5):
        producer.produce(topic, b"x", headers=[("n", b"%d" % number)], partition=0)
    assert producer.flush(60) == 0
    assert last_headers(settings, topic, 0, 2) == [{"n": b"3"}, {"n": b"4"}]
    assert len(last_headers(settings, topic, 0, 10)) == 5
    with pytest.raises(MillstreamError, match=f"topic {topic} has no partition 1000"):
        last_headers(settings, topic, 1000, 2)


def test_end_of_a_transaction_is_no_record(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    producer = Producer(settings | {"transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"x", headers=[("n", b"0")], partition=0)
    producer.commit_transaction(60)
    wait_for_markers(millstream.bootstrap_servers)
    assert last_headers(settings, topic, 0, 1) == []
    assert last_headers(settings, topic, 0, 2) == [{"n": b"0"}]


def test_record_behind_an_open_transaction_is_read(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    other, producer = Producer(settings | {"transactional.id": topic}), Producer(settings)
    other.init_transactions(60)
    other.begin_transaction()
    for number, each in enumerate((other, producer)):
        each.produce(topic, b"x", headers=[("n", b"%d" % number)], partition=0)
        each.flush(60)
    assert last_headers(settings, topic, 0, 10) == [{"n": b"0"}, {"n": b"1"}]
    other.abort_transaction(60)


def test_tail_continues_also_on_a_topic_that_is_made_again(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    followed = Tail(settings, topic, 0, 3)
    sent = 0

    def produce(count: int) -> None:
        nonlocal sent
        producer = Producer(settings)
        for _ in range(count):
            producer.produce(topic, b"x", headers=[("n", b"%d" % sent)], partition=0)
            sent += 1
        assert producer.flush(60) == 0

    produce(2)
    assert followed.read() == [{"n": b"0"}, {"n": b"1"}]
    assert followed.read() == []
    produce(5)
    assert followed.read() == [{"n": b"4"}, {"n": b"5"}, {"n": b"6"}]  # no more than the last
    admin = AdminClient(settings)
    admin.delete_topics([topic])[topic].result(60)
    produce(9)
    assert followed.read() == [{"n": b"13"}, {"n": b"14"}, {"n": b"15"}]
    produce(1)
    assert followed.read() == [{"n": b"16"}]
    followed.close()


def test_what_was_read_before_a_failure_is_not_forgotten(
    millstream: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    followed = Tail(settings, topic, 0, 10)
    producer = Producer(settings)
    producer.produce(topic, b"x", headers=[("n", b"0")], partition=0)
    assert producer.flush(60) == 0
    ends = followed._ends()
    with monkeypatch.context() as patched:
        patched.setattr(tail, "METADATA_SECONDS", 1.0)
        patched.setattr(followed, "_ends", lambda: {0: ends[0] + 1})
        with pytest.raises(MillstreamError, match="cannot be read"):
            followed.read()
    assert followed.read() == [{"n": b"0"}]
    followed.close()
