"""Standing queries on Spark: events and queries as topics of a broker, and through the harness."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.standing import match_queries, matching
from millstream.pipelines.standing.stored import QueryRecord, StoredQueries
from millstream.testing.streams import Source, StreamDiffers, check_stream
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_launching import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "offer long, category string, price double, text string, at timestamp"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def produce(topics: Topics, name: str, records: Sequence[tuple[str, Any, datetime | None]]) -> None:
    """Keys, values (None is a tombstone), and times."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})
    for key, value, time in records:
        content = None if value is None else json.dumps(value).encode()
        timed = {} if time is None else {"timestamp": round(time.timestamp() * 1000)}
        producer.produce(name, content, key=key, **timed)
        producer.poll(0)
    assert producer.flush(60) == 0


def offer(number: int, category: str, price: float, text: str, second: int) -> Any:
    at = (BEGIN + timedelta(seconds=second)).isoformat()
    row = {"offer": number, "category": category, "price": price, "text": text, "at": at}
    return str(number), row, None


def search(query_id: str, where: str | None, second: int) -> Any:
    at = BEGIN + timedelta(seconds=second)
    return query_id, None if where is None else {"where": where}, at


def alerts(offers: DataFrame) -> DataFrame:
    matched = offers.transform(match_queries, time="at")
    return matched.selectExpr("offer", "_query AS query", "_version AS version", "_why[0] AS why")


def declare(offers: str, searches: str) -> Pipeline:
    reads = topic(offers, schema=SCHEMA, queries=searches, options={"maxOffsetsPerTrigger": 2})
    writes = table("alerts", key=("offer", "query"))
    return pipeline(reads=reads, writes=writes, name=f"alerts-{offers}")(alerts)


def settings_in(tmp_path: Path, topics: Topics) -> dict[str, Any]:
    return {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }


def rows_of(tmp_path: Path) -> list[Mapping[str, Any]]:
    return sorted(stored(tmp_path, "SELECT offer, query, version FROM alerts"))


def run_once(declared: Pipeline, spark: SparkSession, where: dict[str, Any]) -> Any:
    return run_to_end(lambda: declared.start(spark, once=True, **where))


def test_stream_has_the_queries_of_each_event_and_equals_the_batch(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    offers, searches = topics.create(partitions=2), topics.create(cleanup_policy="compact")
    declared, where = declare(offers, searches), settings_in(tmp_path, topics)
    cheap = "category = 'bike' AND price < 300"
    produce(topics, searches, [search("cheap", cheap, 0), search("tea", "price < 9", 0)])
    first = [offer(it, "bike", 100.0 * it, "old", 10) for it in range(5)]
    produce(topics, offers, first)
    run_once(declared, spark, where)
    assert rows_of(tmp_path) == [(0, "cheap", 0), (0, "tea", 1), (1, "cheap", 0), (2, "cheap", 0)]
    changed = [
        search("cheap", "category = 'bike' AND price <", 15),  # refused
        search("tea", "matches(text, '\"green leaf\" NOT bag*')", 20),
        search("cheap", None, 40),
    ]
    produce(topics, searches, changed)
    second = [
        offer(5, "bike", 1.0, "Green leaf", 19),  # before the change of tea
        offer(6, "bike", 1.0, "a GREEN leaf!", 20),
        offer(7, "car", 1.0, "green leaf in bags", 30),
        offer(8, "bike", 1.0, "green-leaf", 40),  # cheap is removed
    ]
    produce(topics, offers, second)
    run_once(declared, spark, where)
    added = [(5, "cheap", 0), (5, "tea", 1), (6, "cheap", 0), (6, "tea", 3), (8, "tea", 3)]
    assert rows_of(tmp_path)[4:] == added
    batch = declared.batch(spark, broker=topics.bootstrap)
    found = sorted((it.offer, it.query, it.version) for it in batch.collect())
    assert found == rows_of(tmp_path)
    assert set(letters(topics, f"dlq.{searches}")) == {f"{searches}/0/2"}


def letters(topics: Topics, name: str) -> list[str]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": "letters"})
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), 30)
    found = []
    while len(found) < end:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append((message.key() or b"").decode())
    consumer.close()
    return found


def test_repeated_batch_has_the_queries_that_it_was_planned_with(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    from millstream.testing.streams.checkpoint import lose_commit

    offers, searches = topics.create(), topics.create(cleanup_policy="compact")
    produce(topics, searches, [search("a", "price < 5", 0)])
    produce(topics, offers, [offer(1, "bike", 1.0, "", 10)])
    options = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": offers,
        "valueFormat": "json",
        "startingOffsets": "earliest",
        "queriesTopic": searches,
    }
    batches: list[list[str]] = []

    def run() -> None:
        reader = spark.readStream.format("millstream").options(**options)
        frame = reader.schema(f"{SCHEMA}, _queries bigint").load()
        matched = frame.transform(match_queries, searches, time="at", options=options)
        writer = matched.writeStream.foreachBatch(
            lambda rows, number: batches.append([it["_query"] for it in rows.collect()])
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        run_to_end(writer.start)

    run()
    assert batches == [["a"]]
    produce(topics, searches, [search("b", "price < 6", 0)])
    assert lose_commit(tmp_path / "c") == 0
    run()
    assert batches == [["a"], ["a"]]
    produce(topics, offers, [offer(2, "bike", 1.0, "", 10)])
    run()
    assert batches[2:] == [["a", "b"]]
    topics.delete(searches)
    topics.create(name=searches, cleanup_policy="compact")
    produce(topics, searches, [search(it, "price < 7", 0) for it in "cd"])
    lose_commit(tmp_path / "c")
    with pytest.raises(StreamingQueryException, match="standing queries was deleted and recreated"):
        run()
    assert len(batches) == 3


RULES = [
    search("cheap", "price < 3", 0),
    search("bikes", "category = 'bike'", 30),
    search("cheap", "price < 2 OR matches(text, 'tea')", 60),
    search("bikes", None, 90),
    search("bikes", "NOT category IN ('bike', 'car')", 120),
]


def drawn_offer(second: int, extra: int, **row: Any) -> dict[str, Any]:
    """An event that is planned with all queries that are as old as itself, perhaps with more."""
    begun = sum(it[2] <= BEGIN + timedelta(seconds=second) for it in RULES)
    at = BEGIN + timedelta(seconds=second)
    return {**row, "at": at, "_queries": min(begun + extra, len(RULES))}


def test_any_cut_of_the_stream_gives_the_same_matches(spark: SparkSession, topics: Topics) -> None:
    searches = topics.create(cleanup_policy="compact")
    produce(topics, searches, RULES)
    options = {"kafka.bootstrap.servers": topics.bootstrap}
    rows = st.builds(
        drawn_offer,
        second=st.integers(0, 15).map(lambda it: 10 * it),
        extra=st.integers(0, 5),
        category=st.sampled_from(["bike", "car", "book", None]),
        price=st.sampled_from([1.0, 2.5, 9.0, None]),
        text=st.sampled_from(["Tea", "coffee", None]),
    )
    schema = "category string, price double, text string, at timestamp, _queries bigint"
    source = Source(rows, schema=schema, watermark=("at", "10 seconds"))

    def matched(offers: DataFrame) -> DataFrame:
        found = offers.transform(match_queries, searches, time="at", options=options)
        return found.drop("_watermark")

    outcomes = check_stream(matched, {"offers": source}, spark=spark, seed=1, rows=16, examples=1)
    assert all(it.rows() for it in outcomes)


@pipeline(
    reads=topic("offers", schema=SCHEMA, queries="searches", watermark=("at", "10 seconds")),
    writes=table("alerts", key=("offer", "query")),
)
def declared_alerts(offers: DataFrame) -> DataFrame:
    return alerts(offers)


@pipeline(
    reads=topic("offers", schema=SCHEMA, queries="searches", watermark=("at", "10 seconds")),
    writes=table("alerts", key=("offer", "query")),
)
def newest_alerts(offers: DataFrame) -> DataFrame:
    """Broken on purpose: which queries count depends on when a batch was planned."""
    matched = offers.transform(match_queries, time=None)
    return matched.selectExpr("offer", "_query AS query", "_version AS version")


def test_harness_checks_a_pipeline_with_standing_queries(spark: SparkSession) -> None:
    stored = [(name, where and where["where"], at) for name, where, at in RULES]
    offers = [
        {"offer": it, "category": "bike", "price": 1.0, "text": "tea", "at": moment}
        for it, moment in enumerate(BEGIN + timedelta(seconds=10 * it) for it in range(14))
    ]
    inputs = {"offers": Source(offers, queries=stored)}
    (outcome,) = check_stream(declared_alerts, inputs, spark=spark, seed=1, examples=1)
    found = {(it["offer"], it["query"], it["version"]) for it in outcome.rows()}
    assert {(0, "cheap", 0), (3, "bikes", 1), (6, "cheap", 2)} < found
    assert not {it for it in found if it[0] >= 9 and it[1] == "bikes"}
    with pytest.raises(StreamDiffers):
        check_stream(newest_alerts, inputs, spark=spark, seed=1, examples=1, shrink_seconds=0)
    with pytest.raises(ConfigError, match="is read with standing queries: give them"):
        check_stream(declared_alerts, {"offers": Source(offers)}, spark=spark)


def test_what_is_missing_is_named_before_anything_runs(spark: SparkSession, topics: Topics) -> None:
    options = {"kafka.bootstrap.servers": topics.bootstrap}
    searches = topics.create()
    plain = spark.sql("SELECT 1 AS price, current_timestamp() AS at")

    def refused(frame: DataFrame, *arguments: Any, **named: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            frame.transform(match_queries, *arguments, **{"time": "at", **named})
        return str(caught.value)

    assert "needs the topic of the queries" in refused(plain)
    assert "is int" in refused(plain, searches, options=options, time="price")
    taken = plain.selectExpr("*", "1 AS _why")
    assert "two columns _why" in refused(taken, searches, options=options)
    assert "scans_max=-1" in refused(plain, searches, options=options, scans_max=-1)
    stream = spark.readStream.format("rate").load().selectExpr("value", "timestamp AS at")
    assert 'topic(..., queries="' in refused(stream, searches, options=options)


def test_rows_with_many_matches_are_matched_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "ROWS_AT_ONCE", 20)
    monkeypatch.setattr(matching, "RESULTS_AT_ONCE", 20)
    schema = pa.schema([("n", pa.int64())])
    queries = StoredQueries(schema)
    values = [json.dumps({"where": f"n > {it}"}).encode() for it in range(5)]
    queries.advance([QueryRecord(at, 0, b"q%d" % at, it) for at, it in enumerate(values)], 5)
    rows = pa.RecordBatch.from_pylist([{"n": 9}] * 13 + [{"n": 0}] * 40, schema)
    found = list(matching.match_in_pieces(queries, rows, None))
    assert [it.num_rows for it in found] == [10, 20, 20, 15, 0, 0, 0]
    assert sum(it.num_rows for it in found) == 65


def test_frame_of_any_source_is_matched_as_a_batch(spark: SparkSession, topics: Topics) -> None:
    searches = topics.create()
    produce(topics, searches, [search("a", "price < 2", 0), search("b", "price > 2", 0)])
    rows = "VALUES (1, TIMESTAMP '2026-06-01'), (3, TIMESTAMP '2025-01-01'), (4, NULL)"
    frame = spark.sql(f"SELECT * FROM {rows} AS t(price, at)")
    options = {"kafka.bootstrap.servers": topics.bootstrap}

    def matched(time: str | None) -> list[tuple[int, str]]:
        found = frame.transform(match_queries, searches, time=time, options=options)
        return sorted((it["price"], it["_query"]) for it in found.collect())

    assert matched("at") == [(1, "a")]
    assert matched(None) == [(1, "a"), (3, "b"), (4, "b")]
