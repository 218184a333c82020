"""The end of a partition."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millstream.bridges.tail import last_headers
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker


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
    assert last_headers(settings, topic, 0, 1) == []
    assert last_headers(settings, topic, 0, 2) == [{"n": b"0"}]
