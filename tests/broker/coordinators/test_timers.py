"""Timers on one heap."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.coordinators.timers import _DEAD_ENTRIES_MIN, Timers
from millstream.clock import SystemClock
from millstream.testing.clock import ManualClock
from tests.peers.patience import PATIENCE_SECONDS


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    async def scenario() -> list[str]:
        clock = ManualClock()  # as many milliseconds later, however long setting them takes
        timers, fired, done = Timers(clock), [], asyncio.Event()
        timers.set("owner", ("last",), 20, done.set)
        timers.set("owner", ("second",), 10, lambda: fired.append("second"))
        timers.set("owner", ("first",), 0, lambda: fired.append("first"))
        clock.advance(20)
        await done.wait()
        assert len(timers) == 0
        return fired

    assert asyncio.run(scenario()) == ["first", "second"]


def test_timer_set_again_fires_once() -> None:
    async def scenario() -> list[int]:
        timers, fired, done = Timers(SystemClock()), [], asyncio.Event()
        for number in range(3):
            timers.set("owner", ("name",), number, lambda number=number: fired.append(number))
        timers.set("owner", ("end",), 20, done.set)
        await done.wait()
        return fired

    assert asyncio.run(scenario()) == [2]


def test_cancelled_timers_do_not_fire() -> None:
    async def scenario() -> list[str]:
        timers, fired, done = Timers(SystemClock()), [], asyncio.Event()
        timers.set("a", ("x",), 0, lambda: fired.append("cancelled"))
        timers.set("b", ("x",), 0, lambda: fired.append("kept"))
        timers.set("c", ("x",), 0, lambda: fired.append("cancelled with its owner"))
        timers.cancel("a", ("x",))
        timers.cancel_all("c")
        timers.cancel("nobody", ("x",))
        timers.set("b", ("end",), 10, done.set)
        await done.wait()
        return fired

    assert asyncio.run(scenario()) == ["kept"]


def test_timer_cancelled_by_one_of_the_same_turn_does_not_fire() -> None:
    async def scenario() -> list[str]:
        timers, fired, done = Timers(SystemClock()), [], asyncio.Event()
        timers.set("o", ("first",), 0, lambda: timers.cancel("o", ("second",)))
        timers.set("o", ("second",), 0, lambda: fired.append("second"))
        timers.set("o", ("end",), 5, done.set)
        await done.wait()
        return fired

    assert asyncio.run(scenario()) == []


def test_timer_that_fails_does_not_hold_back_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A group whose join completes by a timer must not wait forever for another group's mistake."""

    async def scenario() -> list[str]:
        timers, fired, done = Timers(SystemClock()), [], asyncio.Event()
        timers.set("o", ("bad",), 0, lambda: fired[0])
        timers.set("o", ("same turn",), 0, lambda: fired.append("same turn"))
        timers.set("o", ("end",), 5, done.set)
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
        return fired

    assert asyncio.run(scenario()) == ["same turn"]
    assert "timer bad failed" in caplog.text


def test_replaced_timers_do_not_pile_up() -> None:
    """A heartbeat a second for a day must not fill the heap."""

    async def scenario() -> int:
        timers = Timers(SystemClock())
        for _ in range(20 * _DEAD_ENTRIES_MIN):
            timers.set("owner", ("session",), 60_000, lambda: None)
        size = len(timers._heap)
        timers.close()
        return size

    assert asyncio.run(scenario()) <= _DEAD_ENTRIES_MIN + 3
