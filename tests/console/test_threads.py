"""Functions in threads: limits, results, and callers that are cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from millstream.console.threads import in_thread


def test_results_and_errors_come_back() -> None:
    async def run() -> None:
        limit = asyncio.Semaphore(1)
        assert await in_thread(limit, max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await in_thread(limit, divmod, 1, 0)
        assert await in_thread(limit, threading.get_ident) != threading.get_ident()

    asyncio.run(run())


@pytest.mark.parametrize("abandons", [False, True])
def test_caller_that_is_cancelled_waits_unless_it_abandons(abandons: bool) -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait()
        ended.set()
        raise OSError("nobody hears this")

    async def run() -> None:
        limit = asyncio.Semaphore(1)
        task = asyncio.create_task(in_thread(limit, work, abandons=abandons))
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert bool(done) == abandons
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert abandons or ended.is_set()

    asyncio.run(run())


def test_limit_holds() -> None:
    running = most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1

    async def run() -> None:
        limit = asyncio.Semaphore(2)
        await asyncio.gather(*(in_thread(limit, work) for _ in range(8)))

    asyncio.run(run())
    assert most <= 2
