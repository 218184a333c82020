"""Delays of the event loop are noticed and summed up."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from millstream.broker.maintenance.loop_lag import INTERVAL_SECONDS, LagSummary, LoopLag
from tests.broker.serving import serving


def test_loop_that_is_held_up_is_late() -> None:
    async def main() -> LagSummary:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        time.sleep(3 * INTERVAL_SECONDS)
        while True:
            await asyncio.sleep(0)
            summary = lag.take_summary()
            if summary.samples:
                lag.stop()
                return summary

    summary = asyncio.run(main())
    assert summary.max_ms >= 1000 * INTERVAL_SECONDS


def test_summary_has_the_99th_percentile_by_buckets_and_starts_again() -> None:
    loop = asyncio.new_event_loop()
    lag = LoopLag(loop)
    for _ in range(99):
        lag.note(0.3)
    lag.note(700.0)
    assert lag.take_summary() == LagSummary(100, 0.5, 700.0)
    lag.note(0.1)
    lag.note(3.0)
    assert lag.take_summary() == LagSummary(2, 3.0, 3.0)
    assert lag.take_summary() == LagSummary(0, 0.0, 0.0)
    loop.close()


def test_counters_of_a_broker_tell_the_lag_of_its_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            broker.loop_lag.take_summary()  # of a start on a busy machine
            broker.loop_lag.note(12.0)
            broker.log_counters()

    with caplog.at_level(logging.INFO, "millstream.server"):
        asyncio.run(main())
    assert "loop_lag_ms_p99=12.00 loop_lag_ms_max=12.00" in caplog.text
