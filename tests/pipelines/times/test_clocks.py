"""Clocks that are wrong: medians against a loop, expressions on Spark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.times import (
    cap_future,
    correct_clock,
    correct_device_clocks,
    count_odd_clocks,
    three_times,
)
from millstream.pipelines.times.clocks import DeviceOffsets
from tests.drawing import draws

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("device", pa.string()), ("_received", TIME), ("_offset_us", pa.int64())]
)
MEMORY = 5


class Sample(NamedTuple):
    device: str
    offset_us: int | None


SAMPLES = st.builds(
    Sample, st.sampled_from(["pump", "fan"]), st.none() | st.integers(-(10**6), 10**6)
)


def rows(samples: Sequence[Sample], first: int) -> dict[str, pa.RecordBatch]:
    """Each is received a microsecond after the one before."""
    found = [
        {"id": first + n, "device": it.device, "_received": first + n, "_offset_us": it.offset_us}
        for n, it in enumerate(samples)
    ]
    return {"rows": pa.RecordBatch.from_pylist(found, schema=SCHEMA)}


def medians(samples: Sequence[Sample]) -> list[int | None]:
    seen: dict[str, list[int]] = {"pump": [], "fan": []}
    found: list[int | None] = []
    for it in samples:
        if it.offset_us is None:
            found.append(None)
            continue
        seen[it.device].append(it.offset_us)
        found.append(round(statistics.median(seen[it.device][-MEMORY:])))
    return found


@settings(max_examples=draws(60))
@given(st.lists(st.lists(SAMPLES, max_size=8), max_size=6))
def test_offset_is_the_median_of_the_devices_last_rows_however_the_stream_is_cut(
    batches: list[list[Sample]],
) -> None:
    trial = Trial(DeviceOffsets(SCHEMA, ["device"], MEMORY, 10**9), buckets=2)
    found: dict[int, Any] = {}
    for batch in batches:
        result = trial.feed(rows(batch, len(found)))
        found |= dict(
            zip(*(result[name].to_pylist() for name in ("id", "_offset_us")), strict=True)
        )
    samples = [it for batch in batches for it in batch]
    assert [found[n] for n in range(len(samples))] == medians(samples)
    trial.finish()
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)


def offsets_of(offsets: Sequence[int], memory: int = 7) -> list[int]:
    trial = Trial(DeviceOffsets(SCHEMA, ["device"], memory, 10**9))
    result = trial.feed(rows([Sample("pump", it) for it in offsets], 0))
    by_id = dict(zip(*(result[name].to_pylist() for name in ("id", "_offset_us")), strict=True))
    return [by_id[n] for n in range(len(offsets))]


def test_outlier_does_not_move_the_clock() -> None:
    found = offsets_of([100, 101, 99, 100, 9_000_000, 100, 102])
    assert max(found) <= 102


def test_drift_is_followed_within_half_of_the_memory() -> None:
    drifting = list(range(0, 1000, 10))
    found = offsets_of(drifting)
    assert all(own - offset <= 30 for own, offset in zip(drifting, found, strict=True))


def test_clock_that_was_set_is_followed_when_most_rows_agree() -> None:
    found = offsets_of([0] * 10 + [3600] * 10)
    assert found[:13] == [0] * 13
    assert found[13:] == [3600] * 7


def test_devices_that_are_silent_are_forgotten() -> None:
    trial = Trial(DeviceOffsets(SCHEMA, ["device"], MEMORY, 50))
    trial.feed(rows([Sample("pump", 7)] * 5, 0))
    (row,) = trial.feed(rows([Sample("pump", 1000)], 100), 100).to_pylist()
    assert row["_offset_us"] == 7, "what is there is used until the batch is over"
    trial.advance(155)
    (row,) = trial.feed(rows([Sample("pump", 2000)], 300), 300).to_pylist()
    assert row["_offset_us"] == 2000


def test_rows_of_one_moment_have_the_same_medians_in_any_order() -> None:
    """As when Spark repeats a batch and shuffles it again."""
    found = []
    for own in ([3, 1, 2, 9], [9, 2, 1, 3]):
        moment = pa.array([1000] * 4, pa.timestamp("us", tz="UTC"))
        batch = rows([Sample("pump", it) for it in own], 0)["rows"]
        batch = batch.set_column(batch.schema.get_field_index("_received"), "_received", moment)
        trial = Trial(DeviceOffsets(SCHEMA, ["device"], 2, 50))
        found.append(sorted(row["_offset_us"] for row in trial.feed({"rows": batch}).to_pylist()))
    assert found[0] == found[1]


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


COLUMNS = "id int, device string, event timestamp, sent timestamp, received timestamp"


def test_rows_are_corrected_by_their_own_three_times(spark: SparkSession) -> None:
    given_rows = [
        (1, "pump", at(10), at(12), at(3612)),  # an hour slow
        (2, "pump", at(5000), at(5002), at(2)),  # fast
        (3, "pump", at(9000), at(10), at(20)),  # it says that it happens after it was sent
        (4, "pump", at(10), None, at(20)),
        (5, "pump", at(30), at(10), at(20)),  # within the tolerance, but not after `received`
    ]
    frame = spark.createDataFrame(given_rows, COLUMNS)  # type: ignore[type-var]
    found = frame.transform(correct_clock, "event", "sent", "received").selectExpr(
        "id", "unix_seconds(event_time) - unix_seconds(timestamp'2026-01-01') as s", "_clock"
    )
    assert {row.id: (row.s, row["_clock"]) for row in found.collect()} == {
        1: (3610, None),
        2: (0, None),
        3: (20, "future"),
        4: (None, "no time"),
        5: (20, None),
    }


def test_devices_clocks_are_corrected_and_jumps_are_flagged(spark: SparkSession) -> None:
    given_rows = [(n, "pump", at(n), at(n), at(n + 100)) for n in range(20)]
    given_rows[10] = (10, "pump", at(10), at(10 - 5000), at(110))  # `sent` is false
    frame = spark.createDataFrame(given_rows, COLUMNS)
    found = frame.transform(correct_device_clocks, "event", "sent", "received", key="device")
    found = found.selectExpr(
        "id", "unix_seconds(event_time) - unix_seconds(timestamp'2026-01-01') as s", "_clock"
    )
    assert {row.id: (row.s, row["_clock"]) for row in found.collect()} == {
        n: (n + 100, "jump" if n == 10 else None) for n in range(20)
    }


def test_times_are_named_and_names_that_are_taken_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(at(1), at(2))], "happened timestamp, _timestamp timestamp")
    named = frame.transform(three_times, "happened")
    assert named.columns[2:] == ["event_time", "append_time", "processing_time"]
    with pytest.raises(ConfigError, match="there is a column event_time already"):
        correct_clock(named, "happened", "happened", "_timestamp")
    with pytest.raises(ConfigError, match="memory 0: choose between"):
        correct_device_clocks(frame, "happened", "happened", "happened", key="happened", memory=0)


def test_event_from_the_future_is_flagged_counted_and_does_not_drag_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    given_rows = [
        (1, at(10), at(12)),
        (2, at(90_000), at(14)),  # a day ahead
        (3, at(40), at(20)),  # within the tolerance, but not after it was received
        (4, None, at(21)),
    ]
    columns = "id int, happened timestamp, received timestamp"
    for number, row in enumerate(given_rows):
        spark.createDataFrame([row], columns).coalesce(1).write.mode("append").parquet(  # type: ignore[type-var]
            f"{tmp_path}/in/{number}"
        )
    rows = spark.readStream.schema(columns).parquet(f"{tmp_path}/in/*")
    capped = rows.transform(cap_future, "happened", "received").transform(count_odd_clocks)
    found: dict[int, Any] = {}

    def keep(batch: Any, batch_id: int) -> None:
        found.update({row.id: row for row in batch.collect()})

    marked = capped.withWatermark("event_time", "0 seconds")
    writer = marked.writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    assert query.awaitTermination(120)
    assert {it: row["_clock"] for it, row in found.items()} == {
        1: None,
        2: "future",
        3: None,
        4: "no time",
    }
    assert [found[it].event_time == found[it].received for it in (1, 2, 3)] == [False, True, True]
    (progress,) = [it for it in query.recentProgress if it.numInputRows]
    assert progress.observedMetrics["odd_clocks"].asDict() == {
        "future": 1,
        "jump": 0,
        "no_time": 1,
    }
    assert progress.eventTime["max"].startswith("2026-01-01T00:00:20"), "and not a day ahead"
