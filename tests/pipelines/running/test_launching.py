"""Pipelines as streams and over history, in the shared session, on a real broker."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.fan_out import FanOutSink
from millstream.pipelines.running.launching import (
    limit_batches,
    refuse_connect,
    starting_options,
)
from millstream.pipelines.windows import tumbling
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_progress import committed
from tests.pipelines.writing.test_writer import values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, user string, amount double, at timestamp"


def order(number: int, user: str = "ada", minute: int = 0) -> bytes:
    at = f"2026-03-01T12:{minute:02}:10Z"
    return json.dumps({"id": number, "user": user, "amount": 1.5, "at": at}).encode()


def per_user(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    return orders.groupBy("user").agg(F.sum("amount").alias("total"))


@pytest.fixture
def where(topics: Topics, tmp_path: Path) -> dict[str, Any]:
    return {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }


@pytest.fixture
def orders(topics: Topics) -> str:
    name = topics.create(partitions=2)
    topics.fill(name, [order(1), order(2, "bob"), b'{"id": "what"}'], partition=0)
    topics.fill(name, [order(3)], partition=1)
    return name


def totals(orders: str, **settings: Any) -> Pipeline:
    declare = pipeline(
        reads=topic(orders, schema=SCHEMA),
        writes=table("totals", key="user"),
        name=f"totals-{orders}",
        **settings,
    )
    return declare(per_user)


def stored(tmp_path: Path, query: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        return connection.execute(query).fetchall()


def run_once(declared: Pipeline, spark: SparkSession, where: dict[str, Any]) -> Any:
    return run_to_end(lambda: declared.start(spark, once=True, **where))


@pytest.mark.slow
def test_batch_ignores_options_for_streams(
    spark: SparkSession, topics: Topics, orders: str
) -> None:
    reads = topic(orders, schema=SCHEMA, options={"maxOffsetsPerTrigger": 1})
    declared = pipeline(reads=reads, writes=table("totals", key="user"))(per_user)
    assert declared.batch(spark, broker=topics.bootstrap).count() == 2


def test_all_columns_of_a_topic_are_those_of_its_schema_in_every_batch(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    """The watermark, which is null in the first batch and in a batch over history, is none."""
    declared = pipeline(
        reads=topic(orders, schema=SCHEMA, watermark=("at", "1 second")),
        writes=table("values"),
        name=f"values-{orders}",
    )(lambda orders: orders.selectExpr("to_json(struct(*)) as value"))
    run_once(declared, spark, where)
    topics.fill(orders, [order(4, minute=1)], partition=1)
    run_once(declared, spark, where)
    found = {row[0] for row in stored(tmp_path, 'SELECT value FROM "values"')}
    history = declared.batch(spark, broker=topics.bootstrap)
    assert found == {row.value for row in history.collect()}
    assert {tuple(json.loads(it)) for it in found} == {("id", "user", "amount", "at")}


@pytest.mark.slow
def test_stream_that_begins_at_the_end_keeps_to_where_that_was(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    """Also when it dies in its first batch, of which Spark keeps only where it ends."""
    declare = pipeline(
        reads=topic(orders, schema=SCHEMA, start_at="latest"),
        writes=table("totals", key="user"),
        name=f"late-{orders}",
    )
    late = declare(per_user)
    run_once(late, spark, where)
    topics.fill(orders, [order(4, "eve")], partition=1)
    topics.grow(orders, 3)
    topics.fill(orders, [order(5, "eve")], partition=2)
    run_once(late, spark, where)
    assert stored(tmp_path, "SELECT * FROM totals") == [("eve", 3.0)]


def test_stream_keeps_a_table_up_to_date_and_shows_its_progress(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    declared = totals(orders)
    query = run_once(declared, spark, where)
    found = "select user, total from totals order by user"
    assert stored(tmp_path, found) == [("ada", 3.0), ("bob", 1.5)]
    assert committed(topics, declared.group_id, orders) == {0: 3, 1: 1}
    observed = json.loads(query.lastProgress.json)["observedMetrics"]["millstream.orders"]
    assert observed == {"records": 4, "failed": 1}

    topics.fill(orders, [order(4, "bob")], partition=1)
    run_once(declared, spark, where)
    assert stored(tmp_path, found) == [("ada", 3.0), ("bob", 3.0)]
    assert committed(topics, declared.group_id, orders) == {0: 3, 1: 2}


def test_batch_gives_what_the_stream_gives(
    spark: SparkSession, topics: Topics, orders: str
) -> None:
    rows = totals(orders).batch(spark, broker=topics.bootstrap).orderBy("user").collect()
    assert [tuple(row) for row in rows] == [("ada", 3.0), ("bob", 1.5)]
    late = totals(orders).batch(spark, broker=topics.bootstrap, start_at={0: 1, 1: 1}).collect()
    assert [tuple(row) for row in late] == [("bob", 1.5)]


def test_pipeline_reads_two_topics_and_writes_one(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any]
) -> None:
    users, named = topics.create(), topics.create()
    topics.fill(users, [b'{"user": "ada", "country": "UK"}'])

    @pipeline(
        reads={
            "orders": topic(orders, schema=SCHEMA, bad_records="drop"),
            "users": topic(users, schema="user string, country string"),
        },
        writes=topic(named, schema="id long, country string", key="id"),
        name=f"named-{named}",
    )
    def name_country(orders: DataFrame, users: DataFrame) -> DataFrame:
        return orders.join(users, "user").select("id", "country")

    run_once(name_country, spark, where)
    read = spark.read.format("millstream").option("kafka.bootstrap.servers", topics.bootstrap)
    rows = read.option("subscribe", named).load().orderBy("key").collect()
    assert [(row.key, json.loads(row.value)) for row in rows] == [
        (b"1", {"id": 1, "country": "UK"}),
        (b"3", {"id": 3, "country": "UK"}),
    ]
    assert committed(topics, name_country.group_id, orders) == {0: 3, 1: 1}


@pytest.mark.slow
def test_topic_recreated_while_the_pipeline_stood_is_read_from_its_beginning(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    source = topics.create()
    topics.fill(source, [order(1), order(2)])
    reads = topic(source, schema=SCHEMA, options={"failOnDataLoss": False})
    declare = pipeline(reads=reads, writes=table("ids"), name=f"ids-{source}")
    ids = declare(lambda orders: orders.select("id"))
    run_once(ids, spark, where)
    topics.delete(source)
    topics.create(name=source)
    topics.fill(source, [order(it) for it in range(3, 8)])
    run_once(ids, spark, where)
    assert stored(tmp_path, "select id from ids order by id") == [(it,) for it in range(1, 8)]


@pytest.mark.slow  # three queries and more
def test_inputs_may_be_used_in_another_order(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    one, two = topics.create(), topics.create()
    topics.fill(one, [order(1), order(2)])
    topics.fill(two, [order(3)])
    reads = {"one": topic(one, schema=SCHEMA), "two": topic(two, schema=SCHEMA)}
    declare = pipeline(reads=reads, writes=table("ids"), name=f"both-{one}")
    run_once(declare(lambda one, two: one.union(two).select("id")), spark, where)
    topics.fill(one, [order(4)])
    run_once(declare(lambda one, two: two.union(one).select("id")), spark, where)
    topics.fill(two, [order(5)])
    run_once(declare(lambda one, two: one.union(two).select("id")), spark, where)
    assert stored(tmp_path, "select id from ids order by id") == [(it,) for it in range(1, 6)]


@pytest.mark.slow
def test_several_outputs_read_their_input_once(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    writes = {"totals": table("totals", key="user"), "large": table("large", key="id")}
    declare = pipeline(reads=topic(orders, schema=SCHEMA), writes=writes, name=f"two-{orders}")
    both = declare(
        lambda orders: {"totals": per_user(orders), "large": orders.where("id > 1").select("id")}
    )
    query = run_once(both, spark, where)
    progress = json.loads(query.lastProgress.json)
    assert progress["observedMetrics"]["millstream.orders"] == {"records": 4, "failed": 1}
    assert progress["numInputRows"] == 4
    assert len(values_of(topics, f"dlq.{orders}", at_least=1)) == 1
    assert stored(tmp_path, "select * from totals order by user") == [("ada", 3.0), ("bob", 1.5)]
    assert stored(tmp_path, "select * from large order by id") == [(2,), (3,)]


@pytest.mark.slow
def test_late_rows_are_dropped_in_every_output(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    """Outputs with the same aggregate: Spark must not share the rows of one with the other."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    source = topics.create()
    reads = topic(source, schema=SCHEMA, watermark=("at", "0 seconds"))
    writes = {"one": table("one"), "two": table("two")}

    def counted(orders: DataFrame) -> dict[str, DataFrame]:
        counts = orders.groupBy(F.window("at", "1 minute"), "user").count()
        return dict.fromkeys(writes, counts.select("user", "count"))

    both = pipeline(reads=reads, writes=writes, name=f"late-{source}")(counted)
    topics.fill(source, [order(1, "ada", minute=0), order(2, "bob", minute=10)])
    run_once(both, spark, where)
    topics.fill(source, [order(3, "late", minute=0), order(4, "cyd", minute=20)])
    query = run_once(both, spark, where)
    assert stored(tmp_path, "select * from one") == [("ada", 1), ("bob", 1)]
    assert stored(tmp_path, "select * from two") == [("ada", 1), ("bob", 1)]
    read = [it for it in query.recentProgress if it.numInputRows]
    assert [it.numRowsDroppedByWatermark for it in read[0].stateOperators] == [1, 1]


@pytest.mark.slow
def test_other_lateness_of_a_window_that_spark_computes_is_refused(
    spark: SparkSession, topics: Topics, where: dict[str, Any]
) -> None:
    source = topics.create()
    topics.fill(source, [order(1)])
    reads = topic(source, schema=SCHEMA, watermark=("at", "0 seconds"))
    declare = pipeline(reads=reads, writes=table("counts"), name=f"lateness-{source}")

    def counted(allowed_lateness: str) -> Pipeline:
        window = tumbling("1 minute", time="at", allowed_lateness=allowed_lateness, n="count(*)")
        return declare(lambda orders: orders.transform(window))

    run_once(counted("5 minutes"), spark, where)
    with pytest.raises(ConfigError, match=r"windows that end at .*5 minutes, and now .*10 minutes"):
        run_once(counted("10 minutes"), spark, where)
    run_once(counted("5 minutes"), spark, where)


def test_pipeline_into_a_topic_starts_in_any_thread(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any]
) -> None:
    copies = topics.create()

    @pipeline(
        reads=topic(orders, schema=SCHEMA, bad_records="drop"),
        writes=topic(copies),
        name=f"copies-{copies}",
    )
    def copy(orders: DataFrame) -> DataFrame:
        return orders.select("id")

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run_once, copy, spark, where).result()
    assert committed(topics, copy.group_id, orders) == {0: 3, 1: 1}


@pytest.mark.slow  # three queries and more
def test_batch_is_decided_with_what_was_read_and_refused_if_the_checkpoint_has_other_offsets(
    spark: SparkSession,
    topics: Topics,
    orders: str,
    where: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if another driver had written `offsets/1` at the same moment."""
    declared = totals(orders)
    run_once(declared, spark, where)
    topics.fill(orders, [order(4), order(5)], partition=1)
    file = tmp_path / "checkpoints" / declared.name / "offsets" / "1"
    call = FanOutSink.__call__

    def overwrite(sink: FanOutSink, batch: DataFrame, batch_id: int) -> None:
        written = file.read_text()
        file.write_text(written.replace('"1": 3', '"1": 2'))
        try:
            call(sink, batch, batch_id)
        finally:
            file.write_text(written)

    with monkeypatch.context() as patched:
        patched.setattr(FanOutSink, "__call__", overwrite)
        with pytest.raises(StreamingQueryException, match="another process writes to it"):
            run_once(declared, spark, where)
    found = "select user, total from totals order by user"
    assert stored(tmp_path, found) == [("ada", 3.0), ("bob", 1.5)]
    run_once(declared, spark, where)
    assert stored(tmp_path, found) == [("ada", 6.0), ("bob", 1.5)]


@pytest.mark.slow  # three queries and more
def test_pipeline_whose_checkpoint_was_deleted_is_refused_and_starts_over_if_allowed(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    written = topics.create()
    reads = topic(orders, schema=SCHEMA, bad_records="drop")
    declared = pipeline(reads=reads, writes=topic(written), name=f"copy-{written}")
    copy = declared(lambda orders: orders.select("id"))
    run_once(copy, spark, where)
    shutil.rmtree(tmp_path / "checkpoints" / copy.name)
    with pytest.raises(ConfigError, match="from another checkpoint"):
        run_once(copy, spark, where)
    run_to_end(lambda: copy.start(spark, once=True, allow_new_checkpoint=True, **where))
    run_once(copy, spark, where)
    assert len(values_of(topics, written, at_least=6)) == 6


@pytest.fixture
def running(spark: SparkSession, orders: str, where: dict[str, Any]) -> Iterator[Pipeline]:
    declared = totals(orders)
    query = declared.start(spark, **where)
    yield declared
    query.stop()


def test_pipeline_that_runs_already_is_refused(
    running: Pipeline, spark: SparkSession, where: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"is running in this session.*variant\("):
        running.start(spark, **where)


def test_missing_checkpoint_and_broker_are_asked_for(spark: SparkSession, orders: str) -> None:
    with pytest.raises(ConfigError, match="no checkpoint directory is named"):
        totals(orders).start(spark, broker="127.0.0.1:1")
    with pytest.raises(ConfigError, match="no broker is named"):
        totals(orders).start(spark, checkpoint="unused")


def test_topic_that_does_not_exist_is_named(spark: SparkSession, where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no topic missing at .*millstream topic create missing"):
        totals("missing").start(spark, **where)


def test_option_that_does_not_exist_is_named(
    spark: SparkSession, orders: str, where: dict[str, Any]
) -> None:
    reads = topic(orders, schema=SCHEMA, options={"maxOffsetPerTrigger": 5})
    with pytest.raises(ConfigError, match="did you mean maxOffsetsPerTrigger"):
        totals(orders).variant(f"totals-{orders}", reads=reads).start(spark, **where)


def test_columns_that_make_no_record_are_named(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any]
) -> None:
    writes = topic(topics.create(), key="nobody")
    with pytest.raises(ConfigError, match="keyColumns names nobody, which is not among user"):
        totals(orders).variant("wrong-key", writes=writes).start(spark, **where)


def test_checkpoint_of_other_topics_is_refused(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any]
) -> None:
    declared = totals(orders)
    run_once(declared, spark, where)
    other = declared.variant(declared.name, reads=topic(topics.create(), schema=SCHEMA))
    with pytest.raises(ConfigError, match=f"made by {declared.name} reading {orders}, and now"):
        other.start(spark, **where)


def test_topics_may_be_corrected_after_a_first_start_that_failed(
    spark: SparkSession, topics: Topics, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    reads, writes = topic(topics.create(), schema=SCHEMA), table("totals", key="user")
    declare = pipeline(reads=reads, writes=writes, name=f"first-{orders}")
    wrong = declare(lambda orders: orders.select("usr"))
    with pytest.raises(AnalysisException, match="usr"):
        wrong.start(spark, **where)
    right = wrong.variant(wrong.name, reads=topic(orders, schema=SCHEMA), function=per_user)
    run_once(right, spark, where)
    assert stored(tmp_path, "select user, total from totals") == [("ada", 3.0), ("bob", 1.5)]


def test_aggregate_that_is_refused_creates_no_table(
    spark: SparkSession, orders: str, where: dict[str, Any], tmp_path: Path
) -> None:
    by_total = totals(orders).variant("by-total", writes=table("by_total", key="total"))
    with pytest.raises(ConfigError, match="the key total, which changes with the aggregate"):
        by_total.start(spark, **where)
    assert not (tmp_path / "store.db").exists()


def test_result_that_is_no_stream_is_refused(
    spark: SparkSession, orders: str, where: dict[str, Any]
) -> None:
    reads, writes = topic(orders, schema=SCHEMA), table("t")
    number = pipeline(reads=reads, writes=writes, name="number")(lambda orders: 5)
    with pytest.raises(ConfigError, match="number returns int"):
        number.start(spark, **where)
    fixed = pipeline(reads=reads, writes=writes, name="fixed")(lambda orders: spark.range(3))
    with pytest.raises(ConfigError, match="what fixed returns is not a stream"):
        fixed.start(spark, **where)


def test_first_batch_over_a_large_topic_is_bounded() -> None:
    options = {"subscribe": "orders"}
    limit_batches(options)
    assert options["maxOffsetsPerTrigger"] == "1000000"
    for name in ("maxoffsetspertrigger", "minOffsetsPerTrigger"):
        given = {name: "5"}
        limit_batches(given)
        assert given == {name: "5"}, "the user's own limit"


def test_session_of_spark_connect_is_refused() -> None:
    class Session: ...

    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(ConfigError, match="Spark Connect"):
        refuse_connect(Session())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("starting", "options"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ({0: 5, 2: 7}, {"startingOffsets": '{"t": {"0": 5, "2": 7}}'}),
        (
            datetime(2026, 3, 1, tzinfo=UTC),
            {
                "startingTimestamp": "1772323200000",
                "startingOffsetsByTimestampStrategy": "latest",
            },
        ),
    ],
)
def test_start_is_passed_as_options_of_the_reader(starting: Any, options: dict[str, str]) -> None:
    assert starting_options("t", starting) == options


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.usefixtures("connector")
def test_pipeline_takes_over_the_checkpoint_of_sparks_own_connector(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create(partitions=2)
    topics.fill(name, [order(1), order(2)], partition=0)
    declared = pipeline(
        reads=topic(name, schema=SCHEMA), writes=table("ids", key="id"), name=f"ids-{name}"
    )(lambda orders: orders.select("id"))
    theirs = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", f"{where['checkpoint']}/{declared.name}")
        .trigger(availableNow=True)
        .start()
    )
    assert theirs.awaitTermination(240)
    topics.fill(name, [order(3)], partition=0)
    topics.fill(name, [order(4)], partition=1)
    run_once(declared, spark, where)
    assert stored(tmp_path, "select id from ids order by id") == [(3,), (4,)]
    assert committed(topics, declared.group_id, name) == {0: 3, 1: 1}
