"""Times through the harness: lateness by the watermark there was, clocks by what was received."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from millstream.pipelines.times import correct_clock, correct_device_clocks, mark_late
from millstream.testing.streams import Disorder, Source, check_stream, moments
from millstream.testing.streams.inputs import BEGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_rows_are_marked_by_the_watermark_of_their_batch(spark: SparkSession) -> None:
    times = moments("3 minutes", "5 seconds")
    events = Source(
        st.fixed_dictionaries({"at": st.one_of(times, times, times, st.none())}),
        schema="at timestamp, _offset long, _watermark timestamp",
        watermark=("at", "10 seconds"),
    )

    def marked(events: DataFrame) -> DataFrame:
        return mark_late(events, "20 seconds", time="at").drop("_watermark")

    def reference(events: DataFrame) -> DataFrame:
        return events.selectExpr(
            "at",
            "_offset",
            "at is null or coalesce(at + interval 20 seconds <= _watermark, false) as _late",
            "(unix_micros(_watermark) - unix_micros(at)) / 1e6D as _lateness",
        )

    outcomes = check_stream(
        marked,
        {"events": events},
        spark=spark,
        seed=4,
        disorder=Disorder(late=0.4),
        reference=reference,
    )
    found = {row["_late"] for it in outcomes for row in it.rows() if row["at"] is not None}
    assert found == {True, False}


def readings() -> list[dict[str, Any]]:
    """Of devices whose clocks are wrong, drift and jump; no two received at the same time."""
    rng = random.Random(4)
    found = []
    for number in range(40):
        received = BEGIN + timedelta(seconds=5 * number)
        device = rng.choice(["a", "b"])
        wrong = {"a": 3600, "b": -90}[device] + number + rng.choice([0, 0, 0, 500])
        sent = received - timedelta(seconds=wrong + rng.uniform(0, 2))
        found.append(
            {
                "device": device,
                "happened": sent - timedelta(seconds=rng.uniform(0, 30)),
                "sent": rng.choice([sent, sent, sent, sent, None]),
                "received": received,
            }
        )
    return found


READINGS = Source(
    readings(),
    schema="device string, happened timestamp, sent timestamp, received timestamp",
    watermark=("received", "10 seconds"),
)


def test_clocks_of_devices_are_corrected_alike(spark: SparkSession) -> None:
    """In the order in which rows were received, which is that of the log."""

    def corrected(readings: DataFrame) -> DataFrame:
        return correct_device_clocks(
            readings, "happened", "sent", "received", key="device", memory=5, buckets=2
        )

    check_stream(
        corrected,
        {"readings": READINGS},
        spark=spark,
        seed=1,
        disorder=Disorder(within="0 seconds"),
    )


def test_each_row_corrects_itself_in_any_order(spark: SparkSession) -> None:
    def corrected(readings: DataFrame) -> DataFrame:
        return correct_clock(readings, "happened", "sent", "received")

    check_stream(corrected, {"readings": READINGS}, spark=spark, seed=1, examples=1)
