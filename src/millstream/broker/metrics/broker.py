"""Metrics of the broker itself: its state, its event loop, flushes, log directories, compaction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, Protocol

from millstream.broker.replicas.flushing import Flusher
from millstream.broker.services import Services
from millstream.metrics.distribution import Distribution, Histogram
from millstream.metrics.exposition import (
    Family,
    counter,
    gauge,
    histogram_samples,
    labels,
    summary_samples,
)
from millstream.metrics.process import ProcessState

WINDOW_SECONDS = 60.0
SAMPLE_EVERY_MAX = 16
RARE_SECONDS = 0.01
SPACING_SECONDS = 1.0  # between readings that are kept, however often it is scraped
STARTING, RECOVERING, RUNNING, STOPPING = 1, 2, 3, 6  # Kafka's states of a broker
FLUSH_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)


class LoopDelays(Protocol):
    """How late the event loop runs timers."""

    delays: Histogram


class Cleaning(Protocol):
    """The compaction thread."""

    last_run_ms: int

    @property
    def is_dead(self) -> bool: ...

    @property
    def uncleanable_count(self) -> int: ...

    @property
    def max_dirty_percent(self) -> int: ...


class FlushTimes:
    """The durations of flushes; of many per second, of a sample that counts for all."""

    def __init__(self) -> None:
        self.recent = Distribution()
        self.all = Histogram(FLUSH_BOUNDS)
        self._count = 0
        self._measured = 0  # `_count` when one was last measured
        self._measured_at = float("-inf")
        self._next = 1
        self._every = 1

    def note(self, seconds: float) -> None:
        self._count += 1
        if self._count >= self._next:
            self._measure(seconds, time.perf_counter())

    def _measure(self, seconds: float, now: float) -> None:
        weight = self._count - self._measured
        is_rare = now - self._measured_at > RARE_SECONDS * weight
        self._every = 1 if is_rare else min(2 * self._every, SAMPLE_EVERY_MAX)
        self._measured, self._measured_at = self._count, now
        self._next = self._count + self._every
        self.recent.note(seconds, now, weight)
        self.all.note(seconds, weight)


class _Reading(NamedTuple):
    at: float
    busy_seconds: float
    accepted: int


class Rates:
    """Averages over the last minute, from readings at each scrape."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def note(self, at: float, busy_seconds: float, accepted: int) -> None:
        readings = self._readings
        if len(readings) > 1 and at - readings[-2].at < SPACING_SECONDS:
            readings.pop()
        readings.append(_Reading(at, busy_seconds, accepted))
        while len(readings) > 2 and readings[1].at <= at - WINDOW_SECONDS:
            readings.popleft()

    @property
    def idle(self) -> float:
        """The share of time in which the event loop had nothing to do."""
        seconds, first, last = self._span()
        return min(max(1 - (last.busy_seconds - first.busy_seconds) / seconds, 0.0), 1.0)

    @property
    def accepted_per_second(self) -> float:
        seconds, first, last = self._span()
        return (last.accepted - first.accepted) / seconds

    def _span(self) -> tuple[float, _Reading, _Reading]:
        first, last = self._readings[0], self._readings[-1]
        return max(last.at - first.at, 1e-3), first, last


def state_of(*, is_serving: bool, is_stopping: bool) -> int:
    if is_stopping:
        return STOPPING
    return RUNNING if is_serving else STARTING


def families(
    services: Services,
    state: int,
    rates: Rates,
    delays: LoopDelays,
    process: ProcessState,
) -> Iterator[Family]:
    yield gauge(
        "kafka_server_kafkaserver_brokerstate", "1: starting, 3: running, 6: stopping.", state
    )
    yield gauge(
        "millstream_build_info", "The version of Millstream.", ((labels(version=_version()), 1),)
    )
    idle = rates.idle
    for name in (
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    ):
        yield gauge(name, "Share of time in which the event loop is idle, 0 to 1.", idle)
    yield Family(
        "millstream_loop_lag_seconds",
        "histogram",
        "How late the event loop runs timers; ten samples per second.",
        histogram_samples("", delays.delays),
    )
    yield gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "Incremental fetch sessions.",
        len(services.fetch_sessions),
    )
    yield from _directory_families(services)
    for name, help, value in (
        ("read", "Bytes read from disks.", process.disk_read_bytes),
        ("write", "Bytes written to disks.", process.disk_written_bytes),
    ):
        if value is not None:
            yield gauge(f"kafka_server_kafkaserver_linux_disk_{name}_bytes", help, value)


def _version() -> str:
    try:
        return version("millstream")
    except PackageNotFoundError:
        return "unknown"


def _directory_families(services: Services) -> Iterator[Family]:
    directories = services.directories.directories
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that have failed.",
        sum(it.failure is not None for it in directories),
    )
    yield gauge(
        "kafka_log_logmanager_logdirectoryoffline",
        "Whether the log directory has failed.",
        ((labels(logDirectory=it.path), int(it.failure is not None)) for it in directories),
    )


def flush_families(flusher: Flusher, times: FlushTimes, now: float) -> Iterator[Family]:
    yield Family(
        "kafka_log_logflushstats_logflushrateandtimems",
        "summary",
        "Duration of flushes, in milliseconds.",
        summary_samples("", times.recent, now, scale=1000),
    )
    yield Family(
        "millstream_flush_seconds",
        "histogram",
        "Duration of flushes; one covers all waiting appends.",
        histogram_samples("", times.all),
    )
    yield Family(
        "millstream_group_commit_requests",
        "summary",
        "Appends per flush.",
        (("_sum", flusher.request_count), ("_count", flusher.flush_count)),
    )
    yield gauge(
        "millstream_flush_in_thread",
        "Whether flushes run in a thread, because they take long.",
        int(flusher.uses_thread),
    )


def cleaner_families(cleaning: Cleaning | None, now_ms: int) -> Iterator[Family]:
    if cleaning is None:
        return
    yield gauge(
        "kafka_log_logcleaner_deadthreadcount",
        "Whether the compaction thread has died.",
        int(cleaning.is_dead),
    )
    yield gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Logs that cannot be compacted because they are damaged.",
        cleaning.uncleanable_count,
    )
    yield gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "Share of a compacted log that is to be compacted, of the log with the largest.",
        cleaning.max_dirty_percent,
    )
    yield gauge(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Time since the compaction thread last looked for work.",
        max(now_ms - cleaning.last_run_ms, 0),
    )


def counter_of_unclean_elections(count: int) -> Family:
    return counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "Elections of this broker although it was not in sync: records are lost.",
        count,
    )
