"""Top k: of all items the first ten, per window, exact, and without a task that sees all items.

    trades.transform(top_k, "1 minute", key="stock", time="at", k=10,
                     by="max_by(price, at) / min_by(price, at) - 1")     the movers
    orders.transform(top_k, "1 hour", key="product", time="at", k=3, group="shop",
                     by="sum(amount)")

A row for each of them when the window is over: `rank` from 1 on, the item, `value`; with `group`,
so many of each group. Of items with the same value the smaller comes first, so that a replay ranks
as before. An item whose value is null is not ranked; NaN is below all numbers.

In two stages: `by` is any aggregate of Spark's SQL, computed per item, and spread over all tasks
by item. When a window is over, every task sends its own first k to the one that has the window, or
the group: at most k rows a task, however many items there are. (Spark's plan shows it as
`partial_min_by` before the second exchange.)

For items without number, of which not even one row each can be kept, see heavy_hitters.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.analytics.stages import (
    END_US,
    NUMBERS,
    Panes,
    check_whole,
    make_panes,
    once,
)
from millstream.pipelines.columns import as_column, listed
from millstream.pipelines.durations import Duration
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.results import END, START
from millstream.pipelines.windows.aggregates import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANK = "rank"
VALUE = "value"
K_MAX = 100_000  # what Spark's max_by takes
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
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    count_as: str | None = None,
) -> DataFrame:
    """The `k` greatest (or smallest) items; see the head of this module. Raises `ConfigError`."""
    check_whole("k", k)
    if k > K_MAX:
        raise ConfigError(f"k={k}: more than {K_MAX} are no top; write all of them, and sort later")
    groups = listed(group)
    items = listed(key)
    if not items:
        raise ConfigError(
            'the first ten of what? Write it like top_k(frame, "1 hour", key="product", ...)'
        )
    lateness = once(stragglers, allowed_lateness, count_as, "top", size)
    panes = make_panes(frame, [*groups, *items], time, size, {VALUE: by}, lateness)
    _check_names(panes)
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


def _check_names(panes: Panes) -> None:
    kind = panes.frame.schema[VALUE].dataType.simpleString().split("(")[0]
    if kind not in NUMBERS:
        raise ConfigError(f"by is what items are ranked by, a number, and this is {kind}")
    for name in panes.keys:
        if name in (RANK, VALUE):
            raise ConfigError(
                f"there is a column {name}, and the result has one of its own: "
                f'give the key another name with col("{name}").alias(...)'
            )
