"""Completions: every callback is called once, whatever the others do."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.broker.completion import Completion


def test_callbacks_are_called_once_and_in_order() -> None:
    completion, calls = Completion(), list[str]()
    completion.when_done(lambda _: calls.append("first"))
    completion.when_done(lambda _: calls.append("second"))
    assert not completion.is_done
    completion.finish()
    completion.finish()
    assert completion.is_done
    assert calls == ["first", "second"]


def test_callback_gets_the_completion_and_a_late_one_is_called_at_once() -> None:
    completion, calls = Completion(), list[Completion]()
    completion.finish()
    completion.when_done(calls.append)
    assert calls == [completion]


def test_callback_added_by_a_callback_is_called_at_once() -> None:
    completion, calls = Completion(), list[Completion]()
    completion.when_done(lambda done: done.when_done(calls.append))
    completion.finish()
    assert calls == [completion]


def test_raising_callback_is_logged_and_those_behind_it_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: Completion) -> None:
        raise RuntimeError("a defect")

    completion, calls = Completion(), list[Completion]()
    completion.when_done(broken)
    completion.when_done(calls.append)
    with caplog.at_level(logging.ERROR):
        completion.finish()
    assert calls == [completion]
    assert "a defect" in caplog.text


def test_completion_can_be_awaited_before_and_after_it_is_done() -> None:
    async def main() -> None:
        completion = Completion()
        asyncio.get_running_loop().call_soon(completion.finish)
        assert await completion is completion
        assert await completion is completion

    asyncio.run(main())


def test_cancelled_waiter_does_not_disturb_the_others() -> None:
    async def main() -> None:
        completion, calls = Completion(), list[Completion]()

        async def wait() -> None:
            await completion

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        completion.when_done(calls.append)
        completion.finish()
        assert calls == [completion]
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
