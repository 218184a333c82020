"""`check_operator`: an operator of bucketed state, as a stream in many ways and as a batch.

    check_operator(FirstSeen(SCHEMA, "user", "time"), {"rows": Source(a_visit, watermark=...)})

Does to a single operator what `check_stream` does to a pipeline, without Spark: the same scenarios,
a thousand times as fast. State is serialized and read by another instance in every batch; a crash
restores the previous bytes. Empty batches occur where Spark has them: after a restart, when the
watermark has moved.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millstream.pipelines.durations import duration_us
from millstream.pipelines.spec import ONLY
from millstream.pipelines.state.bucket import NO_WATERMARK
from millstream.pipelines.state.operator import Operator
from millstream.pipelines.state.trial import MemoryStore, Trial
from millstream.testing.streams.case import ALL_FAULTS, Arrival, Batch, Case, Fault
from millstream.testing.streams.check import (
    LateRule,
    Rules,
    check_disorder,
    choose_seed,
    is_late,
)
from millstream.testing.streams.comparing import TOLERANCE, Comparison
from millstream.testing.streams.disorder import (
    BATCHES_MAX,
    Disorder,
    is_sound,
    make_case,
    watermarks_us,
)
from millstream.testing.streams.drawing import draw_rows
from millstream.testing.streams.inputs import Input, Source, moment_of_us, moment_us, with_offset
from millstream.testing.streams.report import Failure, StreamDiffers, note_case, note_seed
from millstream.testing.streams.running import END_OF_STREAM
from millstream.testing.streams.shrinking import shrink_failure
from millstream.testing.streams.sink import ChangedBatch, Rows

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET_COUNT = 4
TRIES_MAX = 2000
REPEATED = ("crash after sink", "lost commit")  # what a sink has, and gets again
IDLE = ("restart", "lost commit")  # a batch without rows comes before the next


@dataclass
class OperatorRun:
    """A stream through an operator; what came out, batch by batch."""

    operator: Operator
    inputs: Mapping[str, Input]
    repeated: Comparison

    def __post_init__(self) -> None:
        self.buckets = [MemoryStore() for _ in range(BUCKET_COUNT)]
        self.batches: list[Rows] = []
        self.changed: list[ChangedBatch] = []

    def feed(self, batch: Batch, watermark_us: int | None) -> None:
        if batch.crash is not None and batch.fault not in REPEATED:
            before = copy.deepcopy(self.buckets)
            self._call(batch.arrivals, watermark_us)
            self.buckets = before
        before = copy.deepcopy(self.buckets)
        found = self._call(batch.arrivals, watermark_us)
        self.batches.append(found)
        if batch.fault in REPEATED:
            self.buckets = before
            difference = self.repeated.compare(self._call(batch.arrivals, watermark_us), found)
            if difference is not None:
                self.changed.append(ChangedBatch(len(self.batches) - 1, ONLY, difference))

    def _call(self, arrivals: Sequence[Arrival], watermark_us: int | None) -> Rows:
        """One batch, by an instance that knows nothing but the bytes."""
        trial = Trial(self.operator, BUCKET_COUNT)
        trial.buckets = self.buckets
        mark_us = NO_WATERMARK if watermark_us is None else watermark_us
        found: Rows = trial.feed(tables_of(arrivals, self.inputs), mark_us).to_pylist()
        return found


@dataclass(frozen=True)
class OperatorJudge:
    """Runs cases and says of each what is wrong with it."""

    operator: Operator
    inputs: Mapping[str, Input]
    rules: Rules

    def judge(self, case: Case) -> Failure | None:
        marks = watermarks_us(Case((*case.batches, Batch())), self.inputs)
        run = OperatorRun(self.operator, self.inputs, self.rules.repeated)
        counted = []
        counts: dict[str, int] = {}
        for given, mark_us, next_us in zip(case.batches, marks, marks[1:], strict=False):
            numbered = (with_offset(it, self.inputs, counts) for it in given.arrivals)
            batch = replace(given, arrivals=tuple(numbered))
            run.feed(batch, mark_us)
            if batch.fault in IDLE and next_us != mark_us:
                run.feed(Batch(), next_us)
            mark = None if mark_us is None else moment_of_us(mark_us)
            counted += [
                it
                for it in batch.arrivals
                if it.counts and not is_late(self.rules.late_when, self.inputs[it.input], it, mark)
            ]
        run.feed(Batch(), moment_us(END_OF_STREAM))
        comparison = Comparison(
            self.rules.key, frozenset(self.rules.ignore), tolerance=self.rules.tolerance
        )
        ours = self.rules.left(comparison.table(run.batches))
        theirs = self.rules.left(comparison.table([self.expected(counted)]))
        difference = comparison.compare(ours, theirs)
        if difference is None and not run.changed:
            return None
        return Failure(case, {} if difference is None else {ONLY: difference}, run.changed)

    def expected(self, counted: Sequence[Arrival]) -> Rows:
        """All rows at once, and then the end of time; or what the user's function says."""
        if self.rules.reference is not None:
            rows = {
                name: tables_of(counted, self.inputs)[name].to_pylist()
                if any(it.input == name for it in counted)
                else []
                for name in self.inputs
            }
            found: Rows = list(self.rules.reference(**rows))
            return found
        trial = Trial(self.operator, BUCKET_COUNT)
        batch = [trial.feed(tables_of(counted, self.inputs)), trial.finish()]
        return [row for it in batch for row in it.to_pylist()]


def tables_of(
    arrivals: Sequence[Arrival], inputs: Mapping[str, Input]
) -> dict[str, pa.RecordBatch]:
    """The rows of each input that has some."""
    rows: dict[str, list[Any]] = {}
    for arrival in arrivals:
        rows.setdefault(arrival.input, []).append(arrival.row)
    return {
        name: inputs[name].table_of(them).combine_chunks().to_batches()[0]
        for name, them in rows.items()
    }


def check_operator(
    operator: Operator,
    inputs: Mapping[str, Source],
    *,
    key: str | Sequence[str] = (),
    disorder: Disorder | None = None,
    faults: Sequence[Fault] = ALL_FAULTS,
    late_when: LateRule | None = None,
    reference: Callable[..., Any] | None = None,
    ignore: Sequence[str] = (),
    leave_out: Callable[[Mapping[str, Any]], bool] | None = None,
    tolerance: float = TOLERANCE,
    examples: int = 100,
    rows: int = 24,
    batches: int = BATCHES_MAX,
    seed: int | None = None,
) -> None:
    """Raise `StreamDiffers` with the smallest case found, unless the stream equals the batch.

    Arguments as for `check_stream`, as far as they are the same; columns are those of the
    operator's inputs, and `reference` takes the rows of each input, as lists of dicts, and gives
    the rows that are expected.
    """
    made_by = "check_operator"
    keys = (key,) if isinstance(key, str) else tuple(key)
    rules = Rules(keys, late_when, reference, tuple(ignore), leave_out, tolerance=tolerance)
    disorder = disorder or Disorder()
    check_disorder(disorder, rules)
    seed = choose_seed(seed)
    known = {name: _input(operator, name, it) for name, it in inputs.items()}
    judge = OperatorJudge(operator, known, rules)
    for number, drawn in enumerate(
        draw_rows(inputs, count=examples, rows_max=rows, seed=seed), start=1
    ):
        rng = random.Random(f"{seed}/{number}")
        case = make_case(drawn, known, disorder, rng, faults=faults, batches_max=batches)
        try:
            failure = judge.judge(case)
        except Exception as error:
            note_case(error, case)
            note_seed(error, made_by, seed, examples)
            raise
        if failure is not None:
            shrunk = shrink_failure(
                failure,
                judge.judge,
                lambda it: is_sound(it, known, disorder),
                tries_max=TRIES_MAX,
            )
            raise StreamDiffers(type(operator).__name__, shrunk, seed, examples, made_by=made_by)


def _input(operator: Operator, name: str, source: Source) -> Input:
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = operator.inputs[name].schema
    column, delay = source.watermark or (source.time, None)
    delay_us = None if delay is None else duration_us(delay, "watermark", zero_allowed=True)
    return Input(name, from_arrow_schema(schema), schema, column, delay_us)
