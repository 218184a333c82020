"""Comparison with earlier intervals: the one before, the same hour last week.

    orders.transform(compare, "1 hour", key="shop", time="at",
                     against={"before": "1 hour", "last_week": "1 week"}, n="count(*)")

A row for each key and interval, when the interval is final: `n`, and for each earlier interval
`n_before`, the value then (null if there was none), and `n_before_change`, the relative change:
0.25 is a quarter more, -1 is a decrease to 0. It is null if the earlier value is 0, or if one of
the two is unknown: the average of an interval whose values are all null is null, and not 0.

With `absent=True`, the result also has keys that had events then and have none now, with null
values: for example, an hour without orders that had 500 last week.

Intervals are `size` long, counted from 1970 in UTC, and are compared with those a fixed time
before: a week is 168 hours, also if clocks were changed in between. One row per key and interval is
kept for the longest comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    END_US,
    NUMBERS,
    Panes,
    lateness_of,
    make_panes,
)
from millstream.pipelines.columns import as_column
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.results import END, START
from millstream.pipelines.windows.aggregates import Aggregate, check_aggregates

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHIFT_US = "_shift_us"
_IS_THERE = "_is_there"


def compare(
    frame: DataFrame,
    size: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    against: Mapping[str, Duration] | None = None,
    absent: bool = False,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    count_as: str | None = None,
    **aggregates: str | Column | Aggregate,
) -> DataFrame:
    """Intervals beside earlier ones; see the head of this module. Raises `ConfigError`.

    `against` is {"before": size} if it is not given.
    """
    check_aggregates(aggregates, compare)
    size_us = duration_us(size, "size")
    shifts_us = {
        label: _shift_us(label, length, size_us)
        for label, length in ({"before": size} if against is None else against).items()
    }
    if not shifts_us:
        raise ConfigError('against what? Write it like against={"last_week": "1 week"}')
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "comparison", size_us)
    panes = make_panes(frame, key, time, size, aggregates, lateness)
    names = list(aggregates)
    _check_names(panes, names, shifts_us)
    found = _side_by_side(panes, names, shifts_us)
    if not absent:
        found = found.where(as_column(_IS_THERE))
    columns = [*panes.keys, START, END]
    for name in names:
        columns.append(name)
        for label in shifts_us:
            then = f"{name}_{label}"
            columns.append(then)
            if _is_number(found, name):
                columns.append(f"{then}_change")
                change = _change(as_column(name), as_column(then), as_column(_IS_THERE))
                found = found.withColumn(f"{then}_change", change)
    return found.select(*map(as_column, columns))


def _shift_us(label: str, length: Duration, size_us: int) -> int:
    shift_us = duration_us(length, f"against[{label!r}]")
    if shift_us % size_us:
        raise ConfigError(
            f"against[{label!r}] is {str(length)!r}, which is no multiple of size: no interval "
            "began then. Make it one, or choose a size that divides it"
        )
    return shift_us


def _check_names(panes: Panes, names: Sequence[str], shifts_us: Mapping[str, int]) -> None:
    made = [f"{name}_{label}" for name in names for label in shifts_us]
    taken = {*panes.keys, *names, START, END}
    for name in [*made, *(f"{it}_change" for it in made)]:
        if name in taken:
            raise ConfigError(f"there is a column {name} already: choose another name in against")
        taken.add(name)


def _side_by_side(panes: Panes, names: Sequence[str], shifts_us: Mapping[str, int]) -> DataFrame:
    """Each result meets those that it is compared with, and those that are with it."""
    from pyspark.sql.functions import array, bool_or, col, explode, lit, max, when

    shifts = [lit(it).cast("long") for it in (0, *sorted(set(shifts_us.values())))]
    shifted = panes.frame.withColumn(_SHIFT_US, explode(array(*shifts)))
    spread = Panes(shifted, panes.keys, panes.size_us, panes.lateness_us, panes.mark)
    columns = [bool_or(col(_SHIFT_US) == 0).alias(_IS_THERE)]
    for name in names:
        value = as_column(name)
        columns.append(max(when(col(_SHIFT_US) == 0, value)).alias(name))
        columns += [
            max(when(col(_SHIFT_US) == shift_us, value)).alias(f"{name}_{label}")
            for label, shift_us in shifts_us.items()
        ]
    return spread.regroup(col(END_US) + col(_SHIFT_US), panes.keys, columns)


def _is_number(frame: DataFrame, name: str) -> bool:
    return frame.schema[name].dataType.simpleString().split("(")[0] in NUMBERS


def _change(now: Column, then: Column, is_there: Column) -> Column:
    """An interval without events counts for 0; null in one that has some is not known."""
    from pyspark.sql.functions import abs, lit, nullif, when

    known = when(is_there, now.cast("double")).otherwise(lit(0.0))
    grown = known - then.cast("double")
    return grown / nullif(abs(then.cast("double")), lit(0.0))
