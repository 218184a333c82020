"""The end of a turn: callbacks run once, after the requests and before their responses."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.broker.turn import Turn


def test_callbacks_of_a_turn_run_at_its_end_and_once() -> None:
    loop, calls = asyncio.new_event_loop(), list[str]()
    turn = Turn(loop)
    turn.begin()
    turn.call_at_end(lambda: calls.append("first"))
    turn.call_at_end(lambda: calls.append("second"))
    assert not calls
    turn.end()
    turn.end()
    assert calls == ["first", "second"]
    loop.close()


def test_callback_outside_a_turn_runs_in_the_next_one_of_the_loop() -> None:
    async def scenario() -> None:
        turn, calls = Turn(asyncio.get_running_loop()), list[str]()
        turn.begin()
        turn.call_at_end(lambda: turn.call_at_end(lambda: calls.append("nested")))
        turn.end()
        turn.call_at_end(lambda: calls.append("late"))
        assert not calls
        await asyncio.sleep(0)
        assert calls == ["nested", "late"]

    asyncio.run(scenario())


def test_callback_that_raises_is_logged_and_the_others_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, calls = asyncio.new_event_loop(), list[str]()
    turn = Turn(loop)

    def fail() -> None:
        raise RuntimeError("a defect")

    with caplog.at_level(logging.ERROR):
        turn.begin()
        turn.call_at_end(fail)
        turn.call_at_end(lambda: calls.append("after"))
        turn.end()
    assert calls == ["after"]
    assert "a defect" in caplog.text
    loop.close()
