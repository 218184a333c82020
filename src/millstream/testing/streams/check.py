"""`check_stream`: a pipeline as a stream, in many ways, equals the pipeline as a batch.

    check_stream(revenue, {"orders": orders()}, spark=spark)

Each example is a story (case.py) made by chance from rows (disorder.py): it is run as a stream
(running.py), its rows are run as a batch, and what a sink would have is compared (comparing.py).
The first that differs is made smaller (shrinking.py) and told (report.py).
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.spec import Table
from millstream.testing.streams.case import ALL_FAULTS, Arrival, Batch, Case, Fault, Row, row_text
from millstream.testing.streams.comparing import TOLERANCE, Comparison
from millstream.testing.streams.disorder import BATCHES_MAX, Disorder, is_sound, make_case
from millstream.testing.streams.drawing import draw_rows
from millstream.testing.streams.inputs import NO_SOURCE, Definition, Input, define, source_text
from millstream.testing.streams.report import Failure, StreamDiffers, note_case, note_seed
from millstream.testing.streams.running import (
    END_OF_STREAM,
    Outcome,
    StreamRun,
    clone_session,
    run_batch,
    run_reference,
)
from millstream.testing.streams.shrinking import SHRINK_SECONDS, shrink_failure
from millstream.testing.streams.sink import Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED_VARIABLE = "MILLSTREAM_SEED"
LateRule: TypeAlias = "Duration | Callable[[Row, datetime], bool]"


@dataclass(frozen=True)
class Rules:
    """Further conditions for a run, besides that stream and batch are equal."""

    key: tuple[str, ...] = ()
    late_when: LateRule | None = None
    reference: Callable[..., Any] | None = None
    ignore: tuple[str, ...] = ()
    leave_out: Callable[[Mapping[str, Any]], bool] | None = None
    end: Mapping[str, Row] = field(default_factory=dict)
    delivery: Delivery = "exactly once"
    tolerance: float = TOLERANCE

    def left(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The rows that are compared."""
        return [row for row in rows if self.leave_out is None or not self.leave_out(row)]

    @property
    def repeated(self) -> Comparison:
        """How a batch is compared with itself, when it is repeated."""
        return Comparison(ignore=frozenset(self.ignore), tolerance=self.tolerance)

    def arguments(self) -> list[str]:
        """As code, those that are not as usual; `...` for what is code itself."""
        usual = Rules()
        texts = {
            "key": repr(list(self.key)),
            "late_when": repr(self.late_when) if isinstance(self.late_when, str) else "...",
            "reference": "...",
            "end": row_text(self.end),
            "ignore": repr(list(self.ignore)),
            "leave_out": "...",
            "delivery": repr(self.delivery),
            "tolerance": repr(self.tolerance),
        }
        return [
            f"{name}={text}"
            for name, text in texts.items()
            if getattr(self, name) != getattr(usual, name)
        ]


@dataclass(frozen=True)
class Judge:
    """Runs cases and reports their failures."""

    definition: Definition
    rules: Rules
    spark: SparkSession

    @cached_property
    def session(self) -> SparkSession:
        return clone_session(self.spark)

    def judge(self, case: Case) -> tuple[Outcome, Failure | None]:
        with tempfile.TemporaryDirectory(prefix="millstream-", ignore_cleanup_errors=True) as place:
            run = self.start(Path(place))
            try:
                outcome = run.run([*case.batches, *self.ending()])
                return outcome, self.compare(case, outcome, Path(place))
            except Exception as error:
                note_case(error, case)
                raise

    def start(self, place: Path) -> StreamRun:
        rules = self.rules
        return StreamRun(
            self.definition,
            self.session,
            place / "stream",
            rules.delivery,
            rules.repeated,
            has_end=bool(rules.end),
        )

    def trial_code(self, *more: str) -> str:
        """The line that makes a `StreamTrial` with the same arguments, and `more` of them."""
        definition = self.definition
        texts = {name: source_text(it) for name, it in definition.sources.items()}
        inputs = ", ".join(f"{name!r}: {text}" for name, text in texts.items())
        is_told = any(text != NO_SOURCE for text in texts.values())
        given = [f"{{{inputs}}}"] if is_told else []
        arguments = [definition.name, *given, "spark=spark", *self.rules.arguments(), *more]
        line = f"trial = StreamTrial({', '.join(arguments)})"
        return f"{line}  # ...: as in your test" if "..." in line else line

    def ending(self) -> list[Batch]:
        """What tells the pipeline that all has come."""
        last = tuple(Arrival(name, row) for name, row in self.rules.end.items())
        return [Batch(last, watermark=END_OF_STREAM)]

    def compare(self, case: Case, outcome: Outcome, place: Path) -> Failure | None:
        """None if a stream is a batch."""
        inputs, rule = self.definition.inputs, self.rules.late_when
        counted = [
            it
            for it in outcome.arrivals
            if it.arrival.counts
            and not is_late(rule, inputs[it.arrival.input], it.arrival, it.watermark)
        ]
        reference = self.rules.reference
        if reference is None:
            expected = run_batch(self.definition, counted, self.session, place)
        else:
            expected = run_reference(reference, self.definition, counted, self.session, place)
        differences = {}
        for name in self.definition.pipeline.writes:
            comparison = self.comparison(name, outcome.output_mode)
            is_whole = outcome.output_mode == "complete"  # every batch is all there is
            ours = comparison.table(outcome.batches[name][-1 if is_whole else 0 :])
            theirs = comparison.table([expected[name]])
            difference = comparison.compare(self.rules.left(ours), self.rules.left(theirs))
            if difference is not None:
                differences[name] = difference
        if not differences and not outcome.changed:
            return None
        return Failure(case, differences, list(outcome.changed))

    def comparison(self, output: str, output_mode: str) -> Comparison:
        """As the output is declared. Of a topic that rows are only added to, all of them count, and
        the key only says where they go."""
        written = self.definition.pipeline.writes[output]
        rules = self.rules
        ignore = frozenset(rules.ignore)
        if isinstance(written, Table):
            key = () if written.mode == "append" else written.key
            is_replaced = written.mode == "replace"
            key = rules.key or key
            return Comparison(key, ignore, written.delete, is_replaced, rules.tolerance)
        key = rules.key or (written.key if output_mode == "update" else ())
        return Comparison(key, ignore, tolerance=rules.tolerance)


def is_late(rule: LateRule | None, it: Input, arrival: Arrival, watermark: datetime | None) -> bool:
    """By the user's rule and the watermark that there was."""
    if rule is None or it.delay_us is None:
        return False
    (row,) = it.table_of([arrival.row]).to_pylist()
    if row[it.time] is None:
        return True
    if watermark is None:
        return False
    if callable(rule):
        return bool(rule(row, watermark))
    return bool(row[it.time] + _length(rule) <= watermark)


def check_stream(
    pipeline: Pipeline | Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    spark: SparkSession,
    key: str | Sequence[str] = (),
    disorder: Disorder | None = None,
    faults: Sequence[Fault] = ALL_FAULTS,
    late_when: LateRule | None = None,
    reference: Callable[..., Any] | None = None,
    end: Mapping[str, Row] | None = None,
    ignore: Sequence[str] = (),
    leave_out: Callable[[Mapping[str, Any]], bool] | None = None,
    delivery: Delivery = "exactly once",
    tolerance: float = TOLERANCE,
    examples: int = 2,
    rows: int = 24,
    batches: int = BATCHES_MAX,
    seed: int | None = None,
    at_once: int = 2,
    shrink_seconds: float = SHRINK_SECONDS,
) -> list[Outcome]:
    """Raise `StreamDiffers` with the smallest case found, unless the stream equals the batch.

    `inputs` has for each parameter a list of rows or a Hypothesis strategy for one row; for a plain
    function, a `Source` with the columns, too. `key`: of the result, if it is not as declared: the
    last row of each counts. `disorder`, `faults`: what happens to the rows and
    to the query. `late_when`: which rows are too late, exactly: a duration (`time` + that, at or
    behind the watermark), or a function of the row and the watermark. `reference`: another function
    to compute what is expected, whose frames also have `_batch` and `_watermark`. `end`: a last row
    for inputs whose watermark the pipeline makes itself. `ignore`: columns that are not compared;
    `leave_out`: results that are not. An example is a stream of up to `rows` rows of each strategy
    in up to `batches` micro-batches, which takes seconds; `at_once` of them run side by side.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    definition = define(pipeline, inputs, keys)
    rules = Rules(
        keys, late_when, reference, tuple(ignore), leave_out, end or {}, delivery, tolerance
    )
    if disorder is None:
        disorder = Disorder()
    check_disorder(disorder, rules)
    seed = choose_seed(seed)
    judge = Judge(definition, rules, spark)
    cases = draw_cases(definition, disorder, faults, seed, examples, rows, batches)
    with ThreadPoolExecutor(at_once) as pool:
        try:
            judged = list(pool.map(judge.judge, cases))
        except Exception as error:
            note_seed(error, "check_stream", seed, len(cases))
            raise
        failed = [it for _, it in judged if it is not None]
        if failed:
            shrunk = shrink_failure(
                min(failed, key=lambda it: it.case.size),
                lambda case: judge.judge(case)[1],
                lambda case: is_sound(case, definition.inputs, disorder),
                seconds=shrink_seconds,
                group_size=at_once,
                run_all=pool.map,
            )
            raise StreamDiffers(definition.name, shrunk, seed, len(cases), judge.trial_code())
    return [outcome for outcome, _ in judged]


def draw_cases(
    definition: Definition,
    disorder: Disorder,
    faults: Sequence[Fault],
    seed: int,
    examples: int,
    rows_max: int,
    batches_max: int,
) -> list[Case]:
    drawn = draw_rows(definition.sources, count=examples, rows_max=rows_max, seed=seed)
    return [
        make_case(
            rows,
            definition.inputs,
            disorder,
            random.Random(f"{seed}/{number}"),
            faults=faults,
            batches_max=batches_max,
        )
        for number, rows in enumerate(drawn)
    ]


def check_disorder(disorder: Disorder, rules: Rules) -> None:
    """Raises `ConfigError` if it is unclear which rows count."""
    is_told = rules.late_when is not None or rules.reference is not None
    if disorder.late and disorder.late_by is None and not is_told:
        raise ConfigError(
            "some rows are to come late, and nothing says which of them count: give late_by, how "
            'far behind the watermark they are, Disorder(late=0.1, late_by="1 hour"); or the exact '
            'rule, late_when; or, if all of them count, Disorder(within="1 hour")'
        )
    if disorder.late and disorder.late_by is not None and rules.late_when is not None:
        raise ConfigError("late_by and late_when both say which rows are late: leave out one")


def choose_seed(given: int | None) -> int:
    """What is given, or set in the environment, or a new one."""
    if given is not None:
        return given
    text = os.environ.get(SEED_VARIABLE)
    if text is None:
        return random.SystemRandom().randrange(2**32)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{SEED_VARIABLE}={text!r} is no number") from None


def _length(duration: Duration) -> timedelta:
    return timedelta(microseconds=duration_us(duration, "late_when", zero_allowed=True))
