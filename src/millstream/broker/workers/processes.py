"""The processes of workers, as their parent sees them.

Importing the broker takes longer than recovering the logs of a killed worker. So there is a spare
process, which has imported everything and waits for its assignment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Any

from millstream.broker.workers.worker import Assignment
from millstream.errors import MillstreamError

logger = logging.getLogger("millstream.workers")

STOP_SECONDS_MAX = 30.0
_WORKER_MODULE = "millstream.broker.workers.worker"


class WorkerFailed(MillstreamError):
    """A worker did not start."""


class Spare:
    """A process that will be the next worker that has to be started."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def prepare(self) -> None:
        if self._process is None:
            self._process = await _spawn()

    async def take(self) -> Process:
        """The spare process, or a new one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            return process
        return await _spawn()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # it ends without an assignment
            await process.wait()


async def _spawn() -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _WORKER_MODULE),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C must not reach it: the parent stops it
    )


class Worker:
    """One worker, over all its processes."""

    def __init__(
        self, number: int, assign: Callable[[dict[str, int]], Assignment], spare: Spare
    ) -> None:
        """`assign` gets the ports that it had in its last life."""
        self.number = number
        self._spare = spare
        self.ports: dict[str, int] = {}
        self.metrics_address: str | None = None
        self._assign = assign
        self._process: asyncio.subprocess.Process | None = None
        self._serving_since: float | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when it serves. Raises `WorkerFailed` with its reason."""
        self._serving_since = None
        self._process = process = await self._spare.take()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(self._assign(self.ports).encode())
            await process.stdin.drain()
        line = await process.stdout.readline()
        answer: dict[str, Any] = {"error": "its process ended; see its log above"}
        if line:
            answer = json.loads(line)
        if "error" in answer:
            await process.wait()
            raise WorkerFailed(f"worker {self.number} cannot start: {answer['error']}")
        self.ports = answer["ports"]
        self.metrics_address = answer["metrics"]
        self._serving_since = time.monotonic()

    async def died(self) -> str:
        """Wait until its process ends; returns how."""
        assert self._process is not None
        code = await self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    @property
    def served_seconds(self) -> float:
        since = self._serving_since
        return 0.0 if since is None else time.monotonic() - since

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        if self._process is None:
            return
        self.send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            logger.error(
                "worker %d has not stopped after %.0f s and is killed; its logs are recovered at "
                "the next start",
                *(self.number, STOP_SECONDS_MAX),
            )
            self.send(signal.SIGKILL)
            await self._process.wait()
