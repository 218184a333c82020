"""Combining rows before the shuffle: a task works on whole columns, and few rows reach the state.

    bid.transform(keep_highest, "price", time="dateTime", size="10 seconds")
    bid.transform(count_panes, "auction", time="dateTime", size="2 seconds")
    counts.transform(leaders, "counts")

Spark's aggregates update their state row by row. The highest bid of a window and the number of bids
of an auction can be computed in parts: the highest of the highest is the highest, and counts add
up. So each task combines its rows of the micro-batch first. These functions keep no state, and the
aggregate after them decides which rows are late. A result depends on how Spark divides a stream
into tasks; what an aggregate makes of it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.pipelines.joins.frames import keep_watermark
from millstream.pipelines.joins.matching import is_last

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNT = "n"
_HELD_ROWS = 1 << 17  # combined rows that a task holds before it combines them again


def keep_highest(frame: DataFrame, by: str, *, time: str, size: Duration) -> DataFrame:
    """The rows that are the highest of their window, and all equals, as far as a task has seen."""
    size_us = duration_us(size, "size")
    shown = show_watermark(frame)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _combined(batches, lambda rows: highest_rows(rows, by, time, size_us))

    return hide_again(keep_watermark(shown.mapInArrow(run, shown.schema), shown), frame)


def count_panes(frame: DataFrame, key: str, *, time: str, size: Duration) -> DataFrame:
    """The number of rows of each key and pane, as `n`; `time` is the start of the pane."""
    from pyspark.sql.types import LongType, StructType

    size_us = duration_us(size, "size")
    rows = frame.select(key, time)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ones = (it.append_column(COUNT, pa.repeat(1, it.num_rows)) for it in batches)
        yield from _combined(ones, lambda rows: pane_counts(rows, key, time, size_us))

    schema = StructType([*rows.schema.fields]).add(COUNT, LongType())
    return keep_watermark(rows.mapInArrow(run, schema), rows)


def leaders(frame: DataFrame, counts: str) -> DataFrame:
    """Of each list of structs with a key and `n`, the keys with the greatest sum, as rows."""
    inner = frame.schema[counts].dataType.elementType

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for counted in batch.column(counts):
                yield leading_keys(counted.values)

    return frame.select(counts).mapInArrow(run, inner)


def highest_rows(rows: pa.RecordBatch, by: str, time: str, size_us: int) -> pa.RecordBatch:
    """The rows that are the highest of their window, in any order. Without a time or a value a row
    is not among them."""
    rows = rows.filter(pc.and_(rows.column(time).is_valid(), rows.column(by).is_valid()))
    values = rows.column(by).to_numpy(zero_copy_only=False)
    windows = rows.column(time).view(pa.int64()).to_numpy() // size_us
    order = np.lexsort((values, windows))
    order = order[is_last(windows[order])]
    highest = values[order][np.searchsorted(windows[order], windows)]
    return rows.filter(pa.array(values == highest))


def pane_counts(rows: pa.RecordBatch, key: str, time: str, size_us: int) -> pa.RecordBatch:
    """The sums of `n` by key and pane."""
    rows = rows.filter(rows.column(time).is_valid())
    times_us = rows.column(time).view(pa.int64()).to_numpy()
    panes = pa.array(times_us - times_us % size_us).view(rows.schema.field(time).type)
    table = pa.table({key: rows.column(key), time: panes, COUNT: rows.column(COUNT)})
    summed = table.group_by([key, time], use_threads=False).aggregate([(COUNT, "sum")])
    found = summed.rename_columns({f"{COUNT}_sum": COUNT}).select(rows.schema.names)
    return found.cast(rows.schema).combine_chunks().to_batches()[0] if len(found) else rows


def leading_keys(counted: pa.StructArray) -> pa.RecordBatch:
    """The keys with the greatest sum, from structs with a key and `n`."""
    rows = pa.RecordBatch.from_struct_array(counted)
    key = next(name for name in rows.schema.names if name != COUNT)
    table = pa.table(rows).group_by(key, use_threads=False).aggregate([(COUNT, "sum")])
    summed = table.rename_columns({f"{COUNT}_sum": COUNT}).select(rows.schema.names)
    most = pc.max(summed[COUNT])
    found = summed.filter(pc.equal(summed[COUNT], most)).cast(rows.schema).combine_chunks()
    return found.to_batches()[0] if len(found) else rows


def _combined(
    batches: Iterator[pa.RecordBatch], combine: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """All rows of a task, combined; once more whenever too many parts have come together."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in batches:
        held.append(combine(batch))
        held_rows += held[-1].num_rows
        if held_rows > _HELD_ROWS:
            yield combine(pa.concat_batches(held))
            held, held_rows = [], 0
    if held:
        yield combine(pa.concat_batches(held))
