"""Periodic jobs: retention, checkpoints, expiry, idle connections, delayed flushes.

Each job runs on the event loop at its own interval and must be short; what may be long (deleting
files) is handed to a thread. A job that fails is logged and tried again at its next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millstream.config.setting import LONG_MAX
from millstream.storage.flush import GroupFlush
from millstream.storage.retention import apply_all
from millstream.storage.version_replay import needs_snapshot, save_versions

if TYPE_CHECKING:
    from millstream.broker.maintenance.strays import Strays
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.flushing import Flusher
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.storage.directories import LogDirectories
    from millstream.storage.log import Log
    from millstream.storage.steps import Steps

logger = logging.getLogger("millstream.background")

IDLE_CHECK_MS = 1_000
LATE_FLUSH_CHECK_MS = 500
JOURNAL_CHECK_MS = 200
EXCISION_CHECK_MS = 1000
FILE_SWEEP_MS = 10_000
STRAYS_MS = 600_000
INTERVAL_MS_MAX = 24 * 3600 * 1000  # intervals may be as long as Kafka's largest number


class Background:
    """The broker's periodic jobs."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        clock: Clock,
        configs: ConfigManager,
        partitions: PartitionTable,
        directories: LogDirectories,
        flusher: Flusher,
        strays: Strays,
        close_idle: Callable[[], None],
        check_lag: Callable[[int], None],
        look_for_excisions: Callable[[], None],
        on_directory_failed: Callable[[list[Log]], None],
    ) -> None:
        """`close_idle` closes idle connections; `check_lag` is called with the time."""
        self._tasks = tasks
        self._loop = tasks.loop
        self._clock = clock
        self._configs = configs
        self._partitions = partitions
        self._directories = directories
        self._flusher = flusher
        self._strays = strays
        self._close_idle = close_idle
        self._check_lag = check_lag
        self._look_for_excisions = look_for_excisions
        self._on_directory_failed = on_directory_failed
        self._handles: dict[str, asyncio.TimerHandle] = {}
        self._is_stopped = False
        self._retention_is_running = False
        self._versions_are_being_saved = False

    def start(self) -> None:
        config = self._configs.current
        self._every(IDLE_CHECK_MS, "idle connections", self._close_idle)
        self._every(LATE_FLUSH_CHECK_MS, "flush.ms", self._flush_late)
        self._every(JOURNAL_CHECK_MS, "journal", self._retire_journal)
        self._every(EXCISION_CHECK_MS, "excisions", self._look_for_excisions)
        self._every(FILE_SWEEP_MS, "file deletion", self._sweep_files)
        self._every(STRAYS_MS, "strays", self._start_strays)
        self._every(config.log_retention_check_interval_ms, "retention", self._start_retention)
        self._every(config.log_flush_offset_checkpoint_interval_ms, "checkpoint", self._checkpoint)
        self._every(
            config.log_flush_offset_checkpoint_interval_ms, "versions", self._start_saving_versions
        )
        self._every(
            config.producer_id_expiration_check_interval_ms, "producers", self._expire_producers
        )

    def stop(self) -> None:
        self._is_stopped = True
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _every(self, interval_ms: int, name: str, job: Callable[[], None]) -> None:
        seconds = min(max(interval_ms, 1), INTERVAL_MS_MAX) / 1000

        def run() -> None:
            try:
                job()
            except Exception:
                logger.exception("background job failed: %s", name)
            self._handles[name] = self._loop.call_later(seconds, run)

        self._handles[name] = self._loop.call_later(seconds, run)

    def _flush_late(self) -> None:
        """Flush logs with bytes older than their topic's flush.ms."""
        now_ms = self._clock.now_ms()
        for partition in self._partitions:
            log = partition.log
            if (
                log.config.flush_ms != LONG_MAX
                and log.flushed_offset < log.log_end_offset
                and now_ms - log.last_flush_ms >= log.config.flush_ms
            ):
                self._flusher.request(partition)

    def _start_retention(self) -> None:
        if not self._retention_is_running:
            self._retention_is_running = True
            self._tasks.start(self._apply_retention())

    async def _apply_retention(self) -> None:
        now_ms = self._clock.now_ms()
        try:
            candidates = [
                partition.retention_candidate()
                for partition in self._partitions
                if partition.offline_error is None
            ]
            await self._tasks.run_steps(apply_all(candidates, now_ms))
            self._check_lag(now_ms)
        except Exception:
            logger.exception("background job failed: retention")
        finally:
            self._retention_is_running = False

    def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._configs.current.producer_id_expiration_ms
        for partition in self._partitions:
            partition.log.producers.expire(now_ms, expiration_ms)

    def _sweep_files(self) -> None:
        self._tasks.run_blocking(self._directories.sweep)

    def _start_strays(self) -> None:
        self._tasks.start(self._review_strays())

    async def _review_strays(self) -> None:
        try:
            await self._tasks.run_blocking(self._strays.review)
        except OSError:
            logger.exception("background job failed: strays")

    def _checkpoint(self) -> None:
        """Sync the segments closed since the last time, whatever the acks, so that recovery never
        has to look at more than the newest; then save recovery points and high watermarks."""
        logs = [
            partition.log
            for partition in self._partitions
            if partition.log.has_unsynced_closed_segment
        ]
        self._flush_in_thread(GroupFlush.prepare(logs, to_segments=True), self._save_checkpoints)

    def _save_checkpoints(self) -> None:
        steps = self._directories.checkpoint_steps(self._partitions.high_watermarks())
        self._tasks.start(self._run("checkpoint", steps))

    async def _run(self, name: str, steps: Steps[None]) -> None:
        try:
            await self._tasks.run_steps(steps)
        except Exception:
            logger.exception("background job failed: %s", name)

    def _start_saving_versions(self) -> None:
        """Snapshots of the versions of keys, of topics with conditional appends."""
        logs = [it.log for it in self._partitions if needs_snapshot(it.log)]
        if logs and not self._versions_are_being_saved:
            self._versions_are_being_saved = True
            self._tasks.start(self._save_versions(logs))

    async def _save_versions(self, logs: list[Log]) -> None:
        try:
            for log in logs:
                await self._run("versions", save_versions(log, now_ms=self._clock.now_ms()))
        finally:
            self._versions_are_being_saved = False

    def _retire_journal(self) -> None:
        """Sync the segments of a full journal, then drop the journal."""
        directories = self._directories
        flush = directories.prepare_journal_retirement()
        if flush is not None:
            finish = partial(self._tasks.run_blocking, directories.finish_journal_retirement)
            self._flush_in_thread(flush, finish)

    def _flush_in_thread(self, flush: GroupFlush, then: Callable[[], object]) -> None:
        """Flush without holding up the event loop, then go on there."""

        def done(execution: asyncio.Future[None]) -> None:
            # After a stop, what follows is not ours to touch: the stop saves everything.
            if self._is_stopped or execution.cancelled():
                return
            failed = flush.complete(self._clock.now_ms())
            if failed:
                self._on_directory_failed(failed)
            then()

        self._tasks.run_blocking(flush.execute).add_done_callback(done)
