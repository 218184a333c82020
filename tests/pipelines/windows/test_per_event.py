"""Sliding windows on Spark: equal to SQL's, as a stream and as a batch; bad input has no query."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.windows import sliding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = "user string, shop int, time timestamp, amount double"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = {
    "n": "count(*)",
    "spent": "sum(amount)",
    "doubled": "max(amount * 2)",
    "p90": "percentile(amount, 0.9)",
}


def orders(count: int, disorder_seconds: float) -> list[tuple[Any, ...]]:
    rng = random.Random(7)
    times = [rng.uniform(0, 300) for _ in range(count)]
    times.sort(key=lambda seconds: seconds + rng.uniform(0, disorder_seconds))
    return [
        (
            rng.choice(["ann", "bob", None]),
            rng.choice([1, 2]),
            BEGIN + timedelta(seconds=seconds),
            rng.choice([None, round(rng.uniform(0, 100), 2)]),
        )
        for seconds in times
    ]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Any:
    """Files that come one after another, as a stream with a watermark; and as a batch."""
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    path = str(tmp_path / "in")
    rows = orders(600, disorder_seconds=9)
    for begin in range(0, 600, 120):
        part = spark.createDataFrame(rows[begin : begin + 120], COLUMNS)
        part.coalesce(1).write.mode("append").parquet(path)
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    yield reader.parquet(path).withWatermark("time", "10 seconds"), spark.read.parquet(path)
    spark.conf.set(STORE_PROVIDER, str(before))


def collect(result: DataFrame, checkpoint: Path) -> tuple[list[Row], list[Any]]:
    found: list[Row] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        found.extend(rows.collect())

    writer = result.writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return found, list(query.recentProgress)


def by_sql(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    frame.createOrReplaceTempView("orders")
    result = frame.sparkSession.sql(
        """
        select *, count(*) over w, max(amount * 2) over w, round(percentile(amount, 0.9) over w, 6)
        from orders window w as (partition by user, shop order by time
            range between interval 30 seconds preceding and current row)
        """
    )
    return Counter(map(tuple, result.collect()))


def comparable(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row.user,
            row.shop,
            row.time,
            row.amount,
            row.n,
            row.doubled,
            row.p90 and round(row.p90, 6),
        )
        for row in rows
    )


def test_stream_batch_and_sql_agree(stream: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import col

    live, history = stream
    keys: Any = ["user", col("shop")]
    waiting: dict[str, Any] = {"emit": "final", "allowed_lateness": "30 seconds"}
    recent = sliding("30 seconds", key=keys, time="time", **waiting, **SPEC)
    of_batch = history.transform(recent).collect()
    assert comparable(of_batch) == by_sql(history)
    end = [("end", 0, BEGIN + timedelta(hours=1), 0.0)]  # moves the watermark past all others
    end_frame = history.sparkSession.createDataFrame(end, COLUMNS)
    end_frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    of_stream, progress = collect(live.transform(recent), tmp_path / "checkpoint")
    assert Counter(row for row in of_stream if row.shop) == Counter(of_batch), "to the last bit"
    assert {row["_kind"] for row in of_stream} == {"final"}
    metrics = [it.observedMetrics for it in progress if it.numInputRows]
    counted = [it["late.sliding 30 seconds"].dropped for it in metrics]
    assert counted == [0] * 6


def test_stragglers_are_diverted_or_corrected(stream: Any, tmp_path: Path) -> None:
    live, _ = stream
    # A batch more, so that what came before is final when the stragglers come.
    for user, seconds in [("bob", [300]), ("ann", [1, 285])]:
        rows = [(user, 1, BEGIN + timedelta(seconds=it), 5.0) for it in seconds]
        frame = live.sparkSession.createDataFrame(rows, COLUMNS)
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    recent = sliding(
        "30 seconds",
        key="user",
        time="time",
        emit="final",
        stragglers="correct",
        allowed_lateness="30 seconds",
        n="count(*)",
    )
    found, _ = collect(live.transform(recent.with_late), tmp_path / "checkpoint")
    (too_late,) = [row.late for row in found if row.late is not None]
    assert (too_late["_kind"], too_late.user) == ("late", "ann")
    assert too_late["_lateness"] > 200
    results = [row.results for row in found if row.results is not None]
    corrections = [row for row in results if row["_kind"] == "correction" and row["_old"]]
    assert corrections
    assert all(row.n == row["_old"].n + 1 for row in corrections)


@pytest.mark.parametrize(
    ("arguments", "aggregates", "message"),
    [
        (("nobody", "time", "1 minute"), {}, "there is no column 'nobody': user, shop"),
        (("user", "amount", "1 minute"), {}, "amount is double: convert it with"),
        (("user", "time", "1 month"), {}, "a month has no fixed length"),
        (("user", "time", "1 minute"), {"x": "sum(user)"}, "x: there is no sum of string"),
        (("user", "time", "1 minute"), {"shop": "count(*)"}, "there is a column shop already"),
        (("user", "time", "1 minute"), {"stragglers": "keep"}, "choose one of drop, divert"),
        (("user", "time", "1 minute"), {"emit": "never"}, '"change" or "every 10 seconds"'),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    stream: Any, arguments: Any, aggregates: Any, message: str
) -> None:
    live, history = stream
    key, time, interval = arguments

    def slide(frame: DataFrame) -> DataFrame:
        return sliding(interval, key=key, time=time, **({"n": "count(*)"} | aggregates))(frame)

    for frame in (live, history):
        with pytest.raises(ConfigError) as refused:
            slide(frame)
        assert message in str(refused.value)


def test_stream_without_watermark_is_refused_with_the_line_to_add(spark: SparkSession) -> None:
    endless = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=r'frame\.withWatermark\("timestamp", "1 minute"\)'):
        sliding("1 minute", key="value", time="timestamp", n="count(*)")(endless)


def test_each_event_has_one_result_at_its_arrival(stream: Any, tmp_path: Path) -> None:
    """By default: in the batch it comes with, by what has come so far, and never again."""
    live, history = stream
    recent = sliding("30 seconds", key="user", time="time", n="count(*)")
    found, progress = collect(live.transform(recent), tmp_path / "checkpoint")
    assert {row["_kind"] for row in found} == {"arrival"}
    rows = [it.sink.numOutputRows for it in progress if it.numInputRows]
    dropped = sum(it.observedMetrics["late.sliding 30 seconds"].dropped for it in progress)
    assert len(found) == history.count() - dropped
    assert len(rows) == 5, "none waits for a later batch"
    assert recent(history).columns == live.transform(recent).columns


def test_late_events_come_out_of_late(stream: Any, tmp_path: Path) -> None:
    from millstream.pipelines.times import with_watermark_column

    _, history = stream
    checkpoint = tmp_path / "checkpoint"
    reader = history.sparkSession.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    live = reader.parquet(str(tmp_path / "in"))  # without a watermark
    frame = with_watermark_column(live, str(checkpoint)).withWatermark("time", "0 seconds")
    recent = sliding("30 seconds", key="user", time="time", stragglers="divert", n="count(*)")
    late, _ = collect(frame.transform(recent.late), checkpoint)
    both, _ = collect(
        live.withWatermark("time", "0 seconds").transform(recent.with_late), tmp_path / "both"
    )
    expected = [row.late for row in both if row.late is not None]
    assert late
    assert Counter(late) == Counter(expected)


def test_results_are_of_decimals_strings_and_times(stream: Any) -> None:
    """As SQL has them, in value and in type."""
    from pyspark.sql import functions as F  # noqa: N812

    _, history = stream
    frame = history.withColumn("money", F.col("amount").cast("decimal(10, 2)"))
    recent = sliding(
        "30 seconds",
        key=("user", "shop"),
        time="time",
        spent="sum(money)",
        mean=F.avg("money"),
        most=F.max(F.col("money") * 2),
        last="max(time)",
        who="min(user)",
        buyers="count(distinct money)",
    )
    found = frame.transform(recent).drop("_kind")
    frame.createOrReplaceTempView("orders")
    expected = frame.sparkSession.sql(
        """
        select *, sum(money) over w as spent, avg(money) over w as mean,
            max(money * 2) over w as most, max(time) over w as last, min(user) over w as who,
            size(collect_set(money) over w) as buyers
        from orders window w as (partition by user, shop order by time
            range between interval 30 seconds preceding and current row)
        """
    )
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected.collect()))
    kinds = [it.dataType for it in found.schema]
    assert kinds[:-1] == [it.dataType for it in expected.schema][:-1]


def test_what_cannot_be_meant_is_refused_when_it_is_defined() -> None:
    usual: dict[str, Any] = {"key": "user", "time": "time"}
    for arguments, message in (
        ({"n": "count(*)", "keys": "user"}, "keys='user' is no aggregate; did you mean key=?"),
        ({"n": "sum(a) / sum(b)"}, "here an aggregate is one call"),
        (
            {"n": "count(*)", "stragglers": "correct", "allowed_lateness": "1 hour"},
            'choose emit="final" or "change"',
        ),
        (
            {"n": "count(*)", "stragglers": "correct", "emit": "final"},
            "corrects nothing without allowed_lateness",
        ),
        ({"n": "sum(distinct x)"}, "only count has distinct values here"),
        ({"n": "count(*)", "buckets": 0}, "buckets=0: it must be an integer"),
        ({"n": "count(*)", "key": 5}, "5 is no column: give a name"),
    ):
        with pytest.raises(ConfigError) as refused:
            sliding("1 minute", **usual | arguments)
        assert message in str(refused.value)
