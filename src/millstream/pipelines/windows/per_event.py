"""Sliding windows: for each event, exact aggregates of its key in the interval before it.

    recent = sliding("10 minutes", key="card", time="at", n="count(*)", spent="sum(amount)")
    payments.transform(recent)              the results: all columns, n, spent, _kind
    payments.transform(recent.late)         the late events: all columns, _kind, _lateness
    payments.transform(recent.with_late)    both, of one read, as two structs

The window of an event contains the events of its key from `time - interval` to `time`, both
included: SQL's `RANGE BETWEEN INTERVAL ... PRECEDING AND CURRENT ROW`. With `preceding=True`,
events at its own time are excluded. `emit` says when results are emitted, and `_kind` what they
are:

    "arrival"           once, in the batch in which the event arrives, by what is known then, and
                        never again: `arrival`. The default
    "final"             once, when nothing that is on time can change it any more: `final`
    "change"            also before that, whenever it changes: `preliminary`
    "every 10 seconds"  the same, at most that often, by the clock of the batches

An event is late when `time + allowed_lateness` is at or behind the watermark, or if it has no time.
`stragglers` says what happens to late events:

    drop       they are counted in the query's progress, under the name `count_as`, by default
               `observedMetrics["late.sliding 10 minutes"].dropped`
    divert     they are in `late`, with `_lateness`, the seconds that they are behind the watermark
    correct    results are final when the watermark passes them, and corrected by later events until
               `allowed_lateness` after: `_kind` is `correction`, `_old` has the values before, and
               is null in the row of the late event. Later ones are in `late`

With "drop" and "divert", an `allowed_lateness` delays final results by as much; results at arrival
do not wait. Events are kept for `allowed_lateness + interval` behind the watermark.

As a batch, all events are there, and results are the final ones. Results at arrival are the same if
events arrive in the order of their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    as_column,
    check_lateness,
    check_time,
    check_watermark,
    listed,
    name_columns,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.hidden import show_watermark
from millstream.pipelines.lateness import Lateness, Stragglers
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import KIND, LATE, LATENESS, OLD, drop_late
from millstream.pipelines.state.keys import check_buckets
from millstream.pipelines.times.lateness import IS_LATE, is_late, lateness, with_rule
from millstream.pipelines.windows.aggregates import (
    Aggregate,
    Given,
    check_aggregates,
    parse_aggregates,
)
from millstream.pipelines.windows.emission import NOW, Emit, parse_emit
from millstream.pipelines.windows.measures import add_measured, check_measures
from millstream.pipelines.windows.sliding import EVENTS, SlidingWindow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Sliding:
    """Call it with a frame, or pass it to `frame.transform`. Make one with `sliding`."""

    interval_us: int
    keys: tuple[str | Column, ...]
    time: str | Column
    aggregates: Mapping[str, Given]
    lateness: Lateness
    emit: str = "arrival"
    preceding: bool = False
    buckets: int = 16

    def __post_init__(self) -> None:
        _ = self.parsed
        check_buckets(self.buckets)
        if self.emission.is_once and self.lateness.corrects:
            raise ConfigError(
                'emit="arrival" gives each event one result, so there is nothing to correct: '
                'choose emit="final" or "change", or stragglers="divert"'
            )

    @property
    def emission(self) -> Emit:
        return parse_emit(self.emit)

    @property
    def parsed(self) -> dict[str, Aggregate]:
        return parse_aggregates(self.aggregates)

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The results."""
        from pyspark.sql.functions import col

        on_time = drop_late(self.rows(frame), col(KIND) == LATE, self.lateness)
        return on_time.drop(*self._unused)

    def late(self, frame: DataFrame) -> DataFrame:
        """The events that were too late. A stream needs `_watermark` for it."""
        from pyspark.sql.functions import lit, timestamp_micros, unix_micros

        frame, _, time_name = self._named(show_watermark(frame))
        time = as_column(time_name).cast("timestamp")
        due = timestamp_micros(unix_micros(time) + self.lateness.allowed_us)
        rule = f"time + {duration_text(self.lateness.allowed_us)}"
        marked = frame.withColumn(IS_LATE, with_rule(is_late(frame, time, due), IS_LATE, rule))
        shown = [as_column(it) for it in frame.columns if it != WATERMARK_COLUMN]
        seconds = lateness(frame, time).alias(LATENESS)
        return marked.where(IS_LATE).select(*shown, lit(LATE).alias(KIND), seconds)

    def with_late(self, frame: DataFrame) -> DataFrame:
        """Results and late events from one read: two structs, `results` and `late`; one is null."""
        from pyspark.sql.functions import col, struct, when

        rows = self.rows(frame)
        carried = [it for it in rows.columns if it in frame.columns]
        results = [it for it in rows.columns if it not in self._unused]
        is_late = col(KIND) == LATE
        return rows.select(
            when(~is_late, struct(*map(as_column, results))).alias("results"),
            when(is_late, struct(*map(as_column, [*carried, KIND, LATENESS]))).alias("late"),
        )

    def rows(self, frame: DataFrame) -> DataFrame:
        """Results and late events together, by `_kind`, with `_old` and `_lateness`."""
        from pyspark.sql.functions import current_timestamp

        from millstream.pipelines.state.spark import arrow_schema, run_operator

        frame, key_names, time_name = self._named(frame.drop(WATERMARK_COLUMN))
        carried = frame.columns
        frame, measures = add_measured(frame, self.parsed)
        emit, lateness = self.emission, self.lateness
        if not frame.isStreaming:
            emit, lateness = Emit("arrival" if emit.is_once else "final"), Lateness()
        elif emit.emission == "every":
            frame = frame.withColumn(NOW, current_timestamp())
        schema = arrow_schema(frame.schema)
        check_measures(measures, schema, (*carried, KIND, OLD, LATENESS))
        operator = SlidingWindow(
            schema,
            key_names,
            time_name,
            self.interval_us,
            measures,
            lateness,
            carried,
            emit=emit,
            preceding=self.preceding,
        )
        return run_operator(operator, {EVENTS: frame}, self.buckets)

    @property
    def _unused(self) -> list[str]:
        """Columns that results do not have."""
        return [LATENESS] if self.lateness.corrects else [OLD, LATENESS]

    def _named(self, frame: DataFrame) -> tuple[DataFrame, list[str], str]:
        """The frame with columns for the key and the time, and their names; all are checked."""
        frame, key_names, time_name = name_columns(frame, self.keys, self.time)
        check_time(frame, time_name, zoneless_allowed=True)
        check_not_aggregated(frame)
        check_watermark(frame, time_name, "events would be kept forever")
        check_lateness(frame, time_name, self.lateness.allowed_us)
        return frame, key_names, time_name


def sliding(
    interval: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: Stragglers = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "arrival",
    preceding: bool = False,
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> Sliding:
    """For each event, its key's last `interval`; see the head of this module. Raises `ConfigError`.

    A stream needs a watermark on `time`.
    """
    check_aggregates(aggregates, sliding)
    interval_us = duration_us(interval, "interval")
    metric = count_as or f"late.sliding {duration_text(interval_us)}"
    return Sliding(
        interval_us,
        tuple(listed(key)),
        time,
        aggregates,
        Lateness.of(stragglers, allowed_lateness, metric),
        emit,
        preceding,
        buckets,
    )
