"""Requests of webhooks, what answers mean, and an endpoint that fails for an hour."""

from __future__ import annotations

import pytest
from standardwebhooks import Webhook

from millstream.bridges.http.signatures import standard_key
from millstream.bridges.webhooks.attempts import (
    FAILURES_BEFORE_PAUSE,
    PAUSE_SECONDS_MAX,
    Answer,
    Circuit,
    Delivery,
    Outcome,
    content_type,
    judge,
    request_headers,
)
from millstream.testing.clock import ManualClock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RECORD = Delivery("orders", 2, 7, 1_700_000_000_000, b'{"a": 1}')


def test_attempts_have_one_id_and_their_own_times() -> None:
    keys = [standard_key(SECRET)]
    first = request_headers(RECORD, keys, 100, "value")
    second = request_headers(RECORD, keys, 200, "value")
    assert first["webhook-id"] == second["webhook-id"] == "orders-2-7"
    assert first["webhook-signature"] != second["webhook-signature"]
    assert first["content-type"] == "application/json"


@pytest.mark.parametrize("format", ["value", "cloudevents"])
def test_library_verifies_a_request(format: str) -> None:
    import time

    headers = request_headers(RECORD, [standard_key(SECRET)], int(time.time()), format)
    assert Webhook(SECRET).verify(RECORD.value, headers) == {"a": 1}
    assert ("ce-id" in headers) == (format == "cloudevents")


def test_content_type_is_that_of_the_record_if_it_is_safe() -> None:
    assert content_type([("Content-Type", b"text/plain")]) == "text/plain"
    assert content_type([("content-type", b"a\r\nx: y")]) == "application/json"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.ACCEPTED),
        (204, Outcome.ACCEPTED),
        (301, Outcome.FAILED),
        (400, Outcome.FAILED),
        (410, Outcome.GONE),
        (429, Outcome.OVERLOADED),
        (500, Outcome.FAILED),
        (503, Outcome.OVERLOADED),
        (0, Outcome.FAILED),
    ],
)
def test_status_has_its_outcome(status: int, outcome: Outcome) -> None:
    assert judge(Answer(status)) is outcome


def test_endpoint_that_fails_for_an_hour_is_asked_rarely_and_found_again() -> None:
    clock, circuit = ManualClock(), Circuit(seed=1)
    asked = []
    while clock.monotonic_ms() < 3_600_000:
        now = clock.monotonic_ms() / 1000
        if not circuit.wait_seconds(now):
            asked.append(now)
            circuit.note(Outcome.FAILED, Answer(500), now)
        clock.advance(1000)
    assert 15 <= len(asked) <= 30
    assert circuit.failures == len(asked)
    now = clock.monotonic_ms() / 1000
    assert circuit.wait_seconds(now) <= PAUSE_SECONDS_MAX * 1.2
    circuit.note(Outcome.ACCEPTED, Answer(200), now)
    assert circuit.wait_seconds(now) == 0
    assert circuit.failures == 0


def test_few_failures_pause_nothing() -> None:
    circuit = Circuit(seed=1)
    for _ in range(FAILURES_BEFORE_PAUSE - 1):
        assert not circuit.note(Outcome.FAILED, Answer(500), 0.0)
    assert circuit.wait_seconds(0.0) == 0
    assert circuit.note(Outcome.FAILED, Answer(500), 0.0)
    assert circuit.wait_seconds(0.0) > 0


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [("120", 120), ("999999", 3600), ("soon", 5), ("-1", 5), ("", 5)]
)
def test_overloaded_endpoint_is_left_alone_as_long_as_it_asks(
    retry_after: str, seconds: float
) -> None:
    circuit = Circuit(seed=1)
    assert circuit.note(Outcome.OVERLOADED, Answer(429, retry_after), 10.0)
    assert circuit.wait_seconds(10.0) == seconds
