"""`StreamTrial`: one story of a stream, told by hand.

    trial = StreamTrial(revenue, spark=spark)
    trial.batch(orders=[{"id": 1, "amount": 10.0, "at": "2026-01-01 10:00:00"}])
    trial.restart()
    trial.batch(orders=[late({...}), {...}], crash="after sink")
    trial.advance_watermark("2026-01-01 10:10:00")
    assert trial.results() == [...]     what a sink would have by now
    trial.check()                       all has come: the stream equals the batch

Nothing runs until results are asked for. To ask is to let the query end, and to go on after it is
another one's work: every look is a restart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from millstream.errors import ConfigError
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.spec import ONLY
from millstream.testing.clock import ManualClock
from millstream.testing.streams.case import (
    ALL_FAULTS,
    CRASH,
    Arrival,
    Batch,
    Case,
    Fault,
    MarkedRow,
    Row,
)
from millstream.testing.streams.check import Judge, LateRule, Rules
from millstream.testing.streams.comparing import TOLERANCE
from millstream.testing.streams.inputs import Source, as_moment, define
from millstream.testing.streams.report import Shrunk, StreamDiffers
from millstream.testing.streams.running import Outcome
from millstream.testing.streams.sink import Delivery, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Step = Literal["before work", "before sink", "after sink"]


class StreamTrial:
    """A pipeline, fed batch by batch. Arguments as for `check_stream`.

    With a `clock`, batches happen at its time when they are given; `current_timestamp()` is that.
    """

    def __init__(
        self,
        pipeline: Pipeline | Callable[..., Any],
        inputs: Mapping[str, Source] | None = None,
        *,
        spark: SparkSession,
        key: str | Sequence[str] = (),
        late_when: LateRule | None = None,
        reference: Callable[..., Any] | None = None,
        end: Mapping[str, Row] | None = None,
        ignore: Sequence[str] = (),
        leave_out: Callable[[Mapping[str, Any]], bool] | None = None,
        delivery: Delivery = "exactly once",
        tolerance: float = TOLERANCE,
        clock: ManualClock | None = None,
    ) -> None:
        keys = (key,) if isinstance(key, str) else tuple(key)
        if inputs is None and isinstance(pipeline, Pipeline):
            inputs = {name: Source([]) for name in pipeline.reads}
        definition = define(pipeline, inputs or {}, keys)
        rules = Rules(
            keys, late_when, reference, tuple(ignore), leave_out, end or {}, delivery, tolerance
        )
        self._judge = Judge(definition, rules, spark)
        self._clock = clock
        self._place = tempfile.TemporaryDirectory(prefix="millstream-", ignore_cleanup_errors=True)
        self._run = self._judge.start(Path(self._place.name))
        self._told: list[Batch] = []
        self._waiting: list[Batch] = []

    def batch(self, *, crash: Step | None = None, **rows: Sequence[Row | MarkedRow]) -> None:
        """A micro-batch with these rows of each input, marked by `late` or `again` if they must
        not count; with `crash`, the query crashes in it, and another repeats it."""
        arrivals = []
        for name, them in rows.items():
            if name not in self._judge.definition.inputs:
                known = ", ".join(self._judge.definition.inputs)
                raise ConfigError(f"{self._judge.definition.name} reads {known}, and no {name}")
            arrivals += [_arrival(name, it) for it in them]
        self._add(Batch(tuple(arrivals), _crash(crash)))

    def advance_watermark(self, to: str | datetime, *, crash: Step | None = None) -> None:
        """A micro-batch without rows, after which the watermark is at this moment."""
        self._add(Batch((), _crash(crash), as_moment(to)))

    def restart(self) -> None:
        """The query ends when the last batch is done; another one goes on."""
        self._change_last("restart")

    def lose_commit(self) -> None:
        """As `restart`, and the last micro-batch is repeated, since its commit is gone."""
        self._change_last("lost commit")

    def results(self, output: str = ONLY) -> Rows:
        """What has come out of one output, in the order in which it came."""
        return self._run_waiting().rows(output)

    def finish(self) -> Outcome:
        """Let the watermark pass all windows, as if nothing more were to come."""
        self._waiting += self._judge.ending()
        return self._run_waiting()

    def check(self) -> Outcome:
        """`finish`, and raise `StreamDiffers` unless the stream equals the batch."""
        outcome = self.finish()
        case = Case(tuple(self._told[: -len(self._judge.ending())]))
        with tempfile.TemporaryDirectory(prefix="millstream-") as place:
            failure = self._judge.compare(case, outcome, Path(place))
        if failure is not None:
            code = self._judge.trial_code(*([] if self._clock is None else ["clock=..."]))
            raise StreamDiffers(self._judge.definition.name, Shrunk(failure, 0), None, 1, code)
        return outcome

    def close(self) -> None:
        """Delete the trial's files."""
        self._place.cleanup()

    def __enter__(self) -> StreamTrial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _add(self, batch: Batch) -> None:
        now_ms = None if self._clock is None else self._clock.now_ms()
        self._waiting.append(replace(batch, now_ms=now_ms))

    def _change_last(self, fault: Fault) -> None:
        if not self._waiting:
            raise ConfigError("there is no batch before this that has not been run yet")
        if self._waiting[-1].fault is not None:
            self._add(Batch())
        self._waiting[-1] = replace(self._waiting[-1], fault=fault)

    def _run_waiting(self) -> Outcome:
        waiting, self._waiting = self._waiting, []
        self._told += waiting
        return self._run.run(waiting)


def _arrival(name: str, given: Row | MarkedRow) -> Arrival:
    if isinstance(given, MarkedRow):
        return Arrival(name, given.row, is_late=given.is_late, is_repeat=given.is_repeat)
    return Arrival(name, given)


def _crash(step: Step | None) -> Fault | None:
    if step is None:
        return None
    known = {it.removeprefix(CRASH): it for it in ALL_FAULTS if it.startswith(CRASH)}
    if step not in known:
        raise ConfigError(f"crash={step!r}: choose one of {', '.join(known)}")
    return known[step]
