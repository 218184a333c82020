"""Time: event time, clocks that are wrong, late rows, idle sources.

    from millstream.pipelines import times

    lateness.py    the batch's watermark in every row, and which rows are late by it
    clocks.py      event, log-append and processing time; devices whose clocks are wrong
    idleness.py    a watermark that advances while a source is idle

Use what this package exports; its modules are private.
"""

from millstream.pipelines.times.clocks import (
    cap_future,
    correct_clock,
    correct_device_clocks,
    count_odd_clocks,
    three_times,
)
from millstream.pipelines.times.idleness import with_idle_watermark
from millstream.pipelines.times.lateness import mark_late, with_watermark_column

__all__ = [
    "cap_future",
    "correct_clock",
    "correct_device_clocks",
    "count_odd_clocks",
    "mark_late",
    "three_times",
    "with_idle_watermark",
    "with_watermark_column",
]
