"""Requests are counted exactly and measured by samples; errors are found in responses."""

from __future__ import annotations

import time

import pytest

from millstream.broker.counters import FOLLOWER_FETCH, SAMPLE_EVERY_MAX, Counters, error_codes
from millstream.broker.deferred import Deferred
from millstream.errors import ErrorCode
from millstream.protocol.apis import APIS

PRODUCE, FETCH = APIS[0], APIS[1]


def serve(counters: Counters, requests: int) -> int:
    """Handle requests as a connection does; returns how many were measured."""
    meter = counters.meter(PRODUCE, 9)
    measured = 0
    for _ in range(requests):
        meter.count += 1
        if meter.count >= meter.timed_at:
            measured += 1
            assert meter.measured(lambda value: value)("answer") == "answer"
    return measured


def test_of_frequent_requests_a_sample_is_measured_that_counts_for_all() -> None:
    counters = Counters()
    measured = serve(counters, 1600)
    assert 1600 // SAMPLE_EVERY_MAX <= measured < 300
    times = counters.times["produce"]
    assert counters.meters["produce", 9].count == 1600
    assert times.total.count == pytest.approx(1600, abs=2 * SAMPLE_EVERY_MAX)


def test_rare_requests_are_all_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr("millstream.broker.counters.perf_counter", lambda: float(next(clock)))
    assert serve(Counters(), 50) == 50


def test_a_deferred_answer_is_measured_until_it_is_complete() -> None:
    counters = Counters()
    deferred = Deferred()
    assert counters.meter(FETCH, 12).measured(lambda: deferred)() is deferred
    times = counters.times["fetch"]
    assert times.total.count == 0
    began = time.perf_counter()
    while time.perf_counter() - began < 0.02:
        pass
    deferred.complete(b"")
    assert times.total.sum >= 0.02 > times.local.sum
    assert times.remote.sum == pytest.approx(times.total.sum - times.local.sum)


def test_fetches_of_followers_have_their_own_meter() -> None:
    counters = Counters()
    of_clients = counters.meter(FETCH, 17)
    assert counters.meter(FETCH, 17, of_broker=True) is not of_clients
    assert counters.meter(PRODUCE, 9, of_broker=True) is counters.meter(PRODUCE, 9)
    assert set(counters.times) == {"fetch", FOLLOWER_FETCH, "produce"}


def test_errors_are_found_at_any_depth() -> None:
    fields = {
        "error_code": ErrorCode.NONE,
        "topics": [
            {"error_code": 3, "partitions": ({"error_code": ErrorCode.INVALID_REQUEST},)},
            {"error_code": 0, "name": "t"},
        ],
    }
    assert sorted(error_codes(fields)) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]
    counters = Counters()
    counters.meter(PRODUCE, 9).errors_in(fields)
    assert counters.errors["produce", ErrorCode.INVALID_REQUEST] == 1


def test_failures_count_for_their_topic_and_for_all() -> None:
    counters = Counters()
    counters.produce_failed("a", ErrorCode.MESSAGE_TOO_LARGE, 100)  # refused, but not failed
    counters.produce_failed("a", ErrorCode.INVALID_RECORD)
    counters.produce_failed(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 50)
    counters.fetch_failed("a", ErrorCode.OFFSET_OUT_OF_RANGE)  # expected: only an error
    assert counters.errors["fetch", ErrorCode.OFFSET_OUT_OF_RANGE] == 1
    counters.fetch_failed("a", ErrorCode.CORRUPT_MESSAGE)
    assert counters.topics["a"].failed_produces == counters.topics["a"].failed_fetches == 1
    assert counters.all_topics.failed_produces == 1
    assert counters.all_topics.refused_appends == counters.topics["a"].refused_appends == 2
    assert counters.all_topics.rejected_bytes == counters.topics["a"].rejected_bytes == 100
    counters.topic_is_gone("a")
    assert not counters.topics
    assert counters.all_topics.failed_fetches == 1
