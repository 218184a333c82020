"""Tumbling, hopping, session and calendar windows.

    sales = tumbling("10 minutes", key="shop", time="at", stragglers="divert",
                     n="count(*)", total="sum(amount)")
    orders.transform(sales)         the results: shop, window_start, window_end, n, total, _kind
    orders.transform(sales.late)    late rows: all columns, window_start, window_end, _lateness
    orders.transform(sales.with_late)   both from one read, as two structs

`_kind` is one of

    final         no row that is on time can change it any more
    preliminary   the result so far (emit="change": at every change; emit="every 10 seconds": at
                  most that often, by the clock of the batches)
    correction    a late row changed a final result; `_old` has the values before, and is null if
                  the window had no rows
    withdrawn     sessions only: an emitted session was merged into another (sessions.py)

A row is late for a window if the end of the window plus `allowed_lateness` is at or behind the
watermark; for a session, if `time + gap + allowed_lateness` is. `stragglers` says what happens to
late rows (lateness.py):

    drop       they are counted in the query's progress, under the name `count_as`, by default
               `observedMetrics["late.tumbling 10 minutes"].dropped`
    divert     they are in `late`, for a topic or a table of their own
    correct    results are final when the watermark reaches the end of the window. Late rows correct
               them for `allowed_lateness` after that; later ones are in `late`

Results that are emitted once are computed by Spark's aggregation, with any aggregate function of
Spark; write the query in append mode. Results that change, and sessions with an `allowed_lateness`,
are kept in bucketed state (revisions.py, sessions.py), which has `count`, `sum`, `avg`, `min` and
`max`; write these in append mode too, or as an upsert by key and start of the window. Aggregates
are checked when a window is defined (aggregates.py). As a batch, a definition yields the final
results of all rows.

A stream needs a watermark on `time`, and `_watermark` (see times/lateness.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    WATERMARK_DELAY,
    as_column,
    check_lateness,
    check_time,
    check_watermark,
    kind_of,
    listed,
    watermark_delay_ms,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.hidden import show_watermark
from millstream.pipelines.lateness import Lateness, Stragglers
from millstream.pipelines.plans import CLOSING
from millstream.pipelines.results import (
    END,
    FINAL,
    KIND,
    LATE,
    LATENESS,
    OLD,
    START,
    drop_late,
)
from millstream.pipelines.times.lateness import IS_LATE, is_late, lateness, watermark, with_rule
from millstream.pipelines.windows.aggregates import check_aggregates, spark_aggregate
from millstream.pipelines.windows.kinds import (
    Calendar,
    Hopping,
    Kind,
    Session,
    Tumbling,
    Unit,
)
from millstream.pipelines.windows.spec import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CLOSES = "_closes"


@dataclass(frozen=True)
class Window(WindowSpec):
    """Call it with a frame, or pass it to `frame.transform`. It can be used for many frames."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The results."""
        frame = self._checked(frame)
        if not frame.isStreaming:
            return self._of_batch(frame)
        assigned = self._assign(frame)
        if self.is_kept:
            from millstream.pipelines.windows.kept import kept_windows

            return kept_windows(self, assigned)
        on_time = drop_late(assigned, as_column(IS_LATE), self.lateness)
        return (self._sessions if isinstance(self.kind, Session) else self._aligned)(on_time)

    def late(self, frame: DataFrame) -> DataFrame:
        """Late rows: one for each window whose results do not contain it."""
        frame = self._checked(frame)
        return self._assign(frame).where(IS_LATE).select(*self._late_columns(frame))

    def with_late(self, frame: DataFrame) -> DataFrame:
        """Results and late rows from one read: a struct `results`, a struct `late`; one is null.
        Always computed in bucketed state, with its aggregates (kept.py)."""
        from pyspark.sql.functions import lit, struct

        frame = self._checked(frame)
        if frame.isStreaming:
            from millstream.pipelines.windows.kept import kept_with_late

            return kept_with_late(self, self._assign(frame), struct(*self._late_columns(frame)))
        results = self(frame)
        late = self.late(frame)
        one = results.select(
            struct(*results.columns).alias("results"), lit(None).cast(late.schema).alias("late")
        )
        return one.unionAll(
            late.select(lit(None).cast(results.schema), struct(*late.columns).alias("late"))
        )

    def _late_columns(self, frame: DataFrame) -> list[Column]:
        """The columns of a late row."""
        from pyspark.sql.functions import lit

        seconds = lateness(frame, as_column(self.time))
        shown = [as_column(it) for it in frame.columns if it != WATERMARK_COLUMN]
        bounds = [] if isinstance(self.kind, Session) else [as_column(START), as_column(END)]
        return [*shown, *bounds, lit(LATE).alias(KIND), seconds.alias(LATENESS)]

    def _checked(self, frame: DataFrame) -> DataFrame:
        """The frame, with `_watermark` if it is a stream. Raises `ConfigError`."""
        check_time(frame, self.time)
        for key in self.keys:
            if isinstance(key, str):
                kind_of(frame, key)
        for name in (START, END):
            if name in frame.columns:
                raise ConfigError(
                    f"the rows have a column {name}, which the results have too: rename it before, "
                    f'.withColumnRenamed("{name}", ...)'
                )
        taken = {*self.key_names(frame), START, END, KIND, OLD, LATENESS}
        for name in self.aggregates:
            if name in taken:
                raise ConfigError(f"there is a column {name} already: choose another name")
        if not frame.isStreaming:
            return frame
        check_watermark(frame, self.time, "results would never be final")
        check_lateness(frame, self.time, self.lateness.allowed_us)
        frame = show_watermark(frame)
        watermark(frame)
        return frame

    def _assign(self, frame: DataFrame) -> DataFrame:
        """A row for each window that a row belongs to, with its bounds and whether it is late."""
        from pyspark.sql.functions import col, explode_outer, timestamp_micros

        time = as_column(self.time)
        if isinstance(self.kind, Session):
            from pyspark.sql.functions import unix_micros

            waiting_us = self.kind.gap_us + self.lateness.allowed_us
            deadline = timestamp_micros(unix_micros(time) + waiting_us)
            late = with_rule(is_late(frame, time, deadline), IS_LATE, self._deadline)
            return frame.select(*map(as_column, frame.columns), late)
        starts = self.kind.starts_us(time)
        if isinstance(self.kind, Hopping):
            starts = explode_outer(starts)
        placed = frame.withColumn("_start_us", starts)
        end_us = self.kind.end_us(col("_start_us"))
        bounds = {
            START: timestamp_micros("_start_us"),
            END: timestamp_micros(end_us),
            _CLOSES: timestamp_micros(end_us + self.lateness.allowed_us),
        }
        late = with_rule(is_late(frame, time, bounds[_CLOSES]), IS_LATE, self._deadline)
        marks: dict[str, dict[str, Any]] = {self._closing: self._mark(frame)}
        if self._closing == _CLOSES:
            marks[_CLOSES][CLOSING] = self._deadline
        named = [it.alias(name, metadata=marks.get(name, {})) for name, it in bounds.items()]
        return placed.select(*map(as_column, frame.columns), *named, late)

    @property
    def _deadline(self) -> str:
        """When a row is late, as text."""
        is_session = isinstance(self.kind, Session)
        moment = "time + gap" if is_session else "the end of the window"
        waiting = duration_text(self.lateness.allowed_us) if self.lateness.allowed_us else ""
        return f"{self.kind.label}, {moment}{f' + {waiting}' if waiting else ''}"

    @property
    def _closing(self) -> str:
        """The column by which Spark closes a window."""
        return _CLOSES if self.lateness.allowed_us else END

    def _mark(self, frame: DataFrame) -> dict[str, Any]:
        """Spark's metadata of a column with a watermark."""
        delay_ms = watermark_delay_ms(frame, self.time)
        return {} if delay_ms is None else {WATERMARK_DELAY: delay_ms}

    def _of_batch(self, frame: DataFrame) -> DataFrame:
        """All rows, all final."""
        from pyspark.sql.functions import lit

        assigned = self._assign(frame).where(~as_column(IS_LATE))
        if isinstance(self.kind, Session):
            results = self._sessions(assigned)
        else:
            keys = [*map(as_column, self.keys), as_column(START), as_column(END)]
            results = self._finish(assigned.groupBy(*keys).agg(*self._columns()))
        if not self.lateness.corrects:
            return results
        old = ", ".join(
            f"`{name}`: {results.schema[name].dataType.simpleString()}" for name in self.aggregates
        )
        return results.withColumn(OLD, lit(None).cast(f"struct<{old}>"))

    def _aligned(self, on_time: DataFrame) -> DataFrame:
        """Spark's aggregation. It closes a group when the watermark reaches the column that has the
        watermark's metadata: here the time until which rows of the window are on time."""
        closes = [] if self._closing == END else [as_column(_CLOSES)]
        keys = [*map(as_column, self.keys), as_column(START), as_column(END)]
        return self._finish(on_time.groupBy(*keys, *closes).agg(*self._columns()))

    def _sessions(self, on_time: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col, session_window

        assert isinstance(self.kind, Session)
        gap = f"{self.kind.gap_us} microseconds"
        window = session_window(as_column(self.time), gap)
        found = on_time.groupBy(*map(as_column, self.keys), window).agg(*self._columns())
        start, end = col("session_window.start").alias(START), col("session_window.end").alias(END)
        return self._finish(
            found.select(
                *(as_column(it) for it in found.columns if it != "session_window"), start, end
            )
        )

    def _columns(self) -> list[Column]:
        return [spark_aggregate(it).alias(name) for name, it in self.aggregates.items()]

    def _finish(self, found: DataFrame) -> DataFrame:
        """Results, with the columns in the same order for all kinds."""
        from pyspark.sql.functions import lit

        keys = [it for it in found.columns if it not in (START, END, _CLOSES, *self.aggregates)]
        shown = map(as_column, [*keys, START, END, *self.aggregates])
        return found.select(*shown, lit(FINAL).alias(KIND))


def tumbling(
    size: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: Stragglers = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "final",
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> Window:
    """Consecutive windows of `size`; see the head of this module. Raises `ConfigError`."""
    check_aggregates(aggregates, tumbling)
    kind = Tumbling(duration_us(size, "size"))
    return _window(
        kind, key, time, aggregates, stragglers, allowed_lateness, emit, buckets, count_as
    )


def hopping(
    size: Duration,
    slide: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: Stragglers = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "final",
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> Window:
    """Windows of `size`, one beginning every `slide`. Raises `ConfigError`."""
    check_aggregates(aggregates, hopping)
    kind = Hopping(duration_us(size, "size"), duration_us(slide, "slide"))
    return _window(
        kind, key, time, aggregates, stragglers, allowed_lateness, emit, buckets, count_as
    )


def calendar(
    unit: Unit,
    zone: str,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: Stragglers = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "final",
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> Window:
    """Days, weeks, months, quarters or years in a time zone. Raises `ConfigError`."""
    check_aggregates(aggregates, calendar)
    kind = Calendar(unit, zone)
    return _window(
        kind, key, time, aggregates, stragglers, allowed_lateness, emit, buckets, count_as
    )


def session(
    gap: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    stragglers: Stragglers = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "final",
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> Window:
    """Rows of a key that are at most `gap` apart. Raises `ConfigError`."""
    check_aggregates(aggregates, session)
    kind = Session(duration_us(gap, "gap"))
    return _window(
        kind, key, time, aggregates, stragglers, allowed_lateness, emit, buckets, count_as
    )


def _window(
    kind: Kind,
    key: str | Column | Sequence[str | Column],
    time: str | Column,
    aggregates: Mapping[str, str | Column],
    stragglers: Stragglers,
    allowed_lateness: Duration | None,
    emit: str,
    buckets: int,
    count_as: str | None,
) -> Window:
    lateness = Lateness.of(stragglers, allowed_lateness, count_as or f"late.{kind.label}")
    return Window(kind, tuple(listed(key)), time, aggregates, lateness, emit, buckets)
