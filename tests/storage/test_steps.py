"""Steps run in the thread that they belong to, and errors reach the generator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millstream.storage.steps import (
    Steps,
    let_others_work,
    run_from_thread,
    run_here,
    run_in_thread,
)


def threads_of(names: list[str]) -> Steps[str]:
    """Notes which thread runs what."""
    names.append(threading.current_thread().name)
    names.append((yield lambda: threading.current_thread().name))
    names.append(threading.current_thread().name)
    try:
        yield lambda: 1 // 0
    except ZeroDivisionError:
        names.append(threading.current_thread().name)
    return "done"


def test_all_steps_run_here() -> None:
    names: list[str] = []
    assert run_here(threads_of(names)) == "done"
    assert set(names) == {threading.current_thread().name}


def test_steps_that_wait_run_in_another_thread_than_the_loop() -> None:
    async def main(names: list[str]) -> str:
        loop = asyncio.get_running_loop()

        async def run_blocking(function: Callable[[], Any]) -> Any:
            return await loop.run_in_executor(pool, function)

        return await run_in_thread(threads_of(names), run_blocking)

    names: list[str] = []
    here = threading.current_thread().name
    with ThreadPoolExecutor(1, "disk") as pool:
        assert asyncio.run(main(names)) == "done"
    assert names == [here, "disk_0", here, here]


def test_rest_of_the_steps_runs_on_the_owner() -> None:
    names: list[str] = []
    with ThreadPoolExecutor(1, "owner") as owner:
        assert (
            run_from_thread(threads_of(names), lambda action: owner.submit(action).result())
            == "done"
        )
    assert names == ["owner_0", threading.current_thread().name, "owner_0", "owner_0"]


def test_error_that_the_generator_does_not_expect_ends_the_operation() -> None:
    def steps() -> Steps[None]:
        yield lambda: 1 // 0

    async def run_blocking(function: Callable[[], Any]) -> Any:
        return function()

    with pytest.raises(ZeroDivisionError):
        run_here(steps())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_in_thread(steps(), run_blocking))


def in_two_turns(turns: list[str]) -> Steps[None]:
    turns.append("first")
    yield let_others_work
    turns.append("second")


def test_others_work_between_two_turns_without_a_thread() -> None:
    async def main() -> list[str]:
        async def run_blocking(function: Callable[[], Any]) -> Any:
            raise AssertionError("no thread is needed")

        turns: list[str] = []
        asyncio.get_running_loop().call_soon(turns.append, "another")
        await run_in_thread(in_two_turns(turns), run_blocking)
        return turns

    assert asyncio.run(main()) == ["first", "another", "second"]


def test_turns_follow_one_another_without_an_event_loop() -> None:
    turns: list[str] = []
    run_here(in_two_turns(turns))
    run_from_thread(in_two_turns(turns), lambda action: action())
    assert turns == ["first", "second"] * 2
