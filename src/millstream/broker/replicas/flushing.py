"""Schedules flushes: one group commit for all waiting requests.

Requests that need a flush are collected during a turn of the event loop; at its end one
`GroupFlush` covers them all, in all partitions. If recent flushes were shared by several requests,
it waits as long as every turn brings another one, up to a millisecond: clients with many requests
in flight need few flushes, and a client that sends one request and waits is not delayed. The flush
runs

    inline       on the event loop, while flushes are short: switching to a thread and back costs
                 more than such a flush
    in a thread  in one dedicated thread, when they are not: the loop continues, and requests that
                 arrive meanwhile wait for the next flush

When it is done, the clients that wait for it are answered in the same turn (`turn.py`).

The choice depends on the duration of recent flushes, with hysteresis between the two thresholds. A
flush that has to sync many files, or the directory of a new log, always runs in the thread: a sync
of a directory waits for the journal of the file system, which takes 20 to 150 ms while the disk is
busy.
See docs/decisions/0005-event-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter

from millstream.broker._core import PartitionCore, notify_flushed
from millstream.broker.turn import Turn
from millstream.clock import Clock
from millstream.storage.flush import GroupFlush
from millstream.storage.log import Log

logger = logging.getLogger("millstream.flush")

TO_THREAD_ABOVE_SECONDS = 0.004
BACK_INLINE_BELOW_SECONDS = 0.002
INLINE_SYNCS_MAX = 8  # more syncs are not short, whatever earlier flushes took
GATHER_SECONDS_MAX = 0.001
SHARED_ABOVE_REQUESTS = 1.5  # per flush, on average: more than one client's one request
SMOOTHING = 0.2  # the weight of the newest flush in the running average


class Flusher:
    """Flushes on request. All calls from the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        turn: Turn,
        *,
        new_logs_inline: bool = False,
    ) -> None:
        """`new_logs_inline`: the file system is in memory, where no sync takes long."""
        self._loop = loop
        self._new_logs_inline = new_logs_inline
        self._clock = clock
        self._turn = turn
        self._waiting: dict[PartitionCore, None] = {}  # an ordered set
        self._is_scheduled = False
        self._is_closed = False
        self._requests = 0  # since the last flush began
        self._requests_seen = 0  # of these, those at the last delay of the flush
        self._gathering_since = 0.0
        self._typical_requests = 1.0
        self._typical_seconds = 0.0
        self.uses_thread = False
        self._thread: _FlushThread | None = None
        self._in_thread: list[PartitionCore] | None = None  # the partitions of the thread's flush
        self.on_directory_failed: Callable[[list[Log]], None] | None = None
        self.flush_count = 0
        self.inline_seconds = 0.0  # of flushes on the event loop
        self.request_count = 0  # requests that these flushes served
        self.on_flush: Callable[[float], None] | None = None  # called with the seconds of each

    @property
    def typical_ms(self) -> float:
        """Running average of the flush duration."""
        return self._typical_seconds * 1000

    def request(self, partition: PartitionCore) -> None:
        """Flush the partition's log when this turn ends, then call its `flushed`."""
        self._waiting[partition] = None
        self._requests += 1
        if not self._is_scheduled and self._in_thread is None:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def note_duration(self, seconds: float) -> None:
        """Choose where the next flush runs, from the duration of this one."""
        self._typical_seconds += SMOOTHING * (seconds - self._typical_seconds)
        limit = BACK_INLINE_BELOW_SECONDS if self.uses_thread else TO_THREAD_ABOVE_SECONDS
        self.uses_thread = self._typical_seconds > limit

    def use_thread(self) -> None:
        """Flush in the thread from now on, until flushes prove to be short."""
        self._typical_seconds = 2 * TO_THREAD_ABOVE_SECONDS
        self.uses_thread = True

    def close(self) -> None:
        """Finish the current flush and start no other: the clean stop flushes everything."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _run(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        if self._should_gather():
            self._is_scheduled = True
            self._loop.call_soon(self._run)
            return
        self._typical_requests += SMOOTHING * (self._requests - self._typical_requests)
        self.request_count += self._requests
        self._requests = self._requests_seen = 0
        partitions = list(self._waiting)
        self._waiting.clear()
        flush = GroupFlush.prepare([partition.log for partition in partitions])
        if self.uses_thread or self._is_long(flush):
            self._flush_in_thread(flush, partitions)
        else:
            self._flush_inline(flush, partitions)

    def _is_long(self, flush: GroupFlush) -> bool:
        """Whether a flush may take long, whatever earlier ones took."""
        has_new_logs = flush.has_new_logs and not self._new_logs_inline
        return has_new_logs or flush.sync_count > INLINE_SYNCS_MAX

    def _should_gather(self) -> bool:
        """Whether another turn is likely to bring more to share this flush."""
        if self._typical_requests < SHARED_ABOVE_REQUESTS or self._requests == self._requests_seen:
            return False
        now = perf_counter()
        if not self._requests_seen:
            self._gathering_since = now
        self._requests_seen = self._requests
        return now - self._gathering_since < GATHER_SECONDS_MAX

    def _flush_inline(self, flush: GroupFlush, partitions: list[PartitionCore]) -> None:
        started = perf_counter()
        flush.execute()
        seconds = perf_counter() - started
        self.inline_seconds += seconds
        self._finish(flush, partitions, seconds)

    def _flush_in_thread(self, flush: GroupFlush, partitions: list[PartitionCore]) -> None:
        if self._thread is None:
            self._thread = _FlushThread()
        self._in_thread = partitions

        def back_on_the_loop(seconds: float) -> None:
            self._in_thread = None
            try:
                self._finish(flush, partitions, seconds)
            finally:
                if self._waiting and not self._is_scheduled:
                    self._run()

        def job() -> None:
            started = perf_counter()
            try:
                flush.execute()
            finally:
                seconds = perf_counter() - started
                self._loop.call_soon_threadsafe(back_on_the_loop, seconds)

        self._thread.submit(job)

    def _finish(self, flush: GroupFlush, partitions: list[PartitionCore], seconds: float) -> None:
        self.flush_count += 1
        self.note_duration(seconds)
        if self.on_flush is not None:
            self.on_flush(seconds)
        failed = flush.complete(self._clock.now_ms())
        self._turn.begin()
        try:
            notify_flushed(partitions)
        finally:
            self._turn.end()  # consumers and producers are answered here
        if failed and self.on_directory_failed is not None:
            self.on_directory_failed(failed)


class _FlushThread:
    """The thread that waits for the disk instead of the event loop."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="millstream-flush", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish submitted flushes, then end."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # the thread must outlive a defect
                logger.exception("a flush failed unexpectedly")
