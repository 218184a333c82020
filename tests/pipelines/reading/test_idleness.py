"""When an idle source ticks, and at which time."""

from __future__ import annotations

from millstream.pipelines.reading.idleness import IdleWatch
from millstream.testing.clock import ManualClock

MINUTE = 60_000


def test_source_ticks_after_it_has_been_idle_for_long_enough() -> None:
    clock = ManualClock()
    watch = IdleWatch(10 * MINUTE, clock)
    assert watch.next_tick_ms(None, is_at_end=True) is None
    clock.advance(10 * MINUTE - 1)
    assert watch.next_tick_ms(None, is_at_end=True) is None
    clock.advance(1)
    first_ms = watch.next_tick_ms(None, is_at_end=True)
    assert first_ms == clock.now_ms() - 10 * MINUTE
    clock.advance(MINUTE - 1)
    assert watch.next_tick_ms(first_ms, is_at_end=True) is None, "each tick is a batch"
    clock.advance(1)
    assert watch.next_tick_ms(first_ms, is_at_end=True) == first_ms + MINUTE


def test_query_that_is_behind_does_not_tick_however_long_that_takes() -> None:
    clock = ManualClock()
    watch = IdleWatch(MINUTE, clock)
    for _ in range(5):
        clock.advance(10 * MINUTE)
        assert watch.next_tick_ms(None, is_at_end=False) is None
    assert watch.next_tick_ms(None, is_at_end=True) is None, "it is idle only from now on"
    clock.advance(MINUTE)
    assert watch.next_tick_ms(None, is_at_end=True) is not None
    assert watch.next_tick_ms(None, is_at_end=False) is None
    assert watch.next_tick_ms(None, is_at_end=True) is None
