"""A test case of a stream: the rows of each micro-batch, and the faults.

A case is what fails, what is made smaller, and what is printed: as the lines of a `StreamTrial`, to
be pasted into a test. All of it is pure.

    restart             the query ends when the batch is done, and another goes on
    crash before work   the batch is planned; nothing of it has been computed
    crash before sink   the batch is computed, its state is written; the sink has nothing
    crash after sink    the sink has the batch; the query does not know
    lost commit         as restart, but the commit of the last batch is gone, and it is repeated
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias, get_args

Row: TypeAlias = Mapping[str, Any]
Fault = Literal[
    "restart", "crash before work", "crash before sink", "crash after sink", "lost commit"
]
"""What can happen to a run between two batches, or within one."""

ALL_FAULTS: tuple[Fault, ...] = get_args(Fault)
"""Every `Fault`."""

CRASH = "crash "


@dataclass(frozen=True)
class Arrival:
    """A row of an input. One that `is_late`, or that came before, must not count."""

    input: str
    row: Row
    is_late: bool = False
    is_repeat: bool = False

    @property
    def counts(self) -> bool:
        return not (self.is_late or self.is_repeat)


@dataclass(frozen=True)
class Batch:
    """A micro-batch; the watermark, if it is moved, is moved for the batches after it."""

    arrivals: tuple[Arrival, ...] = ()
    fault: Fault | None = None
    watermark: datetime | None = None
    now_ms: int | None = None  # the time of the batch by the wall clock, if it is not the real one

    @property
    def crash(self) -> str | None:
        is_crash = self.fault is not None and self.fault.startswith(CRASH)
        return self.fault if is_crash else None


@dataclass(frozen=True)
class Case:
    batches: tuple[Batch, ...]

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        return tuple(it for batch in self.batches for it in batch.arrivals)

    @property
    def size(self) -> tuple[int, int, int]:
        """What smaller means: fewer rows, fewer batches, fewer faults."""
        faults = sum(batch.fault is not None for batch in self.batches)
        return len(self.arrivals), len(self.batches), faults

    def without_arrivals(self, places: Collection[int]) -> Case:
        """Without the rows at these places, counted through all batches."""
        kept: list[Batch] = []
        place = 0
        for batch in self.batches:
            numbered = enumerate(batch.arrivals, start=place)
            arrivals = tuple(it for number, it in numbered if number not in places)
            place += len(batch.arrivals)
            kept.append(replace(batch, arrivals=arrivals))
        return Case(tuple(kept))

    def without_faults(self, places: Collection[int]) -> Case:
        """Without the faults of these batches."""
        return Case(
            tuple(
                replace(it, fault=None) if number in places else it
                for number, it in enumerate(self.batches)
            )
        )

    def with_merged(self, place: int) -> Case:
        """With the batch at `place` and the next as one; what goes wrong goes wrong in that one."""
        first, second = self.batches[place : place + 2]
        merged = replace(
            second,
            arrivals=first.arrivals + second.arrivals,
            fault=second.fault or first.fault,
            watermark=second.watermark or first.watermark,
        )
        return Case((*self.batches[:place], merged, *self.batches[place + 2 :]))


@dataclass(frozen=True)
class MarkedRow:
    """A row of a trial that must not count; see `late` and `again`."""

    row: Row
    is_late: bool = field(default=False, kw_only=True)
    is_repeat: bool = field(default=False, kw_only=True)


def late(row: Row) -> MarkedRow:
    """A row that comes so late that the pipeline must leave it out."""
    return MarkedRow(row, is_late=True)


def again(row: Row) -> MarkedRow:
    """A row that was sent before, and must not count twice."""
    return MarkedRow(row, is_repeat=True)


def as_code(case: Case) -> Iterator[str]:
    """The case as code for a `StreamTrial`."""
    for batch in case.batches:
        if batch.arrivals or batch.watermark is None:
            yield from _batch_lines(batch)
        if batch.watermark is not None:
            crash = f", crash={_crash_name(batch)!r}" if batch.crash and not batch.arrivals else ""
            yield f"trial.advance_watermark({moment_text(batch.watermark)!r}{crash})"
        if batch.fault == "restart":
            yield "trial.restart()"
        elif batch.fault == "lost commit":
            yield "trial.lose_commit()"


def _batch_lines(batch: Batch) -> Iterator[str]:
    by_input: dict[str, list[Arrival]] = {}
    for arrival in batch.arrivals:
        by_input.setdefault(arrival.input, []).append(arrival)
    ending = [f"crash={_crash_name(batch)!r}"] if batch.crash else []
    if sum(map(len, by_input.values())) <= 1:
        given = [f"{name}=[{_arrival_text(them[0])}]" for name, them in by_input.items()]
        yield f"trial.batch({', '.join(given + ending)})"
        return
    yield "trial.batch("
    for name, them in by_input.items():
        yield f"    {name}=["
        yield from (f"        {_arrival_text(it)}," for it in them)
        yield "    ],"
    yield from (f"    {it}," for it in ending)
    yield ")"


def _crash_name(batch: Batch) -> str:
    assert batch.fault is not None
    return batch.fault.removeprefix(CRASH)


def _arrival_text(arrival: Arrival) -> str:
    text = row_text(arrival.row)
    if arrival.is_late:
        return f"late({text})"
    return f"again({text})" if arrival.is_repeat else text


def row_text(row: Row) -> str:
    """A row as Python has it, with moments as people write them."""
    return "{" + ", ".join(f"{name!r}: {value_text(it)}" for name, it in row.items()) + "}"


def value_text(value: Any) -> str:
    if isinstance(value, datetime):
        return repr(moment_text(value))
    if isinstance(value, date):
        return repr(value.isoformat())
    if isinstance(value, Mapping):
        return row_text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"  # Python has no other name for it
    return repr(value)


def moment_text(moment: datetime) -> str:
    """In UTC, without saying so."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(sep=" ")
