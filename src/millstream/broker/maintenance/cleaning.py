"""The compaction thread: repeatedly cleans the log with the highest need, and excises records.

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
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millstream.storage.cleaner_segment import CleaningAborted
from millstream.storage.log import Log

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.clock import Clock
    from millstream.storage.cleaner import Cleaner, CleaningStats
    from millstream.storage.excision import Excisor, LogExcision

logger = logging.getLogger("millstream.cleaner")

Result = TypeVar("Result")


class CleaningThread:
    """Compacts the broker's logs in the background, unless `log.cleaner.enable` is false, and
    removes the records that are to be excised."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        configs: ConfigManager,
        partitions: PartitionTable,
        on_excised: Callable[[Log, LogExcision], None] = lambda log, done: None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._configs = configs
        self._partitions = partitions
        self._on_excised = on_excised
        self._compacts = configs.current.log_cleaner_enable
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._cleaner: Cleaner | None = None
        self._excisor: Excisor | None = None
        self.last_run_ms = clock.now_ms()  # when a log was last chosen, or none was dirty
        self._thread = threading.Thread(target=self._work, name="millstream-cleaner", daemon=True)

    def start(self) -> None:
        if self._compacts:
            self._thread.start()

    async def stop(self) -> None:
        """Stop soon: aborts a running cleaning, which leaves the log unchanged."""
        self._stopping.set()
        self._awake.set()
        if self._thread.ident is None:
            return
        # The thread may be waiting for the event loop, so the loop must keep running.
        await self._loop.run_in_executor(None, self._thread.join)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended although the broker has not."""
        is_started = self._thread.ident is not None
        return is_started and not self._thread.is_alive() and not self._stopping.is_set()

    def look_for_excisions(self) -> None:
        """Event loop: begin soon if a log may have records to excise."""
        logs = self._excisable()
        if not logs:
            return
        if self._excisor is None:
            from millstream.storage.excision import Excisor

            self._excisor = Excisor(on_owner=self._on_loop, now_ms=self._clock.now_ms)
        if self._excisor.pending(logs):
            self._awake.set()
            if self._thread.ident is None:
                self._thread.start()

    @property
    def uncleanable_count(self) -> int:
        """Logs that could not be cleaned."""
        return 0 if self._cleaner is None else self._cleaner.uncleanable_count

    @property
    def max_dirty_percent(self) -> int:
        """Of the log with the largest share of bytes to clean, when one was last chosen."""
        return 0 if self._cleaner is None else int(100 * self._cleaner.dirty_ratio_max)

    def _work(self) -> None:
        self._back_off()
        while not self._stopping.is_set():
            try:
                self._excise()
                stats = self._clean() if self._compacts else None
            except (CleaningAborted, CancelledError):
                continue
            except Exception:
                logger.exception("log cleaning failed")
                stats = None
            self.last_run_ms = self._clock.now_ms()
            if stats is None:
                self._back_off()

    def _back_off(self) -> None:
        self._awake.wait(self._configs.current.log_cleaner_backoff_ms / 1000)
        self._awake.clear()

    def _clean(self) -> CleaningStats | None:
        if self._cleaner is None:
            self._cleaner = self._new_cleaner()
        return self._cleaner.clean_filthiest(self._logs, self._clock.now_ms())

    def _excise(self) -> None:
        excisor = self._excisor
        if excisor is None:
            return
        for log in self._on_loop(lambda: excisor.pending(self._excisable())):
            if self._stopping.is_set():
                return
            done = excisor.excise(log)
            if done is not None:
                self._on_loop(partial(self._on_excised, log, done))

    def _excisable(self) -> list[Log]:
        return [log for log, _ in self._logs() if log.config.millstream_excised_offsets]

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
            (partition.log, _cleanable_end(partition))
            for partition in self._partitions
            if partition.offline_error is None or partition.following is not None
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


def _cleanable_end(partition: Partition) -> int:
    """A record is archived before it is compacted away."""
    archived = partition.archived_offset
    stable = partition.last_stable_offset
    return stable if archived is None else min(stable, archived)
