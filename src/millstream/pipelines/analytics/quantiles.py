"""Percentiles per key and window: exact, or by KLL sketches that can be merged.

    requests.transform(percentiles, "1 minute", key="service", time="at", of="millis",
                       at=(0.5, 0.95, 0.99))

A row for each key and window when it is final, with a column for each percentile: `p50`, `p95`,
`p99`, and `p99_9` for 0.999. `exact` keeps every distinct value of an open window in Spark's state;
`kll` keeps a few KB, and its ranks have an error of about 1 % (k=200). With `sketch="latency"`, the
result has the sketch as a binary column. Sketches of minutes can be merged into those of hours, of
servers into those of all, which is impossible with percentiles:

    per_minute.transform(merge_percentiles, "latency", key=["service", "hour"], at=(0.95,))

KLL sketches are randomized: on a replay, percentiles of more than a few hundred values may differ
within the error. With `exact` they are the same, bit for bit. Nulls are ignored, and so is NaN in a
sketch; for `exact`, NaN is greater than all numbers. Without values, the percentile is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    check_fraction,
    check_number,
    check_whole,
    final_window,
    lateness_of,
)
from millstream.pipelines.columns import as_column, check_choice, listed
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.results import END, START
from millstream.pipelines.windows.kinds import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["exact", "kll"]


def percentiles(
    frame: DataFrame,
    size: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    of: str | Column,
    at: Sequence[float] = (0.5, 0.95, 0.99),
    how: How = "exact",
    sketch: str | None = None,
    k: int = 200,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    count_as: str | None = None,
) -> DataFrame:
    """Percentiles of windows; see the head of this module. Raises `ConfigError`."""
    from pyspark.sql import functions as F  # noqa: N812

    names = _names(at)
    check_choice("how", how, How)
    check_whole("k", k, 8)
    if how == "exact" and sketch is not None:
        raise ConfigError('exact percentiles have no sketch: choose how="kll", or leave it out')
    check_number(frame, of, "a percentile is of")
    size_us = duration_us(size, "size")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "percentiles", size_us)
    kind = Tumbling(size_us)
    value = as_column(of).cast("double")
    if how == "exact":
        exact = {name: F.percentile(value, it) for name, it in zip(names, at, strict=True)}
        window = final_window(kind, key, time, exact, lateness)
        return _shown(window(frame), window.key_names(frame), [*map(as_column, names)])
    kept = sketch or "_sketch"
    window = final_window(kind, key, time, {kept: F.kll_sketch_agg_double(value, k)}, lateness)
    columns = _quantiles(as_column(kept), names, at)
    shown = columns if sketch is None else [*columns, as_column(sketch)]
    return _shown(window(frame), window.key_names(frame), shown)


def merge_percentiles(
    frame: DataFrame,
    sketch: str,
    *,
    key: str | Column | Sequence[str | Column] = (),
    at: Sequence[float] = (0.5, 0.95, 0.99),
) -> DataFrame:
    """The sketches of each key merged into one, and the percentiles of all their values."""
    from pyspark.sql import functions as F  # noqa: N812

    names = _names(at)
    kind = dict(frame.dtypes).get(sketch)
    if kind != "binary":
        raise ConfigError(
            f"{sketch} is {kind or 'no column'}: name the column of sketches, which is binary, "
            f'that percentiles(..., how="kll", sketch="{sketch}") made'
        )
    merged = F.kll_merge_agg_double(as_column(sketch)).alias(sketch)
    found = frame.groupBy(*map(as_column, listed(key))).agg(merged)
    quantiles = _quantiles(as_column(sketch), names, at)
    return found.select(*map(as_column, found.columns[:-1]), *quantiles, as_column(sketch))


def quantile_of(sketch: Column, fraction: float) -> Column:
    """Null for a sketch without values, for which Spark raises an error. Only the sketch has their
    number, because it ignores NaN."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.kll_sketch_get_quantile_double(sketch, F.lit(fraction).cast("double"))
    return F.when(F.kll_sketch_get_n_double(sketch) > 0, found)


def _quantiles(sketch: Column, names: Sequence[str], at: Sequence[float]) -> list[Column]:
    return [quantile_of(sketch, it).alias(name) for name, it in zip(names, at, strict=True)]


def _names(at: Sequence[float]) -> list[str]:
    if not at:
        raise ConfigError("which percentiles? Write it like at=(0.5, 0.95)")
    for it in at:
        check_fraction("at", it)
    names = [f"p{it * 100:.10g}".replace(".", "_") for it in at]
    if len(set(names)) < len(names):
        raise ConfigError(f"at={at}: one of them is there twice")
    return names


def _shown(found: DataFrame, keys: Sequence[str], columns: Sequence[Column]) -> DataFrame:
    return found.select(*map(as_column, [*keys, START, END]), *columns)
