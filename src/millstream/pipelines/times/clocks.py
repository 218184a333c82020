"""The three times of a row, and the correction of wrong device clocks.

    event_time       when it happened, by the clock of the observer: the time of windows
    append_time      when it was appended to the log, by the broker's clock
    processing_time  when the batch that reads it began; the same when the batch is repeated

`three_times` adds them. Times of devices need correction first. A device has the time of an event
(`event`) and the time when it sent the row (`sent`), both by its own clock, and a server has the
time when it received the row (`received`). So the clock's error is `received - sent`, apart from
the time in transit, and the event happened at `event + (received - sent)`.

    correct_clock           row by row, as an expression: a delayed row is wrong by its delay
    correct_device_clocks   by the median of the device's last rows: a delayed row, or a wrong
                            `sent`, has little influence, and a drifting clock is followed

    cap_future              if there is only one clock, and nothing to correct it by

All add `event_time`, and `_clock`, the problem of the row; null if there is none:

    future    the event would be later than `received`, by more than `tolerance`
    jump      the row's own offset differs from the device's by more than `tolerance`
    no time   one of the three times is missing

`event_time` is never later than `received`, so a row from the future, or from a clock that jumped,
does not move the watermark ahead of the server's clock. Rows without a time have none.
`count_odd_clocks` counts such rows in the query's progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column, check_time, listed
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import HASH, Numbers, key_codes
from millstream.pipelines.state.tables import concat, times_of
from millstream.pipelines.windows.ranges import percentiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT_TIME = "event_time"
APPEND_TIME = "append_time"
PROCESSING_TIME = "processing_time"
CLOCK = "_clock"
ODD_CLOCKS = "odd_clocks"  # the metric in the query's progress
FUTURE, JUMP, NO_TIME = "future", "jump", "no time"
MEMORY_MAX = 1000
_OFFSET = "_offset_us"
_RECEIVED = "_received"
_ROWS = "rows"


def three_times(
    frame: DataFrame, event: str | Column, append: str | Column = "_timestamp"
) -> DataFrame:
    """The rows with `event_time`, `append_time` and `processing_time`."""
    from pyspark.sql.functions import current_timestamp

    check_time(frame, event)
    check_time(frame, append)
    return frame.withColumns(
        {
            EVENT_TIME: as_column(event),
            APPEND_TIME: as_column(append),
            PROCESSING_TIME: current_timestamp(),
        }
    )


def correct_clock(
    frame: DataFrame,
    event: str | Column,
    sent: str | Column,
    received: str | Column,
    *,
    tolerance: Duration = "1 minute",
) -> DataFrame:
    """The rows with `event_time` and `_clock`, each corrected by its own three times."""
    from pyspark.sql.functions import unix_micros

    _check_free(frame, [EVENT_TIME, CLOCK])
    for it in (event, sent, received):
        check_time(frame, it)
    offset_us = unix_micros(as_column(received)) - unix_micros(as_column(sent))
    tolerance_us = duration_us(tolerance, "tolerance", zero_allowed=True)
    return _corrected(frame, event, received, offset_us, offset_us, tolerance_us)


def cap_future(
    frame: DataFrame,
    event: str | Column,
    received: str | Column = "_timestamp",
    *,
    tolerance: Duration = "1 minute",
) -> DataFrame:
    """Rows with `event_time`, which is `event` but never later than `received`, and `_clock`."""
    from pyspark.sql.functions import lit

    _check_free(frame, [EVENT_TIME, CLOCK])
    for it in (event, received):
        check_time(frame, it)
    nothing_us = lit(0)
    tolerance_us = duration_us(tolerance, "tolerance", zero_allowed=True)
    return _corrected(frame, event, received, nothing_us, nothing_us, tolerance_us)


def correct_device_clocks(
    frame: DataFrame,
    event: str | Column,
    sent: str | Column,
    received: str | Column,
    *,
    key: str | Column | Sequence[str | Column],
    tolerance: Duration = "1 minute",
    memory: int = 31,
    forget: Duration = "1 day",
    buckets: int = 16,
) -> DataFrame:
    """The rows with `event_time`, `_clock` and `_offset_us`, the offset of the device's clock: the
    median of its last `memory` rows up to this one, in the order in which they were received. A
    device that sends nothing for the time `forget` is forgotten.

    A stream needs a watermark on `received`. The result has none: call `withWatermark` on
    `event_time` after this.
    """
    from pyspark.sql.functions import unix_micros

    from millstream.pipelines.state.spark import arrow_schema, run_operator

    _check_free(frame, [EVENT_TIME, CLOCK, _OFFSET, _RECEIVED])
    for it in (event, sent, received):
        check_time(frame, it)
    if not 1 <= memory <= MEMORY_MAX:
        raise ConfigError(f"memory {memory}: choose between 1 and {MEMORY_MAX} rows")
    tolerance_us = duration_us(tolerance, "tolerance", zero_allowed=True)
    own_us = unix_micros(as_column(received)) - unix_micros(as_column(sent))
    given, frame = frame, show_watermark(frame)
    prepared = frame.withColumns({_RECEIVED: as_column(received), _OFFSET: own_us})
    keys = listed(key)
    names = prepared.select(*map(as_column, keys)).columns
    for name, key in zip(names, keys, strict=True):
        if name not in prepared.columns:
            prepared = prepared.withColumn(name, as_column(key))
    schema = arrow_schema(prepared.schema)
    operator = DeviceOffsets(schema, names, memory, duration_us(forget, "forget"))
    found = run_operator(operator, {_ROWS: prepared}, buckets)
    robust = _corrected(found, event, received, as_column(_OFFSET), own_us, tolerance_us)
    return hide_again(robust.drop(_RECEIVED), given)


def count_odd_clocks(frame: DataFrame, name: str = ODD_CLOCKS) -> DataFrame:
    """The same rows; the progress has `observedMetrics[name]` with a count for each problem."""
    from pyspark.sql.functions import col, count_if, lit

    counts = [
        count_if(col(CLOCK) == lit(it)).alias(it.replace(" ", "_"))
        for it in (FUTURE, JUMP, NO_TIME)
    ]
    return frame.observe(name, *counts)


def _corrected(
    frame: DataFrame,
    event: str | Column,
    received: str | Column,
    offset_us: Column,
    own_us: Column,
    tolerance_us: int,
) -> DataFrame:
    from pyspark.sql.functions import abs as absolute
    from pyspark.sql.functions import least, lit, timestamp_micros, unix_micros, when

    event_us, received_us = unix_micros(as_column(event)), unix_micros(as_column(received))
    happened_us = event_us + offset_us
    odd = (
        when(happened_us.isNull() | own_us.isNull(), lit(NO_TIME))
        .when(absolute(own_us - offset_us) > tolerance_us, lit(JUMP))
        .when(happened_us > received_us + tolerance_us, lit(FUTURE))
    )
    # `least` ignores nulls; a row without one of the times has no time.
    bounded = when(happened_us.isNotNull(), least(happened_us, received_us))
    return frame.withColumns({EVENT_TIME: timestamp_micros(bounded), CLOCK: odd})


def _check_free(frame: DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name in frame.columns:
            raise ConfigError(
                f'there is a column {name} already: frame.withColumnRenamed("{name}", ...) before'
            )


class DeviceOffsets(Operator):
    """Replaces the offset of each row by the median of the device's last offsets."""

    def __init__(
        self, schema: pa.Schema, devices: Sequence[str], memory: int, forget_us: int
    ) -> None:
        self.identity = "offsets of device clocks"
        self.inputs = {_ROWS: InputSpec(schema, tuple(devices))}
        samples = pa.schema([schema.field(name) for name in (*devices, _RECEIVED, _OFFSET)])
        self.tables = {_ROWS: StateTableSpec(samples, tuple(devices), _RECEIVED)}
        self.schema_out = schema
        self._devices = tuple(devices)
        self._memory = memory
        self._forget_us = forget_us

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        samples = state[_ROWS]
        new = rows[_ROWS]
        is_whole = new.column(_OFFSET).is_valid()
        incomplete = new.filter(pa.compute.invert(is_whole))
        whole = new.filter(is_whole)
        results = [incomplete.select(self.schema_out.names)]
        if whole.num_rows:
            kept = samples.take(whole.select([HASH, *self._devices]))
            known = concat([kept, whole.select(kept.schema.names)])
            medians, remembered = self._medians(known)
            samples.append(known.take(pa.array(remembered)))
            place = whole.schema.get_field_index(_OFFSET)
            offsets = pa.array(medians[kept.num_rows :])
            corrected = whole.set_column(place, whole.schema.field(_OFFSET), offsets)
            results.append(corrected.select(self.schema_out.names))
        samples.expire(watermark_us - self._forget_us)
        last_us = max((page.last_us for page in samples.pages.values()), default=None)
        state.wake_at(None if last_us is None else last_us + self._forget_us + 1)
        return concat(results)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self.process(state, self.no_rows(), watermark_us)

    def _medians(self, known: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """Of each row the median of its device's last offsets; and which rows to remember. Rows
        that were received at the same time go by their offsets: a batch that is repeated may have
        them in another order, and must have the same medians."""
        codes = key_codes(known, self._devices)
        own = known.column(_OFFSET).to_numpy()
        order = np.lexsort((own, times_of(known, _RECEIVED), codes))
        ordered = codes[order]
        places = np.arange(len(order))
        begins = np.searchsorted(ordered, ordered)
        ends = np.searchsorted(ordered, ordered, side="right")
        offsets = own[order].astype(np.float64)
        first = np.maximum(begins, places - self._memory + 1)
        medians = np.empty(len(order), np.int64)
        medians[order] = np.rint(percentiles(offsets, first, places + 1, 0.5))
        return medians, order[places >= ends - self._memory]
