"""An endpoint as a share group: delivered, repeated, dead letters at the end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest
from confluent_kafka import Producer
from standardwebhooks import Webhook

from millstream.bridges.config import WebhookConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.signatures import standard_key
from millstream.bridges.webhooks.attempts import Answer, Outcome
from millstream.bridges.webhooks.endpoint import Endpoint, group_settings, prepare
from millstream.testing.clock import ManualClock
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import read_records, wait_for

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver:
    """Takes webhooks as an endpoint does; answers what the test wants."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tries: Counter[str] = Counter()
        self.bodies: dict[str, set[bytes]] = defaultdict(set)

    def __call__(self, config: WebhookConfig, body: bytes, headers: dict[str, str]) -> Answer:
        Webhook(SECRET).verify(body, headers)
        with self.lock:
            self.tries[headers["webhook-id"]] += 1
            self.bodies[headers["webhook-id"]].add(body)
            tries = self.tries[headers["webhook-id"]]
        if body == b'"hopeless"':
            return Answer(500)
        return Answer(200 if body != b'"flaky"' or tries > 3 else 500)


def config_for(millstream: SharedBroker, topic: str) -> WebhookConfig:
    return WebhookConfig(
        name=millstream.unique_group("hook"),
        topics=(topic,),
        url="https://unused.example/",
        keys=(standard_key(SECRET),),
        attempts=3,
        backoff_seconds=0.05,
        dead_letters=millstream.unique_topic("dlq.hooks"),
        start="earliest",
    )


def test_records_are_delivered_until_taken_and_hopeless_ones_are_dead_letters(
    millstream: SharedBroker,
) -> None:
    topic = millstream.unique_topic()
    producer = Producer(millstream.client_settings())
    values = ['"a"', '"b"', '"flaky"', '"hopeless"', '"c"']
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    config, counts, receiver = config_for(millstream, topic), Counts(), Receiver()
    endpoint = Endpoint(
        config, millstream.client_settings(), counts, send=receiver, again_seconds=0.01
    )
    endpoint.start()
    (letter,) = read_records(millstream, config.dead_letters, 1)
    wait_for(lambda: counts.of("records_out") == 4)
    endpoint.stop()
    assert letter.value() == b'"hopeless"'
    assert all(len(it) == 1 for it in receiver.bodies.values())
    assert receiver.tries[f"{topic}-0-2"] >= 4
    assert receiver.tries[f"{topic}-0-3"] >= 3
    assert counts.of("webhook_attempts", outcome="accepted") == 4


def test_record_that_cannot_be_sent_is_a_dead_letter(
    millstream: SharedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = millstream.unique_topic()
    producer = Producer(millstream.client_settings())
    for value in ("poison", "good"):
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    config, counts = config_for(millstream, topic), Counts()

    def send(config: WebhookConfig, body: bytes, headers: dict[str, str]) -> Answer:
        if body == b"poison":
            raise ValueError("year 57000 is out of range")
        return Answer(200)

    endpoint = Endpoint(config, millstream.client_settings(), counts, send=send)
    endpoint.start()
    (letter,) = read_records(millstream, config.dead_letters, 1)
    wait_for(lambda: counts.of("records_out") == 1)
    endpoint.stop()
    assert letter.value() == b"poison"
    assert counts.of("failures") == 0
    assert f"{topic}-0-0 cannot be sent" in caplog.text


def test_endpoint_that_fails_begins_again(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    producer = Producer(millstream.client_settings())
    producer.produce(topic, b"1")
    assert producer.flush(60) == 0
    counts = Counts()
    endpoint = Endpoint(
        config_for(millstream, topic),
        millstream.client_settings(),
        counts,
        send=lambda *_: Answer(200),
    )
    real = endpoint._round

    def fail_once(*given: Any) -> None:
        endpoint._round = real  # type: ignore[method-assign]
        raise RuntimeError("broken")

    endpoint._round = fail_once  # type: ignore[method-assign]
    endpoint.start()
    wait_for(lambda: counts.of("records_out") == 1)
    assert counts.of("failures", part=f"webhook {endpoint.config.name}") == 1
    endpoint.stop()


def test_endpoint_that_is_gone_gets_no_more(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    producer = Producer(millstream.client_settings())
    producer.produce(topic, b"1")
    assert producer.flush(60) == 0
    counts = Counts()
    endpoint = Endpoint(
        config_for(millstream, topic),
        millstream.client_settings(),
        counts,
        send=lambda *_: Answer(410),
    )
    endpoint.start()
    wait_for(lambda: endpoint.is_gone)
    endpoint.stop()
    assert counts.of("webhook_attempts") == 1


def test_cluster_takes_all_settings_of_a_group(millstream: SharedBroker) -> None:
    config = WebhookConfig(
        millstream.unique_group("hook"), ("t",), "https://a.example/", (b"",),
        dead_letters=millstream.unique_topic("dlq.hooks"),
    )  # fmt: skip
    assert prepare(config, millstream.client_settings()) == []


def test_records_that_wait_are_released_when_a_long_pause_begins(millstream: SharedBroker) -> None:
    """Otherwise their locks would expire again and again, and they would become dead letters."""
    topic, clock = millstream.unique_topic(), ManualClock()
    producer = Producer(millstream.client_settings())
    for number in range(30):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    counts, released = Counts(), []
    endpoint = Endpoint(
        config_for(millstream, topic), millstream.client_settings(), counts,
        send=lambda *_: Answer(503, "300"), clock=clock,
    )  # fmt: skip
    real = endpoint._acknowledge

    def note(consumer: Any, messages: list[Any], outcomes: list[Outcome]) -> None:
        released.extend(it.offset() for it in messages)
        real(consumer, messages, outcomes)

    endpoint._acknowledge = note  # type: ignore[method-assign]
    endpoint.start()
    wait_for(lambda: set(released) == set(range(30)))
    endpoint.stop()
    assert counts.of("webhook_attempts") <= endpoint.config.parallel
    assert counts.of("records_out") == 0


def test_records_that_wait_are_kept_during_a_short_pause(millstream: SharedBroker) -> None:
    """An endpoint that asks for a moment now and then would use up the deliveries of records that
    it never got."""
    topic, clock = millstream.unique_topic(), ManualClock()
    producer = Producer(millstream.client_settings())
    for number in range(30):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    counts, released, answers = Counts(), [], itertools.count()
    endpoint = Endpoint(
        config_for(millstream, topic), millstream.client_settings(), counts,
        send=lambda *_: Answer(429 if next(answers) == 3 else 200, "1"), clock=clock,
    )  # fmt: skip
    real = endpoint._acknowledge

    def note(consumer: Any, messages: list[Any], outcomes: list[Outcome]) -> None:
        released.extend(it for it in outcomes if it is not Outcome.ACCEPTED)
        real(consumer, messages, outcomes)

    endpoint._acknowledge = note  # type: ignore[method-assign]
    endpoint.start()
    wait_for(lambda: counts.of("webhook_pauses") == 1)
    clock.advance(10_000)
    wait_for(lambda: counts.of("records_out") >= 29)
    endpoint.stop()
    assert len(released) == 1  # the one that was refused


def test_default_settings_span_more_than_a_day() -> None:
    config = WebhookConfig("a", ("t",), "https://a.example/", (b"",))
    settings = group_settings(config)
    delay, total = int(settings["share.retry.backoff.ms"]), 0
    for _ in range(int(settings["share.delivery.count.limit"]) - 1):
        total += min(delay, int(settings["share.retry.backoff.max.ms"]))
        delay *= 2
    assert total / 3_600_000 == pytest.approx(42.6, abs=0.1)
