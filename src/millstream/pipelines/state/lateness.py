"""Which rows come too late for an operator, and how late they are: one rule for all of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def is_late(rows: pa.RecordBatch, time: str, late_us: int) -> pa.Array:
    """Whether each row is at or before `late_us`, or has no time."""
    return pc.fill_null(pc.less_equal(rows.column(time).view(pa.int64()), late_us), True)


def split_late(
    rows: pa.RecordBatch, time: str, late_us: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows that are on time, and those that are not."""
    late = is_late(rows, time, late_us)
    if not pc.any(late).as_py():
        return rows, rows.slice(0, 0)
    return rows.filter(pc.invert(late)), rows.filter(late)


def seconds_behind(rows: pa.RecordBatch, time: str, watermark_us: int) -> pa.Array:
    """How far each row is behind the watermark; null without a time."""
    behind_us = pc.subtract(watermark_us, rows.column(time).view(pa.int64()))
    # Beyond 2^53 microseconds, 285 years, a double rounds, which a safe cast refuses.
    return pc.divide(behind_us.cast(pa.float64(), safe=False), 1e6)
