"""Topics as tables: the columns that are read, and keys made of the keys of records."""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.joins.table_table import table_join
from millstream.pipelines.running.tables import as_table, mark_bad_keys, reader_schema
from tests.pipelines.conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS = topic("users", schema="name string not null, born date", table_key="user")


def test_reader_gives_what_a_table_needs(spark: SparkSession) -> None:
    schema = reader_schema(USERS)
    assert schema is not None
    assert schema.names == ["name", "born", "_key", "_position", "_deleted"]
    assert all(it.nullable for it in schema), "a delete has no columns"
    with_own = topic("users", schema="user long, name string, _key binary", table_key="user")
    schema = reader_schema(with_own)
    assert schema is not None
    assert schema.names == ["name", "_key", "_position", "_deleted"]


def test_topic_with_a_watermark_has_it_in_its_rows(spark: SparkSession) -> None:
    for schema in ("at timestamp", "at timestamp, _watermark timestamp"):
        found = reader_schema(topic("orders", schema=schema, watermark=("at", "1 minute")))
        assert found is not None
        assert found.simpleString() == "struct<at:timestamp,_watermark:timestamp>"
    users = topic("users", schema="at timestamp", table_key="user", watermark=("at", "1 minute"))
    found = reader_schema(users)
    assert found is not None
    assert found.names == ["at", "_watermark", "_key", "_position", "_deleted"]


def test_other_topics_are_read_as_they_are_and_their_offsets_are_marked(
    spark: SparkSession,
) -> None:
    assert reader_schema(topic("raw")) is None
    orders = topic("orders", schema="id long not null, _offset long")
    schema = reader_schema(orders)
    assert schema is not None
    assert schema.simpleString() == "struct<id:bigint,_offset:bigint>"
    assert not schema["id"].nullable
    assert schema["_offset"].metadata == {"_offset": True}
    frame = spark.createDataFrame([], schema)
    assert as_table(frame, orders) is frame


@pytest.mark.parametrize(
    ("schema", "key", "expected"),
    [
        ("name string", b"ada", "ada"),
        ("user long, name string", b"17", 17),
        ("user long, name string", b"seventeen", None),
        ("user date, name string", b"1815-12-10", date(1815, 12, 10)),
        ("user binary, name string", b"\xff", b"\xff"),
        ("name string", None, None),
    ],
)
def test_key_has_the_type_that_the_schema_says(
    spark: SparkSession, schema: str, key: bytes | None, expected: Any
) -> None:
    declared = topic("users", schema=schema, table_key="user")
    wanted = reader_schema(declared)
    assert wanted is not None
    frame = spark.createDataFrame([("Ada", key, b"", False)], wanted)
    found = as_table(frame, declared)
    assert found.columns == ["user", "name", "_position", "_deleted"]
    assert [row["user"] for row in found.collect()] == [expected]


KEYS = [b"1", b"seventeen", None]


@pytest.mark.parametrize("mode", ["drop", "deadletter", "fail"])
def test_record_with_a_bad_key_is_dropped_or_ends_the_query(spark: SparkSession, mode: str) -> None:
    declared = topic("users", schema="user long", table_key="user", bad_records=mode)
    rows = [(key, b"", False) for key in KEYS]
    frame = spark.createDataFrame(rows, "_key binary, _position binary, _deleted boolean")
    marked = mark_bad_keys(frame, declared)
    if mode == "fail":
        with pytest.raises(Exception, match=r"bad key of table users \(user bigint\): seventeen"):
            marked.collect()
    else:
        assert [it["_key"] for it in marked.collect()] == [b"1"]


def test_bad_key_is_an_error_like_that_of_a_value_and_a_tick_has_none(spark: SparkSession) -> None:
    declared = topic("users", schema="name string", table_key=("shop", "user"))
    keys = [b'{"shop": "a", "user": "b"}', b'{"shop": "a"}', b"{", None]
    errors = [None, None, "bad value", None]
    rows = [(key, error, key is None) for key, error in zip(keys, errors, strict=True)]
    frame = spark.createDataFrame(rows, "_key binary, _error string, _idle boolean")
    found = [it["_error"] for it in mark_bad_keys(frame, declared).collect()]
    bad = 'bad key of table users (shop string, user string): {"shop": "a"}'
    assert found == [None, bad, "bad value", None]
    orders = topic("orders", schema="id long")
    assert mark_bad_keys(frame, orders) is frame


def timeline() -> Pipeline:
    reads = {
        "posts": topic("posts", schema="author string, text string", table_key="post"),
        "follows": topic("follows", schema="since long", table_key=("follower", "author")),
    }

    def joined(posts: DataFrame, follows: DataFrame) -> DataFrame:
        return posts.transform(table_join, follows, "author", buckets=2)

    return pipeline(reads=reads, writes=table("timeline", key="post"), name="timeline")(joined)


def test_tables_of_topics_are_joined_by_name_alone(spark: SparkSession, topics: Topics) -> None:
    """Keys of several columns are JSON objects, as pipelines write them."""
    from confluent_kafka import Producer

    declared = timeline()
    assert not declared.loaded_first, "there is no stream that waits"
    for name in ("posts", "follows"):
        topics.create(name=name, partitions=2)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})
    for text in ("hello", "hello, world"):
        producer.produce("posts", json.dumps({"author": "ann", "text": text}), key="p1")
    producer.produce("posts", json.dumps({"author": "ann", "text": "gone"}), key="p2")
    producer.produce("posts", None, key="p2")
    follow = json.dumps({"follower": "bea", "author": "ann"})
    producer.produce("follows", json.dumps({"since": 7}), key=follow)
    assert producer.flush(60) == 0
    rows = declared.batch(spark, broker=topics.bootstrap).collect()
    assert [row.asDict() for row in rows] == [
        {
            "post": "p1",
            "author": "ann",
            "text": "hello, world",
            "follower": "bea",
            "since": 7,
            "_weight": 1,
            "_op": "insert",
        }
    ]
