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
from millstream.pipelines.running.written import WRITTEN
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
    batch: int = -1  # the last completed one
    phases_ms: dict[str, int] = field(default_factory=dict)  # of the last batch
    newest_ms: int | None = None  # the newest event time of the last batch
    sources: dict[str, Counts] = field(default_factory=dict)  # by topic
    outputs: dict[str, Counts] = field(default_factory=dict)  # by output
    operators: list[Operator] = field(default_factory=list)  # those with state, as Spark lists them


@dataclass
class Counts:
    """Of a topic that is read, or of an output."""

    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    bad: int = 0
    late: int = 0  # of rows written: late ones
    corrections: int = 0


@dataclass
class Operator:
    """A step with state."""

    name: str
    rows: int = 0
    bytes: int = 0
    dropped: int = 0


@dataclass
class Watched:
    """A running pipeline, and its status so far."""

    name: str
    query: StreamingQuery
    pipeline: PipelineSpec | None = None
    restarts: int = 0
    is_paused: bool = False  # stopped from elsewhere; it may be started again
    status: Status = field(init=False)
    _last_batch: int = -1
    _samples: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

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
                self.status.batch = it["batchId"]
                self.status.phases_ms = {n: int(ms) for n, ms in it["durationMs"].items()}
                for operator, count in late_rows(it).items():
                    self.status.late[operator] = self.status.late.get(operator, 0) + count
                self._count_sources(it)
                self._count_outputs(it)
                self._count_operators(it)
                newest = (it.get("eventTime") or {}).get("max")
                self.status.newest_ms = None if newest is None else time_ms(newest)
        self.status.lag = lag_of(last)
        self.status.kept_rows, self.status.kept_bytes = kept_state(last)
        self.status.watermark_ms = watermark_of(last)
        self.status.restarts = self.restarts

    def _count_sources(self, progress: Mapping[str, Any]) -> None:
        observed = progress.get("observedMetrics") or {}
        for name, (rows, lag) in source_rows(progress).items():
            counts = self.status.sources.setdefault(name, Counts())
            counts.rows += rows
            counts.lag = lag
        for parameter, topic in (self.pipeline.reads if self.pipeline else {}).items():
            failed = observed.get(f"{OBSERVED}.{parameter}", {}).get("failed", 0)
            self.status.sources.setdefault(topic.name, Counts()).bad += failed

    def _count_outputs(self, progress: Mapping[str, Any]) -> None:
        for name, value in ((progress.get("observedMetrics") or {}).get(WRITTEN) or {}).items():
            output, _, what = name.rpartition(".")
            counts = self.status.outputs.setdefault(output, Counts())
            setattr(counts, what, getattr(counts, what) + int(value))

    def _count_operators(self, progress: Mapping[str, Any]) -> None:
        now = [operator_of(it) for it in progress.get("stateOperators") or ()]
        before = self.status.operators
        if len(before) == len(now):
            for earlier, later in zip(before, now, strict=True):
                later.dropped += earlier.dropped
        self.status.operators = now

    def _measure_rate(self, now: float) -> None:
        kinds = {"<": self.status.sources, ">": self.status.outputs}
        rows = {
            f"{kind}{name}": it.rows for kind, those in kinds.items() for name, it in those.items()
        }
        self._samples.append((now, {"": self.status.rows, **rows}))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        began, before = self._samples[0]
        seconds = max(now - began, 1e-3)
        self.status.rows_per_second = (self.status.rows - before[""]) / seconds
        for kind, those in kinds.items():
            for name, it in those.items():
                it.rows_per_second = (it.rows - before.get(f"{kind}{name}", 0)) / seconds


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """Records that are not read yet, of all topics; None before the first batch."""
    places = [
        (offsets_if_ours(source.get("endOffset")), offsets_if_ours(source.get("latestOffset")))
        for source in progress["sources"]
    ]
    lags = [count_between(end, latest) for end, latest in places if end and latest]
    return sum(lags) if lags else None


def source_rows(progress: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Rows read in the batch, and the lag, by topic."""
    found: dict[str, tuple[int, int | None]] = {}
    for source in progress["sources"]:
        end = offsets_if_ours(source.get("endOffset"))
        latest = offsets_if_ours(source.get("latestOffset"))
        for topic in sorted({topic for topic, _ in end or ()}):
            rows, lag = found.get(topic, (0, None))
            if end and latest:
                of_topic = [{k: v for k, v in it.items() if k[0] == topic} for it in (end, latest)]
                lag = max(lag or 0, count_between(*of_topic))
            found[topic] = (rows + int(source.get("numInputRows", 0)), lag)
    return found


def operator_of(reported: Mapping[str, Any]) -> Operator:
    on_disk = (reported.get("customMetrics") or {}).get("rocksdbSstFileSize", 0)
    return Operator(
        str(reported.get("operatorName", "")),
        int(reported["numRowsTotal"]),
        max(int(reported["memoryUsedBytes"]), int(on_disk)),
        int(reported.get("numRowsDroppedByWatermark", 0)),
    )


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
    milliseconds = 0 if text is None else time_ms(text)
    return milliseconds if milliseconds > 0 else None


def time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def batch_number(watched: Watched) -> int:
    last = watched.query.lastProgress
    return -1 if last is None else int(last.batchId)


def is_between_batches(watched: Watched, batch_then: int) -> bool:
    if not watched.query.isActive or batch_number(watched) > batch_then:
        return True
    return not watched.query.status["isTriggerActive"]
