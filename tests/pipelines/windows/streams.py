"""Streams for tests of windows: files that come one after another, one a micro-batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.pipelines.times import with_watermark_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "user string, time timestamp, amount double"
SCHEMA = pa.schema(
    [("user", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("amount", pa.float64())]
)
END = ("end", 1_000_000, 0.0)  # moves the watermark past all others


@dataclass
class Files:
    """Each batch is a file of (user, seconds, amount)."""

    spark: SparkSession
    place: Path

    def write(self, batches: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        place = self.place / "in"
        place.mkdir(exist_ok=True)
        for number, batch in enumerate(batches, len(list(place.iterdir()))):
            path = self.place / f"in/{number:04}.parquet"
            rows = [(user, moment(seconds), amount) for user, seconds, amount in batch]
            columns = [list(column) for column in zip(*rows, strict=True)]
            pq.write_table(pa.table(columns, schema=SCHEMA), path)
            os.utime(path, (number, number))  # Spark takes the oldest first

    def stream(self, delay: str) -> DataFrame:
        reader = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(f"{self.place}/in")
        with_mark = frame.transform(with_watermark_column, str(self.place / "checkpoint"))
        return with_mark.withWatermark("time", delay)

    def history(self) -> DataFrame:
        return self.spark.read.schema(COLUMNS).parquet(f"{self.place}/in")

    def run(self, result: DataFrame) -> Run:
        found: list[Row] = []

        def keep(rows: DataFrame, batch_id: int) -> None:
            found.extend(rows.collect())

        writer = result.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()
        query.awaitTermination()
        return Run(found, list(query.recentProgress))


@dataclass
class Run:
    """What came out of a query, and its progress."""

    rows: list[Row]
    progress: list[Any]

    @property
    def dropped_by_spark(self) -> int:
        operators = [it for progress in self.progress for it in progress.stateOperators]
        assert operators
        return sum(int(it.numRowsDroppedByWatermark) for it in operators)

    def dropped_by_us(self, name: str) -> int:
        metrics = [it.observedMetrics for it in self.progress if it.numInputRows]
        return sum(int(it[name].dropped) for it in metrics)


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else BEGIN + timedelta(seconds=seconds)


def seconds_of(time: datetime) -> float:
    """Of a timestamp that Spark collected, in a session whose time zone is UTC."""
    return (time.astimezone(UTC) - BEGIN).total_seconds()
