"""Pacing against a model of a client that stops fetching while its queue is full."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.broker.replicas.fetch_pacing import (
    BULK_BYTES_MIN,
    HOLD_SECONDS_MAX,
    PARTITIONS_MAX,
    FetchPacer,
    PartitionKey,
)

KEY: PartitionKey = (UUID(int=1), 0)
ANSWER_BYTES = 1_000_000
QUEUE_BYTES = 10_000_000  # 100,000 records of 100 bytes
BACKOFF_SECONDS = 1.0
BROKER_RATE = 200e6


def consumed(seconds: float, application_rate: float, pacer: FetchPacer | None) -> float:
    """Bytes that an application gets through librdkafka's queue in that time."""
    now = queued = total = 0.0
    while now < seconds:
        if pacer is not None:
            pacer.fetched(KEY, now)
        wait = ANSWER_BYTES / BROKER_RATE
        if pacer is not None:
            wait += pacer.hold_seconds(KEY, now)
        taken = min(queued, application_rate * wait)
        now, queued, total = now + wait, queued - taken + ANSWER_BYTES, total + taken
        if pacer is not None:
            pacer.answered(KEY, ANSWER_BYTES, now)
        if queued >= QUEUE_BYTES:
            taken = min(queued, application_rate * BACKOFF_SECONDS)
            now, queued, total = now + BACKOFF_SECONDS, queued - taken, total + taken
    return total


@pytest.mark.parametrize("application_rate", [20e6, 50e6, 120e6])
def test_fast_application_gets_most_of_what_it_can_take(application_rate: float) -> None:
    possible = application_rate * 30
    assert consumed(30, application_rate, None) < 0.6 * possible
    assert consumed(30, application_rate, FetchPacer()) > 0.7 * possible


@pytest.mark.parametrize("application_rate", [1e6, 5e6, 10e6, 300e6])
def test_application_that_lost_nothing_loses_nothing(application_rate: float) -> None:
    unpaced = consumed(30, application_rate, None)
    assert consumed(30, application_rate, FetchPacer()) > 0.95 * unpaced


def stopped_client() -> tuple[FetchPacer, float]:
    """A pacer whose client fetched in bulk and then stopped for a second, and the time."""
    pacer, now = FetchPacer(), 0.0
    for _ in range(10):
        pacer.fetched(KEY, now)
        pacer.answered(KEY, ANSWER_BYTES, now)
        now += 0.01
    now += BACKOFF_SECONDS
    pacer.fetched(KEY, now)
    return pacer, now


def test_records_are_held_back_after_a_pause_and_for_a_bounded_time() -> None:
    pacer, now = stopped_client()
    assert pacer.hold_seconds(KEY, now) == 0  # the first after the pause is not
    pacer.answered(KEY, 100 * ANSWER_BYTES, now)
    assert pacer.hold_seconds(KEY, now) == pytest.approx(HOLD_SECONDS_MAX)
    assert pacer.hold_seconds(KEY, now + HOLD_SECONDS_MAX) == 0


def test_other_partitions_and_small_answers_are_not_held_back() -> None:
    pacer, now = stopped_client()
    pacer.answered((KEY[0], 1), ANSWER_BYTES, now)
    assert pacer.hold_seconds((KEY[0], 1), now) == 0
    for _ in range(100):
        pacer.answered(KEY, BULK_BYTES_MIN - 1, now)
    assert pacer.hold_seconds(KEY, now) == 0


@pytest.mark.parametrize("pause", [0.1, 0.6, 5.0])
def test_pause_of_another_length_is_no_reason_to_hold_back(pause: float) -> None:
    pacer, now = FetchPacer(), 0.0
    for _ in range(5):
        for _ in range(10):
            pacer.fetched(KEY, now)
            assert pacer.hold_seconds(KEY, now) == 0
            pacer.answered(KEY, ANSWER_BYTES, now)
            now += 0.001
        now += pause


def test_number_of_partitions_of_a_client_is_bounded() -> None:
    pacer, now = stopped_client()
    for index in range(1, PARTITIONS_MAX + 1):
        pacer.answered((KEY[0], index), ANSWER_BYTES, now)
    assert len(pacer._paces) == PARTITIONS_MAX
    pacer.answered(KEY, 100 * ANSWER_BYTES, now)
    assert pacer.hold_seconds(KEY, now) == 0  # it was the oldest, and forgotten
