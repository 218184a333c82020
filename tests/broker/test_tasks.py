"""Work that runs on the broker's behalf: threads for blocking calls, and an end for everything."""

from __future__ import annotations

import asyncio
import threading

from millstream.broker.tasks import Tasks


def test_blocking_calls_run_in_a_thread() -> None:
    async def main() -> None:
        tasks = Tasks(asyncio.get_running_loop())
        assert await tasks.run_blocking(sum, [1, 2, 3]) == 6
        assert await tasks.run_blocking(threading.get_ident) != threading.get_ident()

    asyncio.run(main())


def test_tasks_that_still_run_are_cancelled() -> None:
    async def main() -> None:
        tasks = Tasks(asyncio.get_running_loop())
        ended: list[str] = []
        started = asyncio.Event()

        async def short() -> None:
            ended.append("short")

        async def endless() -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                ended.append("endless")

        tasks.start(short())
        tasks.start(endless())
        await started.wait()
        await tasks.cancel()
        assert ended == ["short", "endless"]

    asyncio.run(main())
