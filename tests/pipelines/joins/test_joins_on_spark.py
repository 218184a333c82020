"""Joins on Spark: a stream ends with what SQL computes from all rows; bad input has no query."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.hidden import hide_watermark, show_watermark
from millstream.pipelines.joins import (
    as_of_join,
    changes,
    enrich,
    interval_join,
    late_rows,
    table_join,
)
from millstream.pipelines.plans import analyzed, bucketed_operators
from millstream.pipelines.running.status import kept_state
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.times import with_watermark_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SALES = "country string, sold_at timestamp, sale int"
RATES = "country string, since timestamp, rate int"
LOG = "id int, author string, text string, offset long, gone boolean"
FOLLOWS = "follower string, author string, place long, unfollowed boolean"


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


@dataclass
class Streams:
    """Files that come one after another, one of each side in a micro-batch."""

    spark: SparkSession
    place: Path

    def write(self, name: str, columns: str, batches: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        directory = self.place / name
        directory.mkdir()
        for number, batch in enumerate(batches):
            part = str(self.place / f"part-{name}-{number}")
            self.spark.createDataFrame(list(batch), columns).coalesce(1).write.parquet(part)
            (written,) = Path(part).glob("*.parquet")
            target = written.rename(directory / f"{number:04}.parquet")
            os.utime(target, (number, number))  # Spark takes the oldest first

    def again(self) -> Streams:
        """The same files, for another query."""
        place = self.place / "again"
        place.mkdir()
        for name in ("sales", "rates"):
            (place / name).symlink_to(self.place / name)
        return Streams(self.spark, place)

    def stream(self, name: str, columns: str) -> DataFrame:
        reader = self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.place / name))

    def marked(self, name: str, columns: str, time: str, delay: str) -> DataFrame:
        with_mark = self.stream(name, columns).transform(
            with_watermark_column, str(self.place / "checkpoint")
        )
        return with_mark.withWatermark(time, delay)

    def batch(self, name: str, columns: str) -> DataFrame:
        return self.spark.read.schema(columns).parquet(str(self.place / name))

    def run(self, result: DataFrame) -> tuple[list[Row], list[Any]]:
        found: list[Row] = []

        def keep(rows: DataFrame, batch_id: int) -> None:
            found.extend(rows.collect())

        writer = result.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()
        query.awaitTermination()
        return found, list(query.recentProgress)


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Any:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield Streams(spark, tmp_path)
    spark.conf.set(STORE_PROVIDER, str(before))


def cut(rows: Sequence[tuple[Any, ...]], count: int) -> list[Sequence[tuple[Any, ...]]]:
    size = -(-len(rows) // count)
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def write_sales(streams: Streams) -> None:
    """In disorder by some seconds; at the end, a sale that moves the watermark past all others."""
    rng = random.Random(5)
    moments = sorted(
        (rng.uniform(0, 200) for _ in range(400)), key=lambda it: it + rng.random() * 8
    )
    sales = [(rng.choice(["at", "ch", None]), at(it), place) for place, it in enumerate(moments)]
    rates = [(rng.choice(["at", "ch"]), at(it), place) for place, it in enumerate(moments[::10])]
    streams.write("sales", SALES, [*cut(sales, 2), [("end", at(10_000), -1)]])
    streams.write("rates", RATES, cut(rates, 2))


def test_as_of_join_of_streams_is_that_of_sql(streams: Streams) -> None:
    write_sales(streams)
    arguments = {"time": "sold_at", "valid_from": "since"}
    history, rates = streams.batch("sales", SALES), streams.batch("rates", RATES)
    history.createOrReplaceTempView("sales")
    rates.createOrReplaceTempView("rates")
    expected = Counter(
        map(
            tuple,
            streams.spark.sql(
                """
                select sale, max_by(rate, since) from sales left join rates
                on sales.country = rates.country and since <= sold_at group by sale
                """
            ).collect(),
        )
    )
    of_batch = history.transform(as_of_join, rates, "country", **arguments).collect()
    assert Counter((it.sale, it.rate) for it in of_batch) == expected
    live = streams.stream("sales", SALES).withWatermark("sold_at", "20 seconds")
    joined = live.transform(as_of_join, streams.stream("rates", RATES), "country", **arguments)
    of_stream, progress = streams.run(joined)
    del expected[(-1, None)]  # what the last sale waits for does not come
    assert Counter((it.sale, it.rate) for it in of_stream if it.sale >= 0) == expected
    counted = [it.observedMetrics["late.as_of"].dropped for it in progress if it.numInputRows]
    assert set(counted) == {0}


def test_table_join_of_change_logs_adds_up_to_the_join(streams: Streams) -> None:
    rng = random.Random(6)
    people = ["ann", "bea", "carl"]
    posts = [
        (rng.randint(1, 9), rng.choice(people), rng.choice("xy"), place, rng.random() < 0.3)
        for place in range(80)
    ]
    follows = [
        (rng.choice(people), rng.choice(people), place, rng.random() < 0.4) for place in range(80)
    ]
    streams.write("posts", LOG, cut(posts, 2))
    streams.write("follows", FOLLOWS, cut(follows, 2))
    left = streams.stream("posts", LOG).transform(
        changes, key="id", sequence="offset", delete="gone", buckets=4
    )
    right = streams.stream("follows", FOLLOWS).transform(
        changes, key=["follower", "author"], sequence="place", delete="unfollowed", buckets=4
    )
    view: Counter[tuple[Any, ...]] = Counter()
    for row in streams.run(left.transform(table_join, right, "author", buckets=4))[0]:
        view[row.follower, row.id, row.author, row.text] += row["_weight"]
    alive = {it[0]: it for it in posts}
    following = {it[:2]: it for it in follows}
    expected = Counter(
        (follower, post, author, text)
        for post, author, text, _, gone in alive.values()
        for follower, followed, _, left_again in following.values()
        if author == followed and not gone and not left_again
    )
    assert {it: n for it, n in view.items() if n} == expected


def test_enriched_rows_have_the_table_of_their_batch(streams: Streams) -> None:
    streams.write("clicks", "author string, click int", [[("ann", 1)], [("ann", 2)], [("ann", 3)]])
    log = [(1, "ann", "x", 0, False), (1, "ann", "y", 1, False), (1, "ann", None, 2, True)]
    streams.write("users", LOG, [[it] for it in log])
    clicks = streams.stream("clicks", "author string, click int")
    users = streams.stream("users", LOG)
    result = clicks.transform(enrich, users, "author", sequence="offset", delete="gone")
    found, _ = streams.run(result)
    assert sorted((it.click, it.text) for it in found if it.text) == [(1, "x"), (2, "y")]
    assert [it.text for it in found if it.click == 3] == [None]


@pytest.mark.parametrize("how", ["left", "inner"])
def test_stream_is_enriched_from_a_table_that_is_no_stream(streams: Streams, how: Any) -> None:
    """Its rows as they are, or the current rows of a changelog."""
    streams.write("clicks", "author string, click int", [[("ann", 1), ("bea", 2), (None, 3)]])
    clicks = streams.stream("clicks", "author string, click int")
    towns = streams.spark.createDataFrame(
        [("ann", "Graz"), (None, "x")], "user string, town string"
    )
    log = streams.spark.createDataFrame(
        [(1, "ann", "x", 0, False), (1, "ann", "y", 1, False), (2, "bea", "z", 2, True)], LOG
    )
    placed = clicks.transform(enrich, towns, {"author": "user"}, how=how)
    both = placed.transform(
        enrich, log.drop("id"), "author", sequence="offset", delete="gone", how=how
    )
    assert both.columns == ["author", "click", "town", "text"]
    found = sorted(tuple(it)[1:] for it in streams.run(both)[0])
    alone = [(2, None, None), (3, None, None)] if how == "left" else []
    assert found == [(1, "Graz", "y"), *alone]


def test_enriched_rows_keep_their_watermark_for_windows(streams: Streams) -> None:
    from pyspark.sql.functions import window

    clicks = "author string, clicked_at timestamp"
    streams.write(
        "clicks",
        clicks,
        [[("ann", at(1)), ("ann", at(2))], [("bea", at(3)), ("ann", at(70))], [("x", at(900))]],
    )
    streams.write("users", LOG, [[(1, "ann", "vienna", 0, False)], [(2, "bea", "bern", 1, False)]])
    marked = streams.stream("clicks", clicks).withWatermark("clicked_at", "1 minute")
    result = marked.transform(enrich, streams.stream("users", LOG), "author", sequence="offset")
    counted = result.groupBy(window("clicked_at", "1 minute"), "text").count()
    found, _ = streams.run(counted)
    assert Counter({(it.window.start.minute, it.text): it["count"] for it in found}) == {
        (0, "vienna"): 2,
        (0, "bern"): 1,
        (1, "vienna"): 1,
    }


@pytest.mark.parametrize("how", ["left", "inner"])
def test_rows_wait_for_their_row_of_the_table(streams: Streams, how: Any) -> None:
    """A row of a key that is excluded, or never comes, has no match in the end."""
    from pyspark.sql.functions import col

    clicks = "author string, clicked_at timestamp"
    early = [("ann", at(1)), ("bea", at(2)), ("carl", at(3)), (None, at(4))]
    streams.write("clicks", clicks, [early, [("ann", at(5))], [("x", at(900))]])
    log = [(1, "ann", "vienna", 0, False), (2, "bea", "bern", 1, False)]
    streams.write("users", LOG, [[(9, "zoe", "graz", 9, False)], log])
    marked = streams.stream("clicks", clicks).withWatermark("clicked_at", "1 second")
    users = streams.stream("users", LOG).select("author", "text", "offset")
    result = marked.transform(
        enrich,
        users,
        "author",
        sequence="offset",
        where=col("text") != "bern",
        how=how,
        time="clicked_at",
        wait="1 minute",
    )
    found, _ = streams.run(result)
    matched = [("ann", 1, "vienna"), ("ann", 5, "vienna")]
    alone = [("None", 4, "None"), ("bea", 2, "None"), ("carl", 3, "None")]
    assert sorted(
        (str(it.author), it.clicked_at.second, str(it.text)) for it in found if it.author != "x"
    ) == sorted([*matched, *(alone if how == "left" else [])])


def test_rows_wait_without_the_watermark_of_their_batch(streams: Streams) -> None:
    """It would be old by the time they are emitted. And state of a function that did not select
    the column has none, and is refused if one is added."""
    rate = streams.spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    rows = hide_watermark(rate.withColumn("_watermark", rate.timestamp))
    users = rate.selectExpr("value", "value as place", "'ann' as name")
    join = partial(enrich, rows, users, "value", sequence="place")
    assert show_watermark(join()).columns == ["timestamp", "value", "name", "_watermark"]
    waited = join(time="timestamp", wait="1 minute")
    (operator,) = bucketed_operators(analyzed(waited))
    assert operator.columns == {"table": ["place", "name"], "waiting": []}
    assert show_watermark(waited) is waited


def test_waiting_needs_a_time_with_a_watermark(streams: Streams) -> None:
    streams.write("clicks", "author string, clicked_at timestamp", [[("ann", at(1))]])
    streams.write("users", LOG, [[(1, "ann", "vienna", 0, False)]])
    clicks = streams.stream("clicks", "author string, clicked_at timestamp")
    users = streams.stream("users", LOG)
    with pytest.raises(ConfigError, match="give both time= and wait="):
        enrich(clicks, users, "author", sequence="offset", wait="1 minute")
    with pytest.raises(ConfigError, match="needs a watermark on clicked_at"):
        enrich(clicks, users, "author", sequence="offset", time="clicked_at", wait="1 minute")


def pairs_of(rows: list[Row]) -> Counter[tuple[int | None, int | None]]:
    """Without the rows that only move the watermark."""
    return Counter((it.sale, it.rate) for it in rows if -1 not in (it.sale, it.rate))


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_interval_join_of_streams_is_that_of_sql(streams: Streams, how: str) -> None:
    write_sales(streams)
    streams.write("end", RATES, [[("end", at(10_000), -1)]])
    rates = streams.place / "rates"
    (streams.place / "end/0000.parquet").rename(rates / "9999.parquet")
    os.utime(rates / "9999.parquet", (99, 99))
    arguments = {"time": "sold_at", "right_time": "since", "band": ("2 seconds", "5 seconds")}
    streams.batch("sales", SALES).createOrReplaceTempView("sales")
    streams.batch("rates", RATES).createOrReplaceTempView("rates")
    expected = streams.spark.sql(
        f"""
        select sale, rate from sales {how} join rates on sales.country = rates.country and since
        between sold_at - interval 2 seconds and sold_at + interval 5 seconds
        """
    )
    live = streams.marked("sales", SALES, "sold_at", "20 seconds")
    table = streams.marked("rates", RATES, "since", "20 seconds")
    result = live.transform(interval_join, table, "country", how=how, **arguments)
    found, progress = streams.run(result)
    assert pairs_of(found) == pairs_of(expected.collect())
    operators = [it for one in progress for it in one.stateOperators]
    assert operators
    assert sum(int(it.numRowsDroppedByWatermark) for it in operators) == 0


def test_join_without_a_bound_joins_all_and_shows_what_it_keeps(streams: Streams) -> None:
    sales = [[("at", at(n * 1000), n), ("ch", at(n), -n)] for n in range(1, 4)]
    rates = [[("at", at(n), 10 * n)] for n in range(1, 4)]
    streams.write("sales", SALES, sales)
    streams.write("rates", RATES, rates)
    arguments = {"time": "sold_at", "right_time": "since", "band": None, "unbounded": True}
    result = streams.stream("sales", SALES).transform(
        interval_join, streams.stream("rates", RATES), "country", **arguments
    )
    found, progress = streams.run(result)
    expected = Counter((a, 10 * b) for a in range(1, 4) for b in range(1, 4))
    assert Counter((it.sale, it.rate) for it in found) == expected
    kept = [kept_state(json.loads(it.json)) for it in progress if it.numInputRows]
    assert [rows for rows, _ in kept] == [3, 6, 9], "nothing is ever forgotten, and one can see it"
    assert all(size for _, size in kept)


def write_stragglers(streams: Streams) -> None:
    """Sales 1 and 3 have their rate; 2 comes when the watermark is far beyond it."""
    streams.write(
        "sales",
        SALES,
        [[("at", at(100), 1)], [("at", at(5_000), -1)], [("at", at(101), 2), ("at", at(4_999), 3)]],
    )
    streams.write(
        "rates",
        RATES,
        [[("at", at(102), 10)], [("at", at(5_000), -1)], [("at", at(5_001), 30)]],
    )


def late_counts(progress: list[Any], name: str) -> int:
    return sum(it.observedMetrics[name].dropped for it in progress if it.numInputRows)


def test_stragglers_of_a_join_are_counted_or_diverted(streams: Streams) -> None:
    write_stragglers(streams)
    sales = streams.marked("sales", SALES, "sold_at", "20 seconds")
    rates = streams.marked("rates", RATES, "since", "20 seconds")
    arguments = {"time": "sold_at", "right_time": "since", "band": "5 seconds", "how": "left"}
    found, progress = streams.run(sales.transform(interval_join, rates, "country", **arguments))
    pairs = Counter((it.sale, it.rate) for it in found)
    assert pairs == {(1, 10): 1, (3, -1): 1, (3, 30): 1, (-1, -1): 1, (-1, 30): 1}
    assert late_counts(progress, "late.interval.left") == 1
    assert late_counts(progress, "late.interval.right") == 0
    diverted = sales.transform(interval_join, rates, "country", stragglers="divert", **arguments)
    assert diverted.columns == ["country", "sold_at", "sale", "since", "rate"]
    again = streams.again()
    late, _ = again.run(
        again.marked("sales", SALES, "sold_at", "20 seconds").transform(
            late_rows, "5 seconds", time="sold_at"
        )
    )
    assert [(it.sale, it["_lateness"]) for it in late] == [(2, 4_980 - 101)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "nobody"}, "there is no column 'nobody'"),
        ({"on": {"sale": "country"}}, "sale is int and country is string: cast one"),
        ({"time": "sale"}, "sale is int: convert it with"),
        ({"how": "outer"}, "choose one of inner, left"),
        ({"stragglers": "keep"}, "choose one of drop, divert"),
        ({"stragglers": "correct"}, "then table_join, which corrects earlier output"),
        ({"sequence": "country"}, "sequence is country, which is string: use a column of"),
        ({"delete": "rate"}, "delete is rate, which is int: use a condition"),
        ({"allowed_lateness": "1 month"}, "a month has no fixed length"),
    ],
)
def test_bad_input_is_refused_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    sales, rates = spark.createDataFrame([], SALES), spark.createDataFrame([], RATES)
    usual = {"on": "country", "time": "sold_at", "valid_from": "since"}
    with pytest.raises(ConfigError) as refused:
        as_of_join(sales, rates, **(usual | arguments))
    assert message in str(refused.value)


def test_table_join_without_weights_is_refused_with_the_line_to_add(spark: SparkSession) -> None:
    sales, rates = spark.createDataFrame([], SALES), spark.createDataFrame([], RATES)
    with pytest.raises(ConfigError, match=r"frame\.transform\(changes"):
        table_join(sales, rates, "country")
