"""Metrics of running pipelines, for Prometheus.

`millstream run --metrics HOST:PORT` serves them. A program that starts pipelines itself does this:

    query = revenue.start(spark)
    with PipelineMetrics("127.0.0.1:9405") as metrics:
        metrics.watch("revenue", query)
        query.awaitTermination()

Spark keeps the progress of the last 100 batches, so queries are read once per second, not only when
they are scraped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millstream.metrics import process
from millstream.metrics.exposition import Family, Sample, counter, gauge, labels
from millstream.metrics.threaded import MetricsThread
from millstream.pipelines.running.status import Status, Watched

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("millstream.pipelines")

READ_SECONDS = 1.0
STATES = ("starting", "waiting", "working", "done", "stopped", "failed")


def families(statuses: list[Status], now: float) -> Iterator[Family]:
    """`now` is in Unix time, in seconds."""

    def of(value: Callable[[Status], float | None]) -> list[Sample]:
        found = ((labels(pipeline=it.name), value(it)) for it in statuses)
        return [(text, number) for text, number in found if number is not None]

    prefix = "millstream_pipeline"
    for name, help, counted in (
        ("rows", "Rows read.", lambda it: it.rows),
        ("batches", "Batches completed.", lambda it: it.batches),
        ("bad_records", "Records that did not decode.", lambda it: it.failed),
        ("dead_letters", "Of these, those written to a dead-letter topic.", _dead_letters),
        ("restarts", "Restarts of the query after an error.", lambda it: it.restarts),
    ):
        yield counter(f"{prefix}_{name}_total", help, of(counted))
    yield counter(
        f"{prefix}_late_rows_total",
        "Rows that came after the watermark, and were dropped, by operator.",
        [
            (labels(pipeline=it.name, operator=operator), count)
            for it in statuses
            for operator, count in list(it.late.items())
        ],
    )
    yield counter(
        f"{prefix}_batch_seconds_total",
        "Duration of completed batches.",
        of(lambda it: it.batch_ms_sum / 1000),
    )
    for name, help, measured in (
        ("rows_per_second", "Rows read per second, lately.", lambda it: it.rows_per_second),
        (
            "last_batch_seconds",
            "Duration of the last batch.",
            lambda it: None if it.batch_ms is None else it.batch_ms / 1000,
        ),
        ("lag_records", "Records that are not read yet.", lambda it: it.lag),
        (
            "watermark_delay_seconds",
            "How far the watermark is behind the clock.",
            lambda it: None if it.watermark_ms is None else max(now - it.watermark_ms / 1000, 0.0),
        ),
        ("state_rows", "Rows in the state of Spark's own operators.", lambda it: it.kept_rows),
        ("state_bytes", "Bytes of all state.", lambda it: it.kept_bytes),
        ("up", "Whether the pipeline runs.", lambda it: int(it.state in ("waiting", "working"))),
    ):
        yield gauge(f"{prefix}_{name}", help, of(measured))
    yield gauge(
        f"{prefix}_state",
        "The state of the pipeline: 1 for the one that it is in.",
        [
            (labels(pipeline=it.name, state=state), int(it.state == state))
            for it in statuses
            for state in STATES
        ],
    )


def _dead_letters(status: Status) -> int | None:
    return status.failed if status.has_dead_letters else None


def problems(statuses: list[Status]) -> list[str]:
    """What keeps the pipelines from being ready, one line each."""
    if not statuses:
        return ["no pipeline is running yet"]
    return [f"{it.name} is {it.state}" for it in statuses if it.state in ("starting", "failed")]


class PipelineMetrics:
    """The endpoint, and the queries that it reads; for programs that start pipelines."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        """Listen on HOST:PORT. Raises `MillstreamError` if that is not possible."""
        self._watched: list[Watched] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._served = MetricsThread(
            address,
            lambda: all_families(self._statuses(), time.time()),
            lambda: problems(self._statuses()),
            token=token,
        )
        self._reading = threading.Thread(
            target=self._read, name="millstream-pipeline-metrics", daemon=True
        )
        self._reading.start()

    @property
    def url(self) -> str:
        return self._served.url

    def watch(self, name: str, query: StreamingQuery) -> None:
        """Serve the metrics of a query under this name."""
        with self._lock:
            self._watched.append(Watched(name, query))

    def stop(self) -> None:
        self._stopping.set()
        self._reading.join()
        self._served.stop()

    def __enter__(self) -> PipelineMetrics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _statuses(self) -> list[Status]:
        with self._lock:
            return [it.status for it in self._watched]

    def _read(self) -> None:
        while not self._stopping.wait(READ_SECONDS):
            with self._lock:
                watched = list(self._watched)
            for it in watched:  # without the lock: a call to the JVM may take long
                read(it)


def read(watched: Watched) -> None:
    """Update the status; a query that cannot be read counts as failed until it can."""
    try:
        watched.update()
    except Exception:  # Py4J's own, or of the connection to the JVM
        if watched.status.state != "failed":
            logger.warning("the state of %s cannot be read", watched.name, exc_info=True)
        watched.status.state = "failed"


def all_families(statuses: list[Status], now: float) -> Iterator[Family]:
    """Those of the pipelines and of this process."""
    yield from families(statuses, now)
    yield from process.families(process.read())
