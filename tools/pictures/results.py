"""What the library makes of the twelve events: batches and streams on Spark, kept as JSON.

As a stream, every event is a micro-batch of its own. A result comes with the first batch whose
watermark allows it, and the watermark of a batch is that of the events before it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from tools.pictures.events import (
    CLOCKS,
    DELAY,
    EVENTS,
    HELD_BACK,
    NOON,
    PAYMENTS,
    SENT_AFTER_MINUTES,
    UNDER_WAY_MINUTES,
    Event,
    at,
    minute_of,
)

from millstream.pipelines.joins import as_of_join, changes, enrich, interval_join, table_join
from millstream.pipelines.patterns import match
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.times import (
    correct_clock,
    correct_device_clocks,
    mark_late,
    with_watermark_column,
)
from millstream.pipelines.windows import hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FILE = Path(__file__).with_name("results.json")
COLUMNS = "number int, user string, kind string, time timestamp, amount int"
SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("user", pa.string()),
        ("kind", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("amount", pa.int32()),
    ]
)
SIZE, HOP, GAP, NEAR = "10 minutes", "5 minutes", "5 minutes", "5 minutes"
LOW, HIGH = 4, 4  # of the pattern: at most, at least
SKIPS = ("past last row", "to next row", "to first high", "to last high")
SUMS = {"n": "count(*)", "total": "sum(amount)"}
Rows = list[dict[str, Any]]


def load() -> dict[str, Rows]:
    found: dict[str, Rows] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def save(results: dict[str, Rows]) -> None:
    sections = (f"  {json.dumps(name)}: {_lines(rows)}" for name, rows in results.items())
    FILE.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def _lines(rows: Rows) -> str:
    return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  ]"


def create_session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def compute(spark: SparkSession) -> dict[str, Rows]:
    """All results, in the order of the picture's parts."""
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    try:
        found = of_windows(spark) | of_policies(spark) | of_joins(spark) | of_clocks(spark)
        return found | of_patterns(spark)
    finally:
        spark.conf.set(STORE_PROVIDER, str(before))


def of_windows(spark: SparkSession) -> dict[str, Rows]:
    events = history(spark, EVENTS)
    by_user: dict[str, Any] = {"key": "user", "time": "time", **SUMS}
    windows = {
        "tumbling": tumbling(SIZE, **by_user),
        "hopping": hopping(SIZE, HOP, **by_user),
        "session": session(GAP, **by_user),
    }
    found = {
        name: plain(events.transform(it).orderBy("window_start", "user").collect())
        for name, it in windows.items()
    }
    last = events.transform(sliding(SIZE, key="user", time="time", **SUMS)).orderBy("number")
    return found | {"sliding": plain(last.select("number", "n", "total").collect())}


def of_policies(spark: SparkSession) -> dict[str, Rows]:
    by_user: dict[str, Any] = {"key": "user", "time": "time", **SUMS}
    divert = tumbling(SIZE, stragglers="divert", **by_user)
    correct = tumbling(SIZE, stragglers="correct", allowed_lateness="30 minutes", **by_user)
    change = tumbling(SIZE, emit="change", **by_user)
    sessions = session(
        GAP, stragglers="correct", allowed_lateness="30 minutes", emit="change", **by_user
    )
    return of_stream(
        spark,
        lambda frame: {
            "watermarks": mark_late(frame, "0 seconds", time="time").select("number", "_watermark"),
            "final": frame.transform(divert),
            "late": frame.transform(divert.late),
            "correct": frame.transform(correct),
            "change": frame.transform(change),
            "sessions": frame.transform(sessions),
        },
    )


def of_joins(spark: SparkSession) -> dict[str, Rows]:
    views = history(spark, [it for it in EVENTS if it.kind == "view"])
    buys = history(spark, [it for it in EVENTS if it.kind == "buy"])
    left = views.selectExpr("user", "time", "number as view")
    right = buys.selectExpr("user", "time as bought_at", "number as buy")
    near = left.transform(
        interval_join, right, "user", time="time", right_time="bought_at", band=NEAR, how="left"
    )
    as_of = left.transform(as_of_join, right, "user", time="time", valid_from="bought_at")
    return {
        "interval": plain(near.select("view", "buy").orderBy("view", "buy").collect()),
        "as_of": plain(as_of.select("view", "buy").orderBy("view").collect()),
    } | of_stream(
        spark, lambda frame: {"enrich": _enriched(frame), "tables": _joined_tables(frame)}
    )


def _enriched(frame: DataFrame) -> DataFrame:
    views = frame.where("kind = 'view'").selectExpr("user", "number as view")
    buys = frame.where("kind = 'buy'").selectExpr("user", "number as buy", "number as seen")
    return views.transform(enrich, buys, "user", sequence="seen").select("view", "buy")


def _joined_tables(frame: DataFrame) -> DataFrame:
    sides = [
        frame.where(f"kind = '{kind}'")
        .selectExpr("user", "number as seen", f"number as {kind}")
        .transform(changes, key="user", sequence="seen")
        .drop("seen")
        for kind in ("view", "buy")
    ]
    return sides[0].transform(table_join, sides[1], "user")


def of_clocks(spark: SparkSession) -> dict[str, Rows]:
    rows = []
    for it in EVENTS:
        fast = CLOCKS[it.user].fast_minutes
        sent = it.minute + SENT_AFTER_MINUTES
        came = sent + UNDER_WAY_MINUTES + HELD_BACK.get(it.number, 0)
        rows.append((it.number, it.user, at(it.minute + fast), at(sent + fast), at(came)))
    columns = "number int, user string, told timestamp, sent timestamp, received timestamp"
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    alone = frame.transform(correct_clock, "told", "sent", "received")
    robust = frame.transform(
        correct_device_clocks, "told", "sent", "received", key="user", memory=5
    )
    shown = ("number", "told", "received", "event_time", "_clock")
    return {
        "clock": plain(alone.select(*shown).orderBy("number").collect()),
        "device_clocks": plain(robust.select(*shown).orderBy("number").collect()),
    }


def of_patterns(spark: SparkSession) -> dict[str, Rows]:
    """The rows of each match, by mode of skipping."""
    rows = [(number, at(number), amount) for number, amount in enumerate(PAYMENTS, 1)]
    frame = spark.createDataFrame(rows, "number int, time timestamp, amount int")
    found = {}
    for skip in SKIPS:
        pattern = match(
            "low+ high+",
            time="time",
            where={"low": f"amount <= {LOW}", "high": f"amount >= {HIGH}"},
            skip=skip,
            rows="all",
            match="match_number()",
            variable="classifier()",
        )
        made = frame.transform(pattern).select("match", "number", "variable")
        found[f"skip {skip}"] = plain(made.orderBy("match", "number").collect())
    return found


def history(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    rows = [(it.number, it.user, it.kind, it.time, it.amount) for it in events]
    return spark.createDataFrame(rows, COLUMNS)


def of_stream(
    spark: SparkSession, function: Callable[[DataFrame], dict[str, DataFrame]]
) -> dict[str, Rows]:
    """What comes of streams, with `after`: the number of the event that it came with. They are one
    query, and one read for each."""
    found: dict[str, Rows] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        write_files(place / "in")
        reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(place / "in"))
        marked = frame.transform(with_watermark_column, str(place / "checkpoint"))
        made = function(marked.withWatermark("time", DELAY))
        found |= {name: [] for name in made}

        def keep(rows: DataFrame, batch_id: int) -> None:
            for name, row in sorted((it.name, it.row) for it in rows.collect()):
                after = {"after": min(batch_id + 1, len(EVENTS) + 1)}
                found[name].append(after | {it: _plain(v) for it, v in json.loads(row).items()})

        united = reduce(
            lambda one, two: one.unionAll(two), [as_json(it, name) for name, it in made.items()]
        )
        writer = united.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(place / "checkpoint")).start()
        query.awaitTermination()
    return found


def as_json(frame: DataFrame, name: str) -> DataFrame:
    """Rows of any columns as rows of the same two; moments as minutes."""
    from pyspark.sql.functions import lit, struct, to_json, unix_micros

    noon_us = int(NOON.timestamp()) * 1_000_000
    columns = [
        ((unix_micros(it.name) - noon_us) / 60e6).alias(it.name)
        if it.dataType.typeName() == "timestamp"
        else frame[it.name]
        for it in frame.schema
    ]
    text = to_json(struct(*columns), {"ignoreNullFields": "false"})
    return frame.select(lit(name).alias("name"), text.alias("row"))


def write_files(place: Path) -> None:
    """A file for each event; Spark takes the oldest first."""
    place.mkdir()
    for it in EVENTS:
        path = place / f"{it.number:02}.parquet"
        row = [[it.number], [it.user], [it.kind], [it.time], [it.amount]]
        pq.write_table(pa.table(row, schema=SCHEMA), path)
        os.utime(path, (it.number, it.number))


def plain(rows: Sequence[Row]) -> Rows:
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return minute_of(value)
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value
