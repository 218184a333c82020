"""Rolling aggregates: rates, averages, percentiles over the last n minutes.

    orders.transform(rolling, "5 minutes", key="shop", time="at",
                     per_second="rate(*)", mean="avg(amount)", p95="percentile(amount, 0.95)")
    orders.transform(rolling, "1 hour", every="1 minute", key="shop", time="at",
                     per_second="rate(*)", p95="approx_percentile(amount, 0.95)",
                     buyers="approx_distinct(user)")

Without `every`, a row for each event, with exact aggregates of the time `over` before it: a sliding
window, with `rate`. It is emitted once: when the event arrives (`emit="arrival"`), or when no row
that is on time can change it (`emit="final"`).

With `every`, a row for each key and interval for which the last `over` has events, when the
interval is final. Each event is counted once, in its interval (a pane), and panes are added up.
`percentile` cannot be added up, so `approx_percentile` merges KLL sketches and `approx_distinct`
HLL sketches.

    rate(*)                      events per second            rate(x)   the sum of x per second
    count sum avg min max        as in SQL
    percentile(x, 0.95)          exact, without `every`
    stddev(x)                    of a sample, without `every`
    count(distinct x)            exact, without `every`
    approx_percentile(x, 0.95)   with `every`: its rank has an error of about 1 %
    approx_distinct(x)           with `every`: an error of about 2 %

A rate is per second of `over`, also while the stream is younger than that. Per event,
stragglers="divert" yields rows with `_kind`, "arrival", "final" or "late", and `_lateness` in
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.analytics.distinct import sketchable
from millstream.pipelines.analytics.quantiles import quantile_of
from millstream.pipelines.analytics.stages import (
    END_US,
    Panes,
    lateness_of,
    make_panes,
)
from millstream.pipelines.columns import as_column, listed
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.results import END, KIND, LATENESS, OLD, START
from millstream.pipelines.windows.aggregates import KINDS, Aggregate, parse_aggregates
from millstream.pipelines.windows.decimal_sums import DIGITS_MAX
from millstream.pipelines.windows.emission import parse_emit
from millstream.pipelines.windows.per_event import Sliding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROLLING_KINDS = (*KINDS, "rate", "approx_percentile", "approx_distinct")
ADDABLE = ("count", "sum", "avg", "min", "max", "rate", "approx_percentile", "approx_distinct")
PANES_MAX = 10_000
COUNT_DIGITS = 10  # of the events of a group


def rolling(
    frame: DataFrame,
    over: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    every: Duration | None = None,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "arrival",
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Column,
) -> DataFrame:
    """Aggregates of the last `over`; see the head of this module.

    `emit` and `buckets` are for results per event alone. Raises `ConfigError` before anything runs.
    """
    parsed = parse_aggregates(aggregates, ROLLING_KINDS, rolling)
    over_us = duration_us(over, "over")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "rolling", over_us)
    if every is not None:
        return _per_interval(frame, key, time, over_us, every, parsed, lateness)
    parse_emit(emit, ("arrival", "final"))
    computed = {name: _per_event(name, it) for name, it in parsed.items()}
    window = Sliding(over_us, tuple(listed(key)), time, computed, lateness, emit, buckets=buckets)
    found = rows_once(window, frame)
    rates = {
        name: as_column(name) / (over_us / 1e6) for name, it in parsed.items() if it.kind == "rate"
    }
    return found.withColumns(rates) if rates else found


def rows_once(window: Sliding, frame: DataFrame) -> DataFrame:
    """One result for each event; with them, if they are diverted, late events by `_kind`."""
    if window.lateness.stragglers == "drop":
        return window(frame).drop(KIND)
    rows = window.rows(frame).drop(OLD)
    shown = [it for it in rows.columns if it not in (KIND, LATENESS)]
    return rows.select(*map(as_column, [*shown, KIND, LATENESS]))


def _per_event(name: str, it: Aggregate) -> Aggregate:
    """What a sliding window computes for it."""
    if it.kind.startswith("approx_"):
        raise ConfigError(
            f"{name}: {it.kind} is for results per interval: add every=..., or, for each "
            "event, take percentile(x, 0.95) or count(distinct x), which are exact"
        )
    return it if it.kind != "rate" else replace(it, kind="count" if it.of is None else "sum")


def _per_interval(
    frame: DataFrame,
    key: str | Column | Sequence[str | Column],
    time: str | Column,
    over_us: int,
    every: Duration,
    aggregates: Mapping[str, Aggregate],
    lateness: Lateness,
) -> DataFrame:
    from pyspark.sql.functions import col, explode, lit, sequence

    every_us = duration_us(every, "every")
    _check_panes(over_us, every_us)
    parts: dict[str, Column] = {}
    merged: list[Column] = []
    for place, (name, it) in enumerate(aggregates.items()):
        made, merge = _addable(frame, name, it, f"_part{place}", over_us / 1e6)
        parts |= made
        merged.append(merge.alias(name))
    panes = make_panes(frame, key, time, every, parts, lateness)
    _check_names(panes, aggregates)
    last_us = col(END_US) + lit(over_us - every_us)
    ends = explode(sequence(col(END_US), last_us, lit(every_us).cast("long")))
    return panes.regroup(ends, panes.keys, merged, length_us=over_us)


def _check_names(panes: Panes, names: Iterable[str]) -> None:
    for name in names:
        if name in (*panes.keys, START, END):
            raise ConfigError(f"there is a column {name} already: choose another name")


def _check_panes(over_us: int, every_us: int) -> None:
    if over_us % every_us:
        raise ConfigError("over must be a multiple of every, or the last interval would be cut")
    if over_us // every_us > PANES_MAX:
        raise ConfigError(
            f"every is so short that over has more than {PANES_MAX} intervals: make it longer, or "
            "leave it out, for a result at every event"
        )


def _addable(
    frame: DataFrame, name: str, it: Aggregate, part: str, seconds: float
) -> tuple[dict[str, Column], Column]:
    """What is computed of a pane, as columns whose names begin with `part`, and what the panes add
    up to."""
    from pyspark.sql import functions as F  # noqa: N812

    if it.kind not in ADDABLE:
        instead = {"percentile": f"approx_percentile(..., {it.fraction})"}.get(it.kind)
        raise ConfigError(
            f"{name}: {it.kind} of intervals cannot be added up: "
            + (f"take {instead}, or " if instead else "")
            + "leave out every, for a result at every event"
        )
    of = F.lit(1) if it.of is None else F.expr(it.of) if isinstance(it.of, str) else it.of
    if it.kind == "avg":
        return _average(frame, of, part)
    if it.kind == "approx_distinct":
        merged = F.hll_sketch_estimate(F.hll_union_agg(part))
        return {part: F.hll_sketch_agg(sketchable(frame, of))}, merged
    if it.kind == "approx_percentile":
        merged = quantile_of(F.kll_merge_agg_double(part), it.fraction)
        return {part: F.kll_sketch_agg_double(of.cast("double"))}, merged
    if it.kind == "count" or (it.kind == "rate" and it.of is None):
        total = F.sum(part)
        return {part: F.count(of)}, total / seconds if it.kind == "rate" else total
    if it.kind in ("sum", "rate"):
        total = F.sum(part)
        return {part: F.sum(of)}, total / seconds if it.kind == "rate" else total
    function = getattr(F, it.kind)
    return {part: function(of)}, function(part)


def _average(frame: DataFrame, of: Column, part: str) -> tuple[dict[str, Column], Column]:
    """An average has the type that Spark's `avg` has: a decimal of decimals, else a double."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DecimalType

    (field,) = frame.select(of).schema.fields
    kind, count = field.dataType, F.nullif(F.sum(f"{part}_n"), F.lit(0))
    if not isinstance(kind, DecimalType):
        parts = {part: F.sum(of.cast("double")), f"{part}_n": F.count(of)}
        return parts, F.sum(part) / count
    digits, scale = kind.precision, kind.scale
    # No more digits than Spark's `avg` has: those before the point cost some behind it.
    total = F.sum(part).cast(DecimalType(min(digits + 10, DIGITS_MAX), scale))
    found = total / count.cast(DecimalType(COUNT_DIGITS, 0))
    result = DecimalType(min(digits + 4, DIGITS_MAX), min(scale + 4, DIGITS_MAX))
    return {part: F.sum(of), f"{part}_n": F.count(of)}, found.cast(result)
