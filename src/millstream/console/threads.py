"""Blocking functions in threads, for the event loop: how many run at once is limited.

The threads stay, since a new one costs more memory than one that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

THREADS_MAX = 40

Result = TypeVar("Result")
_pool = ThreadPoolExecutor(THREADS_MAX, "console-worker")


async def in_thread(
    limit: asyncio.Semaphore,
    function: Callable[..., Result],
    *arguments: Any,
    abandons: bool = False,
) -> Result:
    """`function(*arguments)` in a thread, when the `limit` has a place.

    If the caller is cancelled, it still waits until the function returns, since the caller closes
    what the function uses; with `abandons`, it does not."""
    async with limit:
        running = asyncio.get_running_loop().run_in_executor(_pool, function, *arguments)
        if abandons:
            return await running
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # nobody waits for it any more
            raise
