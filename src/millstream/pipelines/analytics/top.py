"""Top k: the first ten of all items, per window, without a task that sees all of them.

    trades.transform(top_k, "1 minute", key="stock", time="at", k=10,
                     by="max_by(price, at) / min_by(price, at) - 1")     the movers
    orders.transform(top_k, "1 hour", key="product", time="at", k=3, group="shop",
                     by="sum(amount)")

A row for each of them when the window is final: `rank` from 1 on, the item, `value`; with `group`,
k of each group. Of items with the same value the smaller comes first, so that a replay ranks them
as before. An item whose value is null is not ranked; NaN is below all numbers.

It has two stages: `by` is any aggregate of Spark SQL, computed per item, and spread over all tasks
by item. When a window is final, every task sends its own first k to the task of the window, or of
the group: at most k rows per task, however many items there are. (Spark's plan shows it as
`partial_min_by` before the second exchange.)

    requests.transform(top_k, "1 hour", key="url", time="at", k=10, how="approx")

If one row of state per item and window is too much, `how="approx"` ranks items by how often they
occur, with Spark's `approx_top_k`: a sketch of at most `capacity` items per window (and group). It
is exact while there are no more items than that. Otherwise a count may be too large, by about
3.5 times the number of rows divided by `capacity`. The greatest sums (`by="bytes"`) it cannot find,
nor bounds of the true count: see heavy_hitters.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    END_US,
    NUMBERS,
    Panes,
    check_whole,
    final_window,
    lateness_of,
    make_panes,
)
from millstream.pipelines.columns import as_column, check_choice, listed, name_column
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.results import END, START
from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.kinds import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANK = "rank"
VALUE = "value"
K_MAX = 100_000  # the limit of Spark's max_by
CAPACITY_MAX = 1_000_000  # the limit of Spark's approx_top_k
How = Literal["exact", "approx"]
_BEST = "_best"


def top_k(
    frame: DataFrame,
    size: Duration,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column],
    k: int = 10,
    by: str | Column | Aggregate = "count(*)",
    group: str | Column | Sequence[str | Column] = (),
    smallest: bool = False,
    how: How = "exact",
    capacity: int = 10_000,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    count_as: str | None = None,
) -> DataFrame:
    """The `k` greatest (or smallest) items; see the head of this module. Raises `ConfigError`."""
    check_choice("how", how, How)
    check_whole("k", k)
    if k > K_MAX:
        raise ConfigError(
            f"k={k}: at most {K_MAX} items are ranked; write all, and sort them later"
        )
    groups = listed(group)
    items = listed(key)
    if not items:
        raise ConfigError('name the items: top_k(frame, "1 hour", key="product", ...)')
    size_us = duration_us(size, "size")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "top", size_us)
    if how == "approx":
        if not isinstance(by, str) or by != "count(*)" or smallest:
            raise ConfigError(
                'how="approx" ranks items by how often they occur: leave out by and smallest, or '
                "use heavy_hitters for the greatest sums"
            )
        return _most_frequent(frame, size, time, items, groups, k, capacity, lateness)
    panes = make_panes(frame, [*groups, *items], time, size, {VALUE: by}, lateness)
    kind = panes.frame.schema[VALUE].dataType.simpleString().split("(")[0]
    if kind not in NUMBERS:
        raise ConfigError(f"by must be a number, to rank items by it, and it is {kind}")
    _check_names(panes.keys)
    return rank_panes(panes, panes.keys[: len(groups)], [VALUE], k, smallest=smallest)


def rank_panes(
    panes: Panes,
    groups: Sequence[str],
    values: Sequence[str],
    k: int,
    *,
    smallest: bool = False,
) -> DataFrame:
    """The second stage: the first k of each window and group by the first of these values."""
    from pyspark.sql.functions import col, min_by, posexplode, struct

    items = [name for name in panes.keys if name not in groups]
    value = as_column(values[0])
    order = struct((value if smallest else -value).alias("o"), *map(as_column, items))
    ranked = Panes(
        panes.frame.where(value.isNotNull()),
        panes.keys,
        panes.size_us,
        panes.lateness_us,
        panes.mark,
    )
    shown = [*items, *values]
    best = min_by(struct(*map(as_column, shown)), order, k).alias(_BEST)
    found = ranked.regroup(col(END_US), groups, [best])
    bounds = [*map(as_column, groups), col(START), col(END)]
    listed = found.select(*bounds, posexplode(_BEST).alias(RANK, _BEST))
    inner = [col(f"{_BEST}.`{name}`").alias(name) for name in shown]
    return listed.select(*bounds, (col(RANK) + 1).alias(RANK), *inner)


def _most_frequent(
    frame: DataFrame,
    size: Duration,
    time: str | Column,
    items: Sequence[str | Column],
    groups: Sequence[str | Column],
    k: int,
    capacity: int,
    lateness: Lateness,
) -> DataFrame:
    """By Spark's sketch."""
    from pyspark.sql.functions import col, posexplode, sort_array, struct, transform

    check_whole("capacity", capacity)
    if not k <= capacity <= CAPACITY_MAX:
        raise ConfigError(f"capacity={capacity}: choose at least k={k}, and at most {CAPACITY_MAX}")
    if len(items) != 1:
        raise ConfigError('how="approx" counts one column: key=concat_ws("/", ...).alias("item")')
    frame, name = name_column(frame, items[0])
    counted = {_BEST: f"approx_top_k(`{name}`, {k}, {capacity})"}
    window = final_window(Tumbling(duration_us(size, "size")), groups, time, counted, lateness)
    keys = window.key_names(frame)
    _check_names([*keys, name])
    found = window(frame)
    # The sketch returns equal counts in any order.
    ranked = sort_array(
        transform(_BEST, lambda it: struct((-it["count"]).alias("o"), it["item"].alias("i")))
    )
    bounds = [*map(as_column, keys), col(START), col(END)]
    listed = found.select(*bounds, posexplode(ranked).alias(RANK, _BEST))
    item, count = col(f"{_BEST}.i").alias(name), (-col(f"{_BEST}.o")).alias(VALUE)
    return listed.select(*bounds, (col(RANK) + 1).alias(RANK), item, count)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in (RANK, VALUE):
            raise ConfigError(
                f"there is a column {name}, and the result has one of its own: "
                f'rename it with col("{name}").alias(...)'
            )
