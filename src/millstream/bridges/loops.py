"""The threads of a bridge's parts. What goes wrong in one is logged, counted and visible in
`/ready`, and the work begins again after a pause: no part ends silently.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from millstream.bridges.counts import Counts

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 30.0  # after which work that failed counts as mended
_log = logging.getLogger(__name__)


class Loop:
    """A thread that does `work` until it returns. `work` looks at `stopping`."""

    def __init__(
        self, name: str, work: Callable[[], None], stopping: threading.Event, counts: Counts
    ) -> None:
        self.name = name
        self._work = work
        self._stopping = stopping
        self._counts = counts
        self._error: str | None = None
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name=f"bridge-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds_max: float | None = None) -> None:
        """Wait for the end of the work, if it was begun."""
        if self._thread.is_alive():
            self._thread.join(seconds_max)

    @property
    def problem(self) -> str | None:
        """What went wrong, until the work has gone well for a while."""
        if self._error is not None and time.monotonic() - self._began > HEALTHY_SECONDS:
            return None
        return self._error

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while True:  # once at least: some have work to do when they are stopped
            self._began = time.monotonic()
            try:
                self._work()
                return
            except Exception as error:  # noqa: BLE001 - it is shown and counted
                if self.problem is None:
                    pause = PAUSE_SECONDS
                self._error = f"{self.name}: {type(error).__name__}: {error}"
                self._began = time.monotonic()
                self._counts.add("failures", part=self.name)
                _log.exception("%s failed; it begins again in %g s", self.name, pause)
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


class Part:
    """What runs in `loops`, from `start` to `stop`."""

    stop_seconds_max: float | None = None  # for each loop

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self.loops: list[Loop] = []

    def start(self) -> None:
        for loop in self.loops:
            loop.start()

    def stop(self) -> None:
        self._stopping.set()
        for loop in self.loops:
            loop.join(self.stop_seconds_max)
        self._close()

    def _close(self) -> None:
        """Close what it opened."""
