"""Background coroutines and blocking calls of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from millstream.storage.steps import Steps, run_in_thread

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Tasks:
    """Starts background tasks, and cancels them when the broker stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        self.loop = loop
        self._executor = executor
        self._running: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or `cancel` is called."""
        task = self.loop.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def run_blocking(
        self,
        function: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> asyncio.Future[Result]:
        """Call a function that may wait for the disk, in a thread."""
        return self.loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    async def run_steps(self, steps: Steps[Result]) -> Result:
        """Run an operation whose steps alternate between the event loop and the disk."""
        return await run_in_thread(steps, self.run_blocking)

    async def cancel(self) -> None:
        """Cancel running tasks, and wait for their end."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
