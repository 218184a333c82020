"""How running pipelines are doing: rows, lag, time of a batch, dead letters."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.client.security import Security
from millstream.errors import MillstreamError
from millstream.pipelines.offsets import count_between, from_json
from millstream.pipelines.options import Position, ReadOptions, Selection
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.positions import Positions
from millstream.pipelines.settings import Settings
from millstream.pipelines.topics import dead_letter_topics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

RATE_SECONDS = 5.0
LETTERS_EVERY_SECONDS = 2.0
LETTERS_TIMEOUT_MS = 1_000


@dataclass
class Status:
    """What is known of one pipeline."""

    name: str
    state: str = "starting"  # then waiting, working, done, stopped or failed
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch_ms: int | None = None
    dead_letters: int = 0


@dataclass
class Watched:
    """A running pipeline, and what was seen of it so far."""

    pipeline: Pipeline
    query: StreamingQuery
    status: Status = field(init=False)
    _last_batch: int = -1
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.status = Status(self.pipeline.name)

    def update(self) -> Status:
        """Look again."""
        last = self.query.lastProgress
        if last is not None:
            self._take(json.loads(last.json))
        if self.query.isActive:
            self.status.state = "working" if self.query.status["isTriggerActive"] else "waiting"
        elif self.status.state not in ("stopped", "failed"):
            self.status.state = "done"
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
                self.status.batch_ms = it["durationMs"].get("triggerExecution")
        self.status.lag = lag_of(last)

    def _measure_rate(self, now: float) -> None:
        self._samples.append((now, self.status.rows))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        began, rows = self._samples[0]
        self.status.rows_per_second = (self.status.rows - rows) / max(now - began, 1e-3)


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """Records that are there and not yet read, over all topics; None before the first batch."""
    lags = [
        count_between(from_json(source["endOffset"]), from_json(source["latestOffset"]))
        for source in progress["sources"]
        if source.get("endOffset") and source.get("latestOffset")
    ]
    return sum(lags) if lags else None


class LetterCount:
    """Dead letters that came since the start, of all topics that a pipeline's go to.

    A broker that does not answer at once is asked again later: the count is only to be looked at.
    """

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        self._topics = tuple(sorted(dead_letter_topics([pipeline])))
        self._positions = Positions(
            ReadOptions(
                bootstrap_servers=settings.required_broker(),
                selection=Selection(topics=self._topics),
                starting=Position(),
                ending=Position(),
                security=Security.from_settings(settings.kafka),
                request_timeout_ms=LETTERS_TIMEOUT_MS,
            )
        )
        self._asked_at = -LETTERS_EVERY_SECONDS
        self._first: int | None = None
        self.count = 0

    def update(self, *, at_once: bool = False) -> int:
        now = time.monotonic()
        if self._topics and (at_once or now - self._asked_at >= LETTERS_EVERY_SECONDS):
            self._asked_at = now
            try:
                ends = sum(self._positions.latest(self._positions.partitions()).values())
            except (MillstreamError, OSError):
                return self.count
            self._first = ends if self._first is None else self._first
            self.count = ends - self._first
        return self.count

    def close(self) -> None:
        self._positions.close()
