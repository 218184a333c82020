"""The sink of a trial: stores every batch by its number, and crashes on request.

As our own sinks do, it takes a batch that comes again for the one that it has. That is only right
if it is the same: a batch whose rows are others the second time is a fault of the pipeline, which
no sink can mend, and is noted. With `delivery="at least once"` the sink is as careless as a plain
`foreachBatch` that appends: what comes again is there again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from millstream.pipelines.spec import ONLY
from millstream.testing.streams.checkpoint import planned_batch
from millstream.testing.streams.comparing import Comparison, Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

Rows: TypeAlias = list[dict[str, Any]]
Delivery = Literal["exactly once", "at least once"]


class TrialCrash(Exception):
    """Not an error: the trial's story has the query crash here."""


def _is_news(record: logging.LogRecord) -> bool:
    """Py4J logs whatever a callback raises; a crash that was asked for is no news."""
    return not (record.exc_info and isinstance(record.exc_info[1], TrialCrash))


logging.getLogger("py4j.clientserver").addFilter(_is_news)


@dataclass(frozen=True)
class ChangedBatch:
    """A batch that had other rows when it was repeated."""

    batch_id: int
    output: str
    difference: Difference


@dataclass
class Sink:
    """Called by Spark with every micro-batch, from a thread of its own."""

    checkpoint: Path
    outputs: Sequence[str]
    delivery: Delivery = "exactly once"
    comparison: Comparison = field(default_factory=Comparison)  # of a batch with its repetition
    batches: dict[int, dict[str, Rows]] = field(default_factory=dict)
    changed: list[ChangedBatch] = field(default_factory=list)
    has_crashed: bool = False
    crashed_in: int | None = None  # the number of the batch
    _crash: tuple[int, str] | None = None

    def arm(self, place: int, step: str) -> None:
        """Crash at this step when the case's batch at `place` comes; once."""
        self._crash = (place, step)
        self.has_crashed = False

    def disarm(self) -> None:
        self._crash = None
        self.has_crashed = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        step = self._step_to_crash_at(batch_id)
        if step == "crash before work":
            self._fall(batch_id)
        found = rows_of(frame)
        if step == "crash before sink":
            self._fall(batch_id)
        self._keep(batch_id, found)
        if step is not None:
            self._fall(batch_id)

    def _step_to_crash_at(self, batch_id: int) -> str | None:
        if self._crash is None:
            return None
        place, step = self._crash
        return step if planned_batch(self.checkpoint, batch_id).last_place == place else None

    def _fall(self, batch_id: int) -> None:
        self._crash = None
        self.has_crashed = True
        self.crashed_in = batch_id
        raise TrialCrash(f"the trial crashes batch {batch_id}")

    def _keep(self, batch_id: int, found: Rows) -> None:
        by_output = split(found, self.outputs)
        known = self.batches.get(batch_id)
        if known is not None and self.delivery == "at least once":
            by_output = {name: known[name] + rows for name, rows in by_output.items()}
        elif known is not None:
            for name, rows in by_output.items():
                difference = self.comparison.compare(rows, known[name])
                if difference is not None:
                    self.changed.append(ChangedBatch(batch_id, name, difference))
            return
        self.batches[batch_id] = by_output


def rows_of(frame: DataFrame) -> Rows:
    """All rows, with times in UTC. Fields of structs that may not be null are made such as may:
    PySpark's `toArrow` stumbles over them."""
    from pyspark.sql.functions import col

    if any(it.dataType != _nullable(it.dataType) for it in frame.schema.fields):
        frame = frame.select(
            *(
                col(f"`{it.name}`").cast(_nullable(it.dataType)).alias(it.name)
                for it in frame.schema.fields
            )
        )
    found: Rows = frame.toArrow().to_pylist()
    return found


def _nullable(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(it.name, _nullable(it.dataType)) for it in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def split(found: Rows, outputs: Sequence[str]) -> dict[str, Rows]:
    """The rows of each output, of which several come as a struct column each."""
    if list(outputs) == [ONLY]:
        return {ONLY: found}
    return {name: [row[name] for row in found if row.get(name) is not None] for name in outputs}
