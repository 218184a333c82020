"""The compaction thread: repeatedly cleans the log with the highest need.

Cleaning processes records in compiled code without the GIL, so it hardly affects the event loop. It
changes a log only through calls on the event loop (`_on_loop`).

The cleaner is imported one back-off after the broker's start, to keep the start fast
(docs/decisions/0008-start-up.md).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, TypeVar

from millstream.storage.cleaner_segment import CleaningAborted
from millstream.storage.log import Log

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.table import PartitionTable
    from millstream.clock import Clock
    from millstream.storage.cleaner import Cleaner

logger = logging.getLogger("millstream.cleaner")

Result = TypeVar("Result")


class CleaningThread:
    """Compacts the broker's logs in the background."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        configs: ConfigManager,
        partitions: PartitionTable,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._configs = configs
        self._partitions = partitions
        self._stopping = threading.Event()
        self._cleaner: Cleaner | None = None
        self.last_run_ms = 0  # when a log was last chosen, or none was dirty; 0: never
        self._thread = threading.Thread(target=self._work, name="millstream-cleaner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stop soon: aborts a running cleaning, which leaves the log unchanged."""
        self._stopping.set()
        # The thread may be waiting for the event loop, so the loop must keep running.
        await self._loop.run_in_executor(None, self._thread.join)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended although the broker has not."""
        return not self._thread.is_alive() and not self._stopping.is_set()

    @property
    def uncleanable_count(self) -> int:
        """Logs that could not be cleaned."""
        return 0 if self._cleaner is None else self._cleaner.uncleanable_count

    def _work(self) -> None:
        self._back_off()
        if self._stopping.is_set():
            return
        cleaner = self._cleaner = self._new_cleaner()
        while not self._stopping.is_set():
            try:
                stats = cleaner.clean_filthiest(self._logs, self._clock.now_ms())
            except (CleaningAborted, CancelledError):
                continue
            except Exception:
                logger.exception("log cleaning failed")
                stats = None
            self.last_run_ms = self._clock.now_ms()
            if stats is None:
                self._back_off()

    def _back_off(self) -> None:
        self._stopping.wait(self._configs.current.log_cleaner_backoff_ms / 1000)

    def _new_cleaner(self) -> Cleaner:
        from millstream.storage.cleaner import Cleaner, CleanerSettings

        config = self._configs.current
        return Cleaner(
            CleanerSettings(
                dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
                dedupe_load_factor=config.log_cleaner_io_buffer_load_factor,
                io_buffer_bytes=config.log_cleaner_io_buffer_size,
                io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
            ),
            on_owner=self._on_loop,
            stopping=self._stopping,
        )

    def _logs(self) -> list[tuple[Log, int]]:
        return [
            (partition.log, partition.last_stable_offset)
            for partition in self._partitions
            if partition.offline_error is None
        ]

    def _on_loop(self, action: Callable[[], Result]) -> Result:
        """Run a function on the event loop and wait for its result."""
        future: Future[Result] = Future()

        def run() -> None:
            if self._stopping.is_set():
                future.set_exception(CleaningAborted("the broker is stopping"))
                return
            try:
                future.set_result(action())
            except BaseException as error:  # noqa: BLE001 - the cleaner's thread raises it
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return future.result()
