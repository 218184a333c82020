"""Two aggregations, one behind the other: windows per key first, then the windows themselves.

    panes = make_panes(orders, "shop", "at", "1 minute", {"n": "count(*)"}, Lateness())
    panes.regroup(end_us, keys, columns)

The first stage is a tumbling window: it is partitioned by key, handles late rows, and emits each
result once. The second stage groups these results: by a later end (the same hour a week later), by
several ends (the last hour, every minute), by fewer keys (the best of all). It processes one row
per key and window instead of one per event, and Spark aggregates partially in every task before
the shuffle, so no task sees all keys.

Spark allows this in append mode: a group of the second stage closes when the watermark reaches the
column that has the watermark's metadata, and the first stage has emitted all of its rows by then,
in the same batch at the latest. Spark refuses it in update mode, because an aggregate of changing
aggregates would count them twice. If results are needed before their window ends, write them to a
topic, and read that in another pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    WATERMARK_DELAY,
    as_column,
    listed,
    watermark_delay_ms,
)
from millstream.pipelines.durations import Duration, duration_text, duration_us
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.results import END, KIND, START
from millstream.pipelines.windows.aggregates import Given
from millstream.pipelines.windows.definition import Window
from millstream.pipelines.windows.kinds import Kind, Tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Aggregates: TypeAlias = Mapping[str, Given]
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
END_US = "_end_us"
_CLOSES = "_closes"


def lateness_of(
    stragglers: object,
    allowed: Duration | None,
    count_as: str | None,
    what: str,
    length_us: int,
) -> Lateness:
    """The policy of a function that emits each result once. By default, late rows are counted by
    function and length: Spark allows each name only once in a query. Raises `ConfigError`."""
    metric = count_as or f"late.{what} {duration_text(length_us)}"
    return Lateness.of(stragglers, allowed, metric, DropOrDivert)


def final_window(
    kind: Kind,
    keys: str | Column | Sequence[str | Column],
    time: str | Column,
    aggregates: Aggregates,
    lateness: Lateness,
) -> Window:
    """A window that is emitted once, when it is final."""
    return Window(kind, tuple(listed(keys)), time, aggregates, lateness, "final", 1)


@dataclass(frozen=True)
class Panes:
    """Final results of tumbling windows, with the end of the window in microseconds."""

    frame: DataFrame
    keys: tuple[str, ...]
    size_us: int
    lateness_us: int
    mark: Mapping[str, int]  # Spark's metadata of a column with a watermark

    def regroup(
        self,
        end_us: Column,
        keys: Sequence[str],
        columns: Sequence[Column],
        length_us: int | None = None,
    ) -> DataFrame:
        """Groups by keys and by `end_us`, an expression of the column `_end_us`: the keys,
        `window_start`, `window_end` and the aggregates. `length_us` is the length of a group, by
        default that of a pane."""
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
    lateness: Lateness,
) -> Panes:
    """The first stage. Raises `ConfigError` before anything runs."""
    from pyspark.sql.functions import unix_micros

    window = final_window(Tumbling(duration_us(size, "size")), keys, time, aggregates, lateness)
    results = window(frame)
    shown = [as_column(name) for name in results.columns if name not in (START, END, KIND)]
    delay_ms = watermark_delay_ms(frame, time)
    return Panes(
        results.select(*shown, unix_micros(END).alias(END_US)),
        tuple(window.key_names(frame)),
        duration_us(size, "size"),
        lateness.allowed_us,
        {} if delay_ms is None else {WATERMARK_DELAY: delay_ms},
    )


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raise `ConfigError` unless `value` is an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}: it must be an integer of at least {least}")


def check_fraction(name: str, value: object) -> None:
    if not isinstance(value, float | int) or not 0 <= value <= 1:
        raise ConfigError(
            f"{name}: a percentile is between 0 and 1, like 0.95 for the 95th, and not {value!r}"
        )


def check_number(frame: DataFrame, of: str | Column, what: str) -> None:
    """Raise `ConfigError` unless the column is a number."""
    (field,) = frame.select(as_column(of)).schema.fields
    kind = field.dataType.simpleString().split("(")[0]
    if kind not in NUMBERS:
        raise ConfigError(f"{what} a number, and {field.name} is {kind}: cast it to double")
