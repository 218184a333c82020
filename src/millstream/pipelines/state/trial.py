"""Runs an operator without Spark: for tests, and for experiments in a notebook.

    trial = Trial(SlidingWindow(...))
    trial.feed({"events": rows}, watermark_us=...)   returns the emitted rows
    trial.advance(watermark_us)                      a batch without rows

Each call works as on Spark: rows are hashed to buckets, each bucket is read from bytes and written
as bytes, and due timers fire after the rows. So every batch is also a restart.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.pipelines.state.bucket import END_OF_TIME, NO_WATERMARK, Changes
from millstream.pipelines.state.keys import split_by_bucket, with_hash
from millstream.pipelines.state.operator import Operator, run_bucket
from millstream.pipelines.state.stored_columns import NO_GENERATIONS, Generations
from millstream.pipelines.state.tables import concat


@dataclass
class MemoryStore:
    """A bucket's bytes, in memory."""

    index: bytes | None = None
    pages: dict[int, bytes] = field(default_factory=dict)
    timer_us: int | None = None

    def is_due(self, watermark_us: int) -> bool:
        return self.timer_us is not None and self.timer_us <= watermark_us

    def read_index(self) -> bytes | None:
        return self.index

    def read_page(self, page_id: int) -> bytes | None:
        return self.pages.get(page_id)

    def write_page(self, page_id: int, blob: bytes) -> None:
        self.pages[page_id] = blob

    def write(self, changes: Changes) -> None:
        self.index = changes.index
        self.timer_us = changes.timer_us
        self.pages |= changes.written
        for page_id in changes.removed:
            del self.pages[page_id]


class Trial:
    """A stream of batches through one operator."""

    def __init__(
        self, operator: Operator, buckets: int = 4, generations: Generations = NO_GENERATIONS
    ) -> None:
        self.operator: Operator = pickle.loads(pickle.dumps(operator))  # as workers get it
        self.generations = generations
        self.buckets = [MemoryStore() for _ in range(buckets)]
        self.watermark_us = NO_WATERMARK

    def feed(
        self, inputs: Mapping[str, pa.RecordBatch], watermark_us: int | None = None
    ) -> pa.RecordBatch:
        """One batch; the watermark stays if it is not given."""
        if watermark_us is not None:
            self.watermark_us = max(self.watermark_us, watermark_us)
        results = [self.operator.nothing]
        for bucket, rows in self._split(inputs):
            results.append(self._run(self.buckets[bucket], rows))
        results += [self._run(it, None) for it in self.buckets if it.is_due(self.watermark_us)]
        return concat(results)

    def advance(self, watermark_us: int) -> pa.RecordBatch:
        """Advance the watermark without rows; returns what the operator emits."""
        return self.feed({}, watermark_us)

    def finish(self) -> pa.RecordBatch:
        """What comes when nothing more will."""
        return self.advance(END_OF_TIME)

    def _run(self, store: MemoryStore, rows: Mapping[str, pa.RecordBatch] | None) -> pa.RecordBatch:
        return run_bucket(
            self.operator,
            len(self.buckets),
            store,
            rows,
            self.watermark_us,
            self.generations,
        )

    def _split(
        self, inputs: Mapping[str, pa.RecordBatch]
    ) -> Iterator[tuple[int, dict[str, pa.RecordBatch]]]:
        """The rows of each bucket that has some, of every input."""
        buckets: dict[int, dict[str, pa.RecordBatch]] = {}
        for name, rows in inputs.items():
            hashed = with_hash(rows, self.operator.inputs[name].keys)
            for bucket, part in split_by_bucket(hashed, len(self.buckets)):
                buckets.setdefault(bucket, self.operator.no_rows())[name] = part
        yield from sorted(buckets.items(), key=lambda it: it[0])
