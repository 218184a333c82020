"""Rolling aggregates: rates, averages, percentiles over the last n minutes.

    orders.transform(rolling, "5 minutes", key="shop", time="at",
                     per_second="rate(*)", mean="avg(amount)", p95="percentile(amount, 0.95)")
    orders.transform(rolling, "1 hour", every="1 minute", key="shop", time="at",
                     per_second="rate(*)", p95="approx_percentile(amount, 0.95)",
                     buyers="approx_distinct(user)")

Without `every`, a row for each event, with what happened in the last `over` up to it, exact: that
is `sliding_window`, with `rate`. With `every`, a row for each key and interval in which the last
`over` had events, whenever an interval is over. Each event is then counted once, in the interval
that it belongs to (a pane), and panes are added up: what they have can be added, `percentile`
cannot, and so `approx_percentile` merges KLL sketches and `approx_distinct` HLL sketches.

    rate(*)                      events per second            rate(x)   the sum of x per second
    count sum avg min max        as in SQL
    percentile(x, 0.95)          exact, without `every`
    stddev(x)                    of a sample, without `every`
    approx_percentile(x, 0.95)   with `every`: its rank is off by 1 % or so
    approx_distinct(x)           with `every`: off by 2 % or so

A rate is per second of `over`, also while the stream is younger than that. Of stragglers per event,
"divert" gives rows with `_kind`, "final" or "late", and `_lateness` in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.analytics.distinct import sketchable
from millstream.pipelines.analytics.quantiles import quantile_of
from millstream.pipelines.analytics.stages import (
    END_US,
    Lateness,
    Panes,
    Policy,
    check_fraction,
    late_metric,
    make_panes,
)
from millstream.pipelines.columns import WATERMARK_COLUMN, as_column
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import END, KIND, START
from millstream.pipelines.windows.aggregates import Aggregate, parse_aggregate
from millstream.pipelines.windows.sliding import sliding_window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ADDABLE = ("count", "sum", "avg", "min", "max", "rate", "approx_percentile", "approx_distinct")
PANES_MAX = 10_000
_CALL = re.compile(r"\s*(rate|approx_percentile|approx_distinct)\s*\((.*)\)\s*", re.DOTALL | re.I)


@dataclass(frozen=True)
class Measure:
    """One result: what kind, of which expression (None: of the rows), which percentile."""

    name: str
    kind: str
    of: str | Column | None
    fraction: float = 0.5


def rolling(
    frame: DataFrame,
    over: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    every: Duration | None = None,
    stragglers: Lateness = "drop",
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str | None = None,
    **aggregates: str | Aggregate,
) -> DataFrame:
    """Aggregates of the last `over`; see the head of this module.

    `buckets` is for results per event alone. Raises `ConfigError` before anything runs.
    """
    measures = [_measure(name, given) for name, given in aggregates.items()]
    if not measures:
        raise ConfigError('what is to be computed? Write it like per_second="rate(*)"')
    over_us = duration_us(over, "over")
    policy = Policy(stragglers, allowed_lateness, count_as or late_metric("rolling", over))
    if every is not None:
        return _per_interval(frame, key, time, over_us, every, measures, policy)
    return _per_event(frame, key, time, over, measures, policy, buckets)


def _measure(name: str, given: str | Aggregate) -> Measure:
    call = _CALL.fullmatch(given) if isinstance(given, str) else None
    if call is None:
        parsed = parse_aggregate(given, name)
        return Measure(name, parsed.kind, parsed.of, parsed.fraction)
    kind, inside = call[1].lower(), call[2].strip()
    if kind != "approx_percentile":
        return Measure(name, kind, None if inside in ("*", "") else inside)
    of, _, text = (part.strip() for part in inside.rpartition(","))
    try:
        fraction = float(text)
    except ValueError:
        raise ConfigError(
            f"{name}={given!r}: which percentile? Write it like approx_percentile(amount, 0.95)"
        ) from None
    check_fraction(name, fraction)
    return Measure(name, kind, of, fraction)


def _per_event(
    frame: DataFrame,
    key: str | Column | Sequence[str | Column],
    time: str | Column,
    over: Duration,
    measures: Sequence[Measure],
    policy: Policy,
    buckets: int,
) -> DataFrame:
    check_not_aggregated(frame)
    seconds = duration_us(over, "over") / 1e6
    aggregates: dict[str, Any] = {}
    for it in measures:
        if it.kind.startswith("approx_"):
            raise ConfigError(
                f"{it.name}: {it.kind} is for results per interval: add every=..., or, for each "
                "event, take percentile(x, 0.95), which is exact"
            )
        kind = it.kind if it.kind != "rate" else "count" if it.of is None else "sum"
        aggregates[it.name] = Aggregate(kind, it.of, it.fraction)
    result = sliding_window(
        frame.drop(WATERMARK_COLUMN),
        key,
        time,
        over,
        stragglers=policy.stragglers,
        allowed_lateness=policy.allowed_lateness,
        count_as=policy.count_as,
        buckets=buckets,
        **aggregates,
    )
    rates = {it.name: as_column(it.name) / seconds for it in measures if it.kind == "rate"}
    if policy.stragglers == "drop":
        result = result.drop(KIND)  # all that is left is final
    return result.withColumns(rates) if rates else result


def _per_interval(
    frame: DataFrame,
    key: str | Column | Sequence[str | Column],
    time: str | Column,
    over_us: int,
    every: Duration,
    measures: Sequence[Measure],
    policy: Policy,
) -> DataFrame:
    from pyspark.sql.functions import col, explode, lit, sequence

    every_us = duration_us(every, "every")
    _check_panes(over_us, every_us)
    parts: dict[str, Column] = {}
    merged: list[Column] = []
    for place, it in enumerate(measures):
        made, merge = _addable(frame, it, f"_part{place}", over_us / 1e6)
        parts |= made
        merged.append(merge.alias(it.name))
    panes = make_panes(frame, key, time, every, parts, policy)
    _check_names(panes, measures)
    last_us = col(END_US) + lit(over_us - every_us)
    ends = explode(sequence(col(END_US), last_us, lit(every_us).cast("long")))
    return panes.regroup(ends, panes.keys, merged, length_us=over_us)


def _check_names(panes: Panes, measures: Sequence[Measure]) -> None:
    for it in measures:
        if it.name in (*panes.keys, START, END):
            raise ConfigError(f"there is a column {it.name} already: choose another name")


def _check_panes(over_us: int, every_us: int) -> None:
    if over_us % every_us:
        raise ConfigError("over must be a multiple of every, or the last interval would be cut")
    if over_us // every_us > PANES_MAX:
        raise ConfigError(
            f"every is so short that over has more than {PANES_MAX} intervals: make it longer, or "
            "leave it out, for a result at every event"
        )


def _addable(
    frame: DataFrame, it: Measure, part: str, seconds: float
) -> tuple[dict[str, Column], Column]:
    """What is computed of a pane, as columns whose names begin with `part`, and what the panes add
    up to."""
    from pyspark.sql import functions as F  # noqa: N812

    if it.kind not in ADDABLE:
        instead = {"percentile": f"approx_percentile(..., {it.fraction})"}.get(it.kind)
        raise ConfigError(
            f"{it.name}: {it.kind} of intervals cannot be added up: "
            + (f"take {instead}, or " if instead else "")
            + "leave out every, for a result at every event"
        )
    of = F.lit(1) if it.of is None else F.expr(it.of) if isinstance(it.of, str) else it.of
    if it.kind == "avg":
        parts = {part: F.sum(of.cast("double")), f"{part}_n": F.count(of)}
        return parts, F.sum(part) / F.nullif(F.sum(f"{part}_n"), F.lit(0))
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
