"""The status of running pipelines: rows, lag, duration of a batch, bad records."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millstream.pipelines.offsets import count_between, offsets_if_ours
from millstream.pipelines.reading.counting import OBSERVED
from millstream.pipelines.spec import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

RATE_SECONDS = 5.0


@dataclass
class Status:
    """The status of one pipeline."""

    name: str
    state: str = "starting"  # then waiting, working, done, stopped or failed
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch_ms: int | None = None
    failed: int = 0  # records that did not decode
    kept_rows: int = 0  # in state of Spark's own operators: aggregates, joins
    kept_bytes: int = 0  # in all state
    batch_ms_sum: int = 0  # of all batches
    watermark_ms: int | None = None  # Unix time, if there is a watermark
    late: dict[str, int] = field(default_factory=dict)  # late rows that were dropped, by operator
    restarts: int = 0
    has_dead_letters: bool = False  # whether bad records go to a dead-letter topic


@dataclass
class Watched:
    """A running pipeline, and its status so far."""

    name: str
    query: StreamingQuery
    pipeline: PipelineSpec | None = None
    restarts: int = 0
    status: Status = field(init=False)
    _last_batch: int = -1
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.status = Status(self.name)
        self.status.has_dead_letters = self.pipeline is not None and any(
            it.schema is not None and it.bad_records == "deadletter"
            for it in self.pipeline.reads.values()
        )

    def update(self) -> Status:
        """Read the progress of the query."""
        last = self.query.lastProgress
        if last is not None:
            self._take(json.loads(last.json))
        if self.query.isActive:
            self.status.state = "working" if self.query.status["isTriggerActive"] else "waiting"
        elif self.status.state != "stopped":
            self.status.state = "done" if self.query.exception() is None else "failed"
        self._measure_rate(time.monotonic())
        return self.status

    def _take(self, last: Mapping[str, Any]) -> None:
        if last["batchId"] > self._last_batch + 1:
            progresses = [json.loads(it.json) for it in self.query.recentProgress]
        else:
            progresses = [last]
        for it in progresses:
            if it["batchId"] > self._last_batch and it["durationMs"].get("addBatch") is not None:
                self._last_batch = it["batchId"]
                self.status.batches += 1
                self.status.rows += it["numInputRows"]
                self.status.failed += failed_records(it)
                self.status.batch_ms = it["durationMs"].get("triggerExecution")
                self.status.batch_ms_sum += self.status.batch_ms or 0
                for operator, count in late_rows(it).items():
                    self.status.late[operator] = self.status.late.get(operator, 0) + count
        self.status.lag = lag_of(last)
        self.status.kept_rows, self.status.kept_bytes = kept_state(last)
        self.status.watermark_ms = watermark_of(last)
        self.status.restarts = self.restarts

    def _measure_rate(self, now: float) -> None:
        self._samples.append((now, self.status.rows))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        began, rows = self._samples[0]
        self.status.rows_per_second = (self.status.rows - rows) / max(now - began, 1e-3)


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """Records that are not read yet, of all topics; None before the first batch."""
    places = [
        (offsets_if_ours(source.get("endOffset")), offsets_if_ours(source.get("latestOffset")))
        for source in progress["sources"]
    ]
    lags = [count_between(end, latest) for end, latest in places if end and latest]
    return sum(lags) if lags else None


def kept_state(progress: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and bytes of state. Bucketed state consists of pages, which are not counted as rows."""
    rows = size_bytes = 0
    for it in progress.get("stateOperators") or ():
        if "transformWithState" not in it.get("operatorName", ""):
            rows += it["numRowsTotal"]
        on_disk = (it.get("customMetrics") or {}).get("rocksdbSstFileSize", 0)
        size_bytes += max(it["memoryUsedBytes"], on_disk)
    return rows, size_bytes


def failed_records(progress: Mapping[str, Any]) -> int:
    """Bad records of the batch, of all inputs."""
    observed = progress.get("observedMetrics") or {}
    return sum(it["failed"] for name, it in observed.items() if name.startswith(OBSERVED))


def late_rows(progress: Mapping[str, Any]) -> dict[str, int]:
    """Late rows that the batch dropped, by operator: ours by the name of their count, and Spark's
    own."""
    from millstream.pipelines.results import DROPPED

    found = {
        name: int(counts[DROPPED])
        for name, counts in (progress.get("observedMetrics") or {}).items()
        if counts.get(DROPPED) is not None and not name.startswith(OBSERVED)
    }
    for it in progress.get("stateOperators") or ():
        dropped = it.get("numRowsDroppedByWatermark", 0)
        if dropped:
            name = it.get("operatorName", "spark")
            found[name] = found.get(name, 0) + dropped
    return found


def watermark_of(progress: Mapping[str, Any]) -> int | None:
    """The watermark in Unix time, in milliseconds; None if there is none yet."""
    text = (progress.get("eventTime") or {}).get("watermark")
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    milliseconds = int(at.timestamp() * 1000)
    return milliseconds if milliseconds > 0 else None
