"""Interval join: pairs of events of two streams that are close in time. Spark's own join.

    searches.transform(interval_join, clicks, "query_id", time="searched_at",
                       right_time="clicked_at", band="10 minutes", how="left")

Rows match if they have the same key and their times differ by at most `band`, in either direction.
With `band=("0 seconds", "10 minutes")`, the durations are how far a right row may be before, and
how far after, the left row. `how` is inner, left, right or full: a row without a match is emitted
when none can arrive any more. A null key matches nothing.

A row is late if nothing that is on time can match it: its time and its reach are behind the
watermark. Late rows are removed before Spark sees them, and counted in the query's progress, as
`late.interval.left` and `late.interval.right`. With `stragglers="divert"` they are not counted, and
`searches.transform(late_rows, "10 minutes", time="searched_at")` returns them.
By itself Spark drops rows as soon as their time is behind the watermark. So the watermark is moved
to a column `time + reach`, which the join condition uses; the result has no watermark.
Times without a zone (timestamp_ntz) need a session in UTC, and are refused otherwise.

Without a bound, both streams are stored forever: `band=None` is refused, unless `unbounded=True`
confirms it, for streams that end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_COLUMN,
    WATERMARK_DELAY,
    as_column,
    check_choice,
    check_time,
    check_watermark,
    kind_of,
    name_column,
    watermark_delay_ms,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.hidden import cut_watermark, show_watermark
from millstream.pipelines.joins.frames import On, join_lateness, name_keys, other_columns
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.results import drop_late
from millstream.pipelines.times.lateness import LATE, is_late, mark_late, with_rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left", "right", "full"]
Band: TypeAlias = "Duration | tuple[Duration, Duration]"
_LEFT_DUE, _RIGHT_DUE = "_left_due", "_right_due"
_RIGHT_KEY = "_right_key_"
_UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00")


def interval_join(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    time: str | Column,
    right_time: str | Column | None = None,
    band: Band | None,
    how: How = "inner",
    stragglers: DropOrDivert = "drop",
    unbounded: bool = False,
    count_as: str = "late.interval",
) -> DataFrame:
    """Pairs of rows within a band of time; see the head of this module. Raises `ConfigError`."""
    check_choice("how", how, How)
    lateness = join_lateness(stragglers, None, count_as)
    reach = reach_us(band, how, unbounded=unbounded)
    left_keys, right_keys = name_keys(left, right, on)
    left, right = show_watermark(left), show_watermark(right)
    left, left_time = name_column(left, time)
    right, other_time = name_column(right, time if right_time is None else right_time)
    for frame, name in ((left, left_time), (right, other_time)):
        check_time(frame, name, zoneless_allowed=True)
        if reach is not None:
            check_zone(frame, name)
            check_watermark(frame, name, "rows would wait for a match forever")
    shown = left.drop(WATERMARK_COLUMN)
    shared = [a for a, b in zip(left_keys, right_keys, strict=True) if a == b]
    carried = other_columns(shown, right, [*shared, WATERMARK_COLUMN], (_LEFT_DUE, _RIGHT_DUE))
    if reach is not None:
        before_us, after_us = reach
        sides = [replace(lateness, count_as=f"{count_as}.{it}") for it in ("left", "right")]
        left = _with_due(left, left_time, after_us, _LEFT_DUE, sides[0])
        right = _with_due(right, other_time, before_us, _RIGHT_DUE, sides[1])
    renamed = {name: f"{_RIGHT_KEY}{at}" for at, name in enumerate(right_keys)}
    right = right.drop(WATERMARK_COLUMN).withColumnsRenamed(renamed)
    left = left.drop(WATERMARK_COLUMN)
    joined = left.join(right, _condition(left_keys, list(renamed.values()), reach, how), how)
    return cut_watermark(joined.select(*_shown(shown.columns, shared, renamed, carried)))


def late_rows(frame: DataFrame, reach: Duration, *, time: str | Column) -> DataFrame:
    """The rows that are late for a join with this reach, with `_lateness` in seconds."""
    return mark_late(frame, reach, time=time).where(LATE).drop(LATE, WATERMARK_COLUMN)


def check_zone(frame: DataFrame, time: str) -> None:
    """Raise `ConfigError` for a time that the watermark and the join would interpret differently:
    without a zone it is UTC for Spark's watermark, and in the session's zone in comparisons."""
    if kind_of(frame, time) != "timestamp_ntz":
        return
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    if zone not in _UTC:
        raise ConfigError(
            f"{time} is timestamp_ntz, which Spark's watermark takes for UTC while the session is "
            f"in {zone}: rows would be late by the hours between them. Set "
            "spark.sql.session.timeZone to UTC, or give the time its zone before withWatermark: "
            f'frame.withColumn("{time}", col("{time}").cast("timestamp"))'
        )


def reach_us(band: Band | None, how: How, *, unbounded: bool) -> tuple[int, int] | None:
    """How far right rows may be before and after a left row; None for a join without bound."""
    if band is None:
        if not unbounded:
            raise ConfigError(
                "a join of streams without a bound stores all rows of both forever: set how far "
                'apart two rows may be, like band="10 minutes"; if the streams end, or have few '
                "rows, use unbounded=True"
            )
        if how != "inner":
            raise ConfigError(
                f"how={how!r} needs a bound, band: without one, a match may always arrive later"
            )
        return None
    if unbounded:
        raise ConfigError("band is a bound: leave out unbounded=True, or use band=None")
    if not isinstance(band, tuple):
        length_us = duration_us(band, "band", zero_allowed=True)
        return length_us, length_us
    if len(band) != 2:
        raise ConfigError('band: one duration, or two, like ("0 seconds", "10 minutes")')
    before, after = (duration_us(it, "band", zero_allowed=True) for it in band)
    return before, after


def _with_due(
    frame: DataFrame, time: str, reach_us: int, due: str, lateness: Lateness
) -> DataFrame:
    """The rows that are not late; the watermark moves to the column with the row's deadline. Spark
    uses the first column that has a watermark, so it is removed from the time itself."""
    from pyspark.sql.functions import col, timestamp_micros, unix_micros

    delay_ms = watermark_delay_ms(frame, time)
    metadata = {} if delay_ms is None else {WATERMARK_DELAY: delay_ms}
    time_us = unix_micros(as_column(time).cast("timestamp"))
    deadline = timestamp_micros(time_us + reach_us)
    late = is_late(frame, as_column(time), deadline)
    rule = f"{time} + {duration_text(reach_us)}"
    marked = frame.withColumn(LATE, with_rule(late, LATE, rule))
    columns = [as_column(name) for name in frame.columns if name != time]
    plain = timestamp_micros(time_us).cast(frame.schema[time].dataType).alias(time)
    on_time = drop_late(marked, col(LATE), lateness)
    return on_time.select(*columns, plain, deadline.alias(due, metadata=metadata))


def _condition(
    left_keys: tuple[str, ...], right_keys: list[str], reach: tuple[int, int] | None, how: How
) -> Column:
    """`right_due` is `right + before`, `left_due` is `left + after`; hence the bounds. In a full
    join of streams, null keys match each other in Spark unless the condition excludes them."""
    from functools import reduce

    from pyspark.sql.functions import col, expr

    terms = [as_column(a) == col(b) for a, b in zip(left_keys, right_keys, strict=True)]
    if reach is not None:
        before_us, after_us = reach
        terms += [
            expr(f"{_RIGHT_DUE} >= {_LEFT_DUE} - INTERVAL {after_us} MICROSECONDS"),
            expr(f"{_RIGHT_DUE} <= {_LEFT_DUE} + INTERVAL {before_us} MICROSECONDS"),
        ]
    if how == "full":
        terms += [as_column(name).isNotNull() for name in left_keys]
        terms += [col(name).isNotNull() for name in right_keys]
    return reduce(lambda a, b: a & b, terms)


def _shown(
    left: list[str], shared: list[str], renamed: dict[str, str], right: tuple[str, ...]
) -> list[Column]:
    """All columns of the left, then of the right; a key with one name on both sides is once."""
    from pyspark.sql.functions import coalesce, col

    shown = [
        coalesce(as_column(name), col(renamed[name])).alias(name)
        if name in shared
        else as_column(name)
        for name in left
    ]
    return shown + [col(renamed[it]).alias(it) if it in renamed else as_column(it) for it in right]
