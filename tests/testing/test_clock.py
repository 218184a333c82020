"""The manual clock."""

from __future__ import annotations

import pytest

from millstream.testing.clock import ManualClock


def test_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1000, 0)
    clock.advance(50)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1050, 50)


def test_wall_clock_can_be_set_back_and_the_other_cannot() -> None:
    clock = ManualClock(1000)
    clock.set_now(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (10, 0)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
