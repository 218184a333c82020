"""Two aggregations, one behind the other: windows per key first, then the windows themselves.

    panes = make_panes(orders, "shop", "at", "1 minute", {"n": "count(*)"}, Policy())
    panes.regroup(end_us, keys, columns)

The first stage is a tumbling window: it is partitioned by key, it knows what becomes of stragglers,
and each of its results comes once. The second groups these results: by a later end (the same hour a
week on), by several ends (the last hour, every minute), by fewer keys (the best of all). It has a
row per key and window to do with, not one per event, and Spark adds up its groups in every task
before the shuffle, so no task sees all keys.

Spark allows it in append mode: a group of the second stage closes when the watermark reaches the
column that bears its mark, and all that belongs to it has left the first stage by then, in the
same batch at the latest. In update mode Spark forbids it, since an aggregate of aggregates that
change would count them twice: results that are needed before their window is over go through a
topic, from one pipeline to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_DELAY,
    as_column,
    listed,
    watermark_delay_ms,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us, lateness_us
from millstream.pipelines.results import END, KIND, START
from millstream.pipelines.windows.aggregates import Given
from millstream.pipelines.windows.definition import Window
from millstream.pipelines.windows.kinds import Kind, Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Aggregates: TypeAlias = Mapping[str, Given]
Lateness = Literal["drop", "divert"]
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
END_US = "_end_us"
_CLOSES = "_closes"


@dataclass(frozen=True)
class Policy:
    """What becomes of stragglers. Results come once, so they cannot be corrected."""

    stragglers: Lateness = "drop"
    allowed_lateness: Duration | None = None
    count_as: str | None = None

    def __post_init__(self) -> None:
        if self.stragglers not in get_args(Lateness):
            raise ConfigError(
                f"stragglers={self.stragglers!r}: what is made of results of windows comes once; "
                "choose drop (they are counted) or divert (take them from tumbling(...).late)"
            )

    def window(
        self,
        kind: Kind,
        keys: str | Column | Sequence[str | Column],
        time: str | Column,
        aggregates: Aggregates,
    ) -> Window:
        """A definition whose results are final when they come."""
        return Window(
            kind=kind,
            keys=tuple(listed(keys)),
            time=time,
            aggregates=aggregates,
            stragglers=self.stragglers,
            allowed_lateness_us=lateness_us(self.allowed_lateness),
            emit="final",
            buckets=1,
            count_as=self.count_as,
        )


@dataclass(frozen=True)
class Panes:
    """Final results of tumbling windows, with the end of their window in microseconds."""

    frame: DataFrame
    keys: tuple[str, ...]
    size_us: int
    lateness_us: int
    mark: Mapping[str, int]  # what Spark notes at a column with a watermark

    def regroup(
        self,
        end_us: Column,
        keys: Sequence[str],
        columns: Sequence[Column],
        length_us: int | None = None,
    ) -> DataFrame:
        """Groups by `end_us`, made of the column `_end_us`, and keys: these, `window_start`,
        `window_end` and what the aggregates are. `length_us`: of a group, if not that of a pane."""
        from pyspark.sql.functions import col, timestamp_micros

        taken = [name for name in self.frame.columns if name != END_US]
        placed = self.frame.select(*map(as_column, taken), end_us.alias(END_US))
        closes = timestamp_micros(col(END_US) + self.lateness_us)
        marked = placed.withColumn(_CLOSES, closes.alias(_CLOSES, metadata=dict(self.mark)))
        found = marked.groupBy(*map(as_column, keys), END_US, _CLOSES).agg(*columns)
        length_us = self.size_us if length_us is None else length_us
        shown = [it for it in found.columns if it not in (*keys, END_US, _CLOSES)]
        return found.select(
            *map(as_column, keys),
            timestamp_micros(col(END_US) - length_us).alias(START),
            timestamp_micros(END_US).alias(END),
            *map(as_column, shown),
        )


def make_panes(
    frame: DataFrame,
    keys: str | Column | Sequence[str | Column],
    time: str | Column,
    size: Duration,
    aggregates: Aggregates,
    policy: Policy,
) -> Panes:
    """The first stage. Raises `ConfigError` before anything runs."""
    from pyspark.sql.functions import unix_micros

    window = policy.window(Tumbling(duration_us(size, "size")), keys, time, aggregates)
    results = window(frame)
    shown = [as_column(name) for name in results.columns if name not in (START, END, KIND)]
    delay_ms = watermark_delay_ms(frame, time)
    return Panes(
        results.select(*shown, unix_micros(END).alias(END_US)),
        tuple(window.key_names(frame)),
        duration_us(size, "size"),
        window.allowed_lateness_us,
        {} if delay_ms is None else {WATERMARK_DELAY: delay_ms},
    )


def late_metric(what: str, length: Duration) -> str:
    """Where the query's progress counts late rows that are dropped, unless told otherwise. Spark
    wants each name once in a query, so functions have names of their own."""
    return f"late.{what} {duration_text(duration_us(length))}"


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raises `ConfigError` unless `value` is a whole number, and large enough."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: give it a whole number, {least} or more")


def check_fraction(name: str, value: object) -> None:
    if not isinstance(value, float | int) or not 0 <= value <= 1:
        raise ConfigError(
            f"{name}: a percentile lies between 0 and 1, like 0.95 for the 95th, and not {value!r}"
        )


def check_number(frame: DataFrame, of: str | Column, what: str) -> None:
    """Raises `ConfigError` unless the column is one of numbers."""
    (field,) = frame.select(as_column(of)).schema.fields
    kind = field.dataType.simpleString().split("(")[0]
    if kind not in NUMBERS:
        raise ConfigError(f"{what} a number, and {field.name} is {kind}: cast it to double")
