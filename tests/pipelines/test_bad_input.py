"""What is wrong is named, with what to do about it; and when it is mended, nothing was lost.

Each test runs a pipeline, breaks something under it, reads the complaint as `millstream run` would
print it, follows its advice, and compares the table with what was sent.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from millstream.errors import ConfigError, SchemaMismatch, StoreError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running.failures import PipelineFailed, explain_failure
from millstream.pipelines.running.topics import BrokerUnreachable
from tests.peers.servers import free_port
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, user string"


@pytest.fixture
def where(topics: Topics, tmp_path: Path) -> dict[str, Any]:
    return {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }


def send(topics: Topics, name: str, ids: range) -> None:
    values = [json.dumps({"id": it, "user": f"user {it % 2}"}).encode() for it in ids]
    topics.fill(name, values)


def copies(name: str, **options: str) -> Pipeline:
    """A row for each record."""
    reads = topic(name, schema=SCHEMA, options=options)
    return pipeline(reads=reads, writes=table("copies"), name=f"copy-{name}")(lambda frame: frame)


def counts(name: str, by: str = "user") -> Pipeline:
    """How many there are of each, kept as state."""
    declare = pipeline(
        reads=topic(name, schema=SCHEMA), writes=table(f"per_{by}", key=by), name=f"count-{name}"
    )
    return declare(lambda frame: frame.groupBy(by).count())


def run(declared: Pipeline, spark: SparkSession, where: dict[str, Any]) -> None:
    """Take what is there; raises what `millstream run` would tell."""
    try:
        run_to_end(lambda: declared.start(spark, once=True, **where))
    except StreamingQueryException as error:
        raise explain_failure(declared.name, error) from error


def stored(tmp_path: Path, query: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        return connection.execute(query).fetchall()


def copied(tmp_path: Path) -> list[int]:
    return [row[0] for row in stored(tmp_path, "select id from copies order by id")]


def test_state_of_another_schema_is_named_and_the_old_one_goes_on(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create()
    send(topics, name, range(4))
    run(counts(name), spark, where)
    send(topics, name, range(4))
    with pytest.raises(
        PipelineFailed, match=r"another schema than its checkpoint\. Give the pipel"
    ):
        run(counts(name, by="id"), spark, where)
    run(counts(name), spark, where)
    found = stored(tmp_path, "select user, count from per_user order by user")
    assert found == [("user 0", 4), ("user 1", 4)]


def test_other_operators_than_in_the_checkpoint_are_named(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create()
    send(topics, name, range(4))
    run(counts(name), spark, where)
    send(topics, name, range(4))

    def distinct(frame: DataFrame) -> DataFrame:
        return frame.dropDuplicates(["id"])

    other = pipeline(
        reads=topic(name, schema=SCHEMA), writes=table("per_user_2"), name=f"count-{name}"
    )(distinct)
    complaint = "its aggregates or joins are not those of its checkpoint"
    with pytest.raises(PipelineFailed, match=complaint):
        run(other, spark, where)
    run(counts(name), spark, where)
    assert stored(tmp_path, "select sum(count) from per_user") == [(8,)]


@pytest.mark.parametrize("records", [2, 9], ids=["shorter", "longer"])
def test_recreated_topic_is_reported_and_read_from_its_beginning_under_another_name(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path, records: int
) -> None:
    name = topics.create()
    send(topics, name, range(4))
    run(copies(name), spark, where)
    topics.delete(name)
    topics.create(name=name)
    send(topics, name, range(10, 10 + records))
    with pytest.raises(ConfigError, match=rf"topic {name} was deleted and recreated.*another name"):
        run(copies(name), spark, where)
    run(replace(copies(name), name=f"again-{name}"), spark, where)
    assert copied(tmp_path) == [*range(4), *range(10, 10 + records)]


def test_records_lost_to_retention_are_reported_and_skipped_if_allowed(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create()
    send(topics, name, range(3))
    run(copies(name), spark, where)
    send(topics, name, range(3, 9))
    topics.delete_records(name, 5)
    complaint = rf"{name}-0 offsets 3 to 4. Raise retention.*failOnDataLoss=false"
    with pytest.raises(PipelineFailed, match=complaint):
        run(copies(name), spark, where)
    run(copies(name, failOnDataLoss="false"), spark, where)
    assert copied(tmp_path) == [0, 1, 2, 5, 6, 7, 8]


def test_broker_that_is_elsewhere_is_named(
    spark: SparkSession, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.running.topics.CONNECT_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at {address}: .*refused"):
        run(copies("any"), spark, where | {"broker": address})
    reader = spark.read.format("millstream").option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", "any").option("kafka.default.api.timeout.ms", "500")
    with pytest.raises(
        AnalysisException, match=rf"no broker can be reached \({address}.*gave up after"
    ):
        reader.load().collect()


def test_store_that_is_not_there_is_named_before_anything_is_read(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create()
    send(topics, name, range(3))
    store = f"postgresql://shop:secret@127.0.0.1:{free_port()}/shop"
    with pytest.raises(StoreError, match="cannot be used as a store") as raised:
        run(copies(name), spark, where | {"store": store})
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="give sqlite:///relative"):
        run(copies(name), spark, where | {"store": "mysql://db"})
    run(copies(name), spark, where)
    assert copied(tmp_path) == [0, 1, 2]


def test_table_of_another_shape_is_named_before_anything_is_read(
    spark: SparkSession, topics: Topics, where: dict[str, Any], tmp_path: Path
) -> None:
    name = topics.create()
    send(topics, name, range(3))
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("create table copies (id integer, age integer)")
    with pytest.raises(SchemaMismatch, match=r"copies.*user"):
        run(copies(name), spark, where)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("drop table copies")
    run(copies(name), spark, where)
    assert copied(tmp_path) == [0, 1, 2]


def test_pipeline_without_a_name_is_asked_for_one() -> None:
    with pytest.raises(ConfigError, match=r'<lambda>.*@pipeline\(name="..."\)'):
        pipeline(reads=topic("orders"), writes=table("t"))(lambda orders: orders)


def test_stream_without_a_checkpoint_is_asked_for_one(spark: SparkSession, topics: Topics) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writer = frame.writeStream.format("millstream").option("topic", topics.create())
    writer = writer.option("kafka.bootstrap.servers", topics.bootstrap)
    with pytest.raises(AnalysisException, match="checkpointLocation must be specified"):
        writer.start()


def explained(declared: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """All that is looked at before a query starts, without a broker."""
    from millstream.pipelines.running.explaining import explain
    from millstream.pipelines.running.settings import Settings

    explain(declared, spark, Settings(home=tmp_path, checkpoint=str(tmp_path)))


CLICKS = "user string, told string, at timestamp, _watermark timestamp"


def of_clicks(function: Any, watermark: tuple[str, str] = ("at", "10 minutes")) -> Pipeline:
    reads = topic("clicks", schema=CLICKS, watermark=watermark)
    return pipeline(reads=reads, writes=table("t"), name="p")(function)


@pytest.mark.parametrize(
    ("watermark", "words"),
    [
        (("told", "10 minutes"), "told is string: convert it with to_timestamp(told)"),
        (("when", "10 minutes"), "there is no column 'when': user, told, at"),
        (("at", "1 month"), "a month has no fixed length"),
    ],
)
def test_watermark_on_what_is_no_time_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, watermark: tuple[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        explained(of_clicks(lambda frame: frame, watermark), spark, tmp_path)
    assert words in str(refused.value)
    assert str(refused.value).startswith("topic clicks: watermark=")


def test_window_on_a_string_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    from millstream.pipelines.windows import sliding, tumbling

    window = tumbling("1 minute", time="told", n="count(*)")
    for function in (
        lambda frame: frame.transform(window),
        sliding("1 minute", key="user", time="told", n="count(*)"),
    ):
        with pytest.raises(ConfigError, match=r"told is string: convert it with to_timest"):
            explained(of_clicks(function), spark, tmp_path)


def test_lateness_smaller_than_the_watermark_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    from millstream.pipelines.windows import session, sliding, tumbling

    given: dict[str, Any] = {"allowed_lateness": "1 minute", "n": "count(*)"}
    for function in (
        lambda frame: frame.transform(tumbling("1 minute", time="at", **given)),
        lambda frame: frame.transform(session("1 minute", time="at", emit="change", **given)),
        sliding("1 minute", key="user", time="at", **given),
    ):
        with pytest.raises(ConfigError, match="smaller than the watermark's delay of 10 minutes"):
            explained(of_clicks(function), spark, tmp_path)


def test_join_without_a_bound_is_refused_before_the_query_starts_unless_it_is_meant(
    spark: SparkSession, tmp_path: Path
) -> None:
    from millstream.pipelines.joins import interval_join

    def joined(clicks: DataFrame, **given: Any) -> DataFrame:
        buys = clicks.selectExpr("user as buyer", "at as bought_at", "_watermark")
        return clicks.transform(
            interval_join, buys, {"user": "buyer"}, time="at", right_time="bought_at", **given
        )

    with pytest.raises(ConfigError, match=r"band=\"10 minutes\"; .* use unbounded=True"):
        explained(of_clicks(lambda frame: joined(frame, band=None)), spark, tmp_path)
    meant = of_clicks(lambda frame: joined(frame, band=None, unbounded=True))
    explained(meant, spark, tmp_path)
