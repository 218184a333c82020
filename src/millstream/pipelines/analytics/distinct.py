"""Counts of distinct values: exact, or by sketches that can be merged.

    visits.transform(count_distinct, "1 hour", key="site", time="at", of="user")
    visits.transform(count_distinct, "1 hour", key="site", time="at", of="user", how="hll",
                     sketch="users")

`exact` uses two stages of Spark's aggregation, which has no `count(distinct)` for streams: one row
of state for each value in an open window, spread over all tasks. `hll` and `theta` keep a few KB
per key and window, with an error of 1 to 3 %. `theta` sketches also support intersection and
difference: Spark's functions `theta_intersection`, `theta_difference`.

With `sketch="users"`, the result has the sketch as a binary column of that name. Sketches of hours
can be merged into those of days, of sites into those of all sites, without counting a user twice:

    hourly.transform(merge_distinct, "users", key=["site", "day"], how="hll")

Nulls are not counted. Exact counts are the same on a replay. So are those of sketches that are not
full (a few hundred values in HLL, 4096 in theta); otherwise they may differ within the error,
because the content of a sketch depends on how rows were distributed over tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    END_US,
    check_whole,
    final_window,
    lateness_of,
    make_panes,
)
from millstream.pipelines.columns import as_column, check_choice, listed
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.results import END, START
from millstream.pipelines.windows.kinds import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["exact", "hll", "theta"]
Sketch = Literal["hll", "theta"]
_VALUE = "_value"
_ROWS = "_rows"
_LOG_SIZES = {"hll": (4, 21, 12), "theta": (4, 26, 12)}  # least, greatest, usual


def count_distinct(
    frame: DataFrame,
    size: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    of: str | Column,
    how: How = "exact",
    name: str = "distinct",
    sketch: str | None = None,
    log_size: int | None = None,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    count_as: str | None = None,
) -> DataFrame:
    """Distinct values per key and window; see the head of this module. Raises `ConfigError`.

    `log_size`: sketches have 2^12 entries by default; four times as many halve the error.
    """
    from pyspark.sql.functions import col, count

    check_choice("how", how, How)
    if how == "exact" and sketch is not None:
        raise ConfigError('exact counts have no sketch: choose how="hll" or "theta", or leave it')
    size_us = duration_us(size, "size")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "distinct", size_us)
    if how == "exact":
        every = [*listed(key), as_column(of).alias(_VALUE)]
        panes = make_panes(frame, every, time, size, {_ROWS: "count(*)"}, lateness)
        return panes.regroup(col(END_US), panes.keys[:-1], [count(_VALUE).alias(name)])
    made = _make(how, sketchable(frame, as_column(of)), _checked_size(how, log_size))
    sketch_name = sketch or f"_{name}_sketch"
    kind = Tumbling(size_us)
    window = final_window(kind, key, time, {sketch_name: made}, lateness)
    found = window(frame)
    columns = [*window.key_names(frame), START, END]
    estimated = _estimate(how, col(sketch_name)).alias(name)
    kept = [] if sketch is None else [col(sketch)]
    return found.select(*map(as_column, columns), estimated, *kept)


def merge_distinct(
    frame: DataFrame,
    sketch: str,
    *,
    key: str | Column | Sequence[str | Column] = (),
    how: Sketch,
    name: str = "distinct",
) -> DataFrame:
    """The sketches of each key merged into one, and its number of distinct values."""
    from pyspark.sql import functions as F  # noqa: N812

    check_choice("how", how, Sketch)
    kind = dict(frame.dtypes).get(sketch)
    if kind != "binary":
        raise ConfigError(
            f"{sketch} is {kind or 'no column'}: name the column of sketches, which is binary, "
            f'that count_distinct(..., how="{how}", sketch="{sketch}") made'
        )
    union = F.hll_union_agg if how == "hll" else F.theta_union_agg
    merged = frame.groupBy(*map(as_column, listed(key))).agg(union(as_column(sketch)).alias(sketch))
    return merged.withColumn(name, _estimate(how, as_column(sketch)))


def sketchable(frame: DataFrame, of: Column) -> Column:
    """The column as an argument of sketches: integers, text or bytes. Other types are converted to
    text, such that equal values have equal texts."""
    from pyspark.sql.functions import struct, to_json, when

    (field,) = frame.select(of.alias("of")).schema.fields
    kind = field.dataType.simpleString()
    if kind in ("int", "bigint", "string", "binary"):
        return of
    if kind in ("tinyint", "smallint"):
        return of.cast("bigint")
    if kind.startswith(("array", "struct", "map")):
        return when(of.isNotNull(), to_json(struct(of)))
    return of.cast("string")


def _make(how: str, of: Column, log_size: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.hll_sketch_agg(of, log_size) if how == "hll" else F.theta_sketch_agg(of, log_size)


def _estimate(how: str, sketch: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.hll_sketch_estimate(sketch) if how == "hll" else F.theta_sketch_estimate(sketch)


def _checked_size(how: str, log_size: int | None) -> int:
    least, greatest, usual = _LOG_SIZES[how]
    if log_size is None:
        return usual
    check_whole("log_size", log_size, least)
    if log_size > greatest:
        raise ConfigError(f"log_size={log_size}: {how} sketches have {least} to {greatest}")
    return log_size
