"""Rates over the last minute, and flushes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.metrics.broker import (
    RUNNING,
    STARTING,
    STOPPING,
    FlushTimes,
    Rates,
    cleaner_families,
    flush_families,
    state_of,
)
from millstream.metrics.exposition import render
from tests.broker.metrics.scraping import Metrics
from tests.broker.serving import serving


def test_idle_time_is_that_of_the_last_minute() -> None:
    rates = Rates()
    rates.note(0.0, busy_seconds=0.0, accepted=0)
    rates.note(100.0, busy_seconds=100.0, accepted=0)
    rates.note(130.0, busy_seconds=115.0, accepted=60)
    rates.note(160.0, busy_seconds=115.0, accepted=60)
    assert rates.idle == pytest.approx(0.75)
    assert rates.accepted_per_second == pytest.approx(1.0)


def test_idle_time_is_between_0_and_1() -> None:
    rates = Rates()
    rates.note(0.0, busy_seconds=0.0, accepted=0)
    assert rates.idle == 1.0
    rates.note(1.0, busy_seconds=1.5, accepted=0)
    assert rates.idle == 0.0


class Flushed:
    flush_count, request_count, uses_thread = 2, 9, False


def test_flushes_are_a_histogram_and_kafkas_summary() -> None:
    times = FlushTimes()
    times.note(0.002)
    times.note(0.2)
    found = Metrics("".join(render(flush_families(Flushed(), times, 0.0))))  # type: ignore[arg-type]
    assert found.value("millstream_flush_seconds_bucket", le="0.0025") == 1
    assert found.value("millstream_flush_seconds_count") == 2
    assert found.value("kafka_log_logflushstats_logflushrateandtimems_sum") == pytest.approx(202)
    assert found.value("millstream_group_commit_requests_sum") == 9


class Stuck:
    last_run_ms, is_dead, uncleanable_count, max_dirty_percent = 1000, True, 2, 75


def test_a_dead_cleaner_is_seen() -> None:
    assert list(cleaner_families(None, 0)) == []
    found = Metrics("".join(render(cleaner_families(Stuck(), 5000))))
    assert found.value("kafka_log_logcleaner_deadthreadcount") == 1
    assert found.value("kafka_log_logcleanermanager_uncleanable_partitions_count") == 2
    assert found.value("kafka_log_logcleanermanager_max_dirty_percent") == 75
    assert found.value("kafka_log_logcleanermanager_time_since_last_run_ms") == 4000


def test_a_broker_that_stops_is_not_starting(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        states = []
        async with serving(tmp_path) as server:
            states.append(state_of(is_serving=server.is_serving, is_stopping=server.is_stopping))
        states.append(state_of(is_serving=server.is_serving, is_stopping=server.is_stopping))
        return states

    assert asyncio.run(scenario()) == [RUNNING, STOPPING]
    assert state_of(is_serving=False, is_stopping=False) == STARTING
