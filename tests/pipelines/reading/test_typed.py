"""Typed rows through Spark, and what becomes of records that do not decode."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.reading.typed import TaskConstants, assemble, idle_row, typed_options
from millstream.pipelines.row_positions import decode_positions
from tests.pipelines.conftest import Topics
from tests.pipelines.reading.decoding.values import TIMESTAMP, columns_of, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, name string"
MIXED = [b'{"id": 0, "name": "a"}', b"{}{}", b'{"id": "2"}', None, b'{"id": 4}']


def read(
    spark: SparkSession, topics: Topics, topic: str, schema: str | None = SCHEMA, **options: str
) -> DataFrame:
    given = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": topic,
        "valueFormat": "json",
    }
    reader = spark.read.format("millstream").options(**given | options)
    return (reader if schema is None else reader.schema(schema)).load()


def test_json_of_all_types_arrives_in_spark(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    record = {
        "flag": True,
        "count": -7,
        "ratio": 1.5,
        "price": "12.50",
        "data": "aGk=",
        "day": "2026-11-14",
        "at": "2026-11-14T10:00:00+02:00",
        "local": "2026-11-14T10:00:00",
        "inner": {"tags": ["x", None], "counts": {"k": 1}},
    }
    topics.fill(topic, [json.dumps(record).encode(), None, b"{}"])
    schema = (
        "flag boolean, count short, ratio float, price decimal(10,2), data binary, day date, "
        "at timestamp, local timestamp_ntz, "
        "inner struct<tags: array<string>, counts: map<string, int>>"
    )
    frame = read(spark, topics, topic, schema)
    described = frame.selectExpr("to_json(struct(*)) as row").collect()
    assert json.loads(described[0].row) == record | {
        "price": 12.5,
        "at": "2026-11-14T08:00:00.000Z",
        "local": "2026-11-14T10:00:00.000",
    }
    assert [row.row for row in described[1:]] == ["{}", "{}"]
    assert frame.first()["local"] == datetime(2026, 11, 14, 10)


def test_schema_names_the_columns_of_the_record(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, MIXED)
    schema = (
        "_offset long, id long, _key binary, _topic string, _partition int, _value binary, "
        "_timestamp timestamp, _headers array<struct<key: string, value: binary>>"
    )
    rows = read(spark, topics, topic, schema, mode="drop").collect()
    assert [(row["_offset"], row["id"], bytes(row["_key"])) for row in rows] == [
        (0, 0, b"0"),
        (3, None, b"3"),
        (4, 4, b"4"),
    ]
    assert {(row["_topic"], row["_partition"], len(row["_headers"])) for row in rows} == {
        (topic, 0, 0)
    }
    assert bytes(rows[0]["_value"]) == MIXED[0]
    assert rows[0]["_timestamp"].year >= 2026


def test_mode_fail_names_the_record_and_the_cure(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, MIXED)
    with pytest.raises(PySparkException) as caught:
        read(spark, topics, topic).collect()
    assert f"the record at {topic}[0]@1 is no json row of the schema: malformed" in str(
        caught.value
    )
    assert "set the option mode to deadletter" in str(caught.value)


def test_mode_drop_goes_on_without_bad_records(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, MIXED)
    rows = read(spark, topics, topic, mode="DROPMALFORMED").collect()
    assert [tuple(row) for row in rows] == [(0, "a"), (None, None), (4, None)]


def test_error_column_has_bad_records_as_rows(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, MIXED)
    schema = "id long not null, _error string, _offset long, inner struct<a: int>"
    rows = read(spark, topics, topic, schema, mode="drop").collect()
    assert [(row["_offset"], (row["_error"] or "").partition(":")[0]) for row in rows] == [
        (0, ""),
        (1, "malformed"),
        (2, "wrong type"),
        (3, "missing field"),
        (4, ""),
    ]
    assert [row["id"] for row in rows if row["_error"] is None] == [0, 4]


def test_csv_and_text_arrive_in_spark(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1;x", b'2;"y;z"'])
    rows = read(spark, topics, topic, valueFormat="csv", sep=";").collect()
    assert [tuple(row) for row in rows] == [(1, "x"), (2, "y;z")]
    rows = read(spark, topics, topic, None, valueFormat="text").collect()
    assert [row["value"] for row in rows] == ["1;x", '2;"y;z"']


@pytest.mark.parametrize(
    ("names", "offsets"),
    [(["_offset", "_watermark"], [0, 2]), (["_offset", "_watermark", "_error"], [0, 1, 2])],
)
def test_schema_may_have_columns_of_the_reader_alone(names: list[str], offsets: list[int]) -> None:
    values = [b"{}", b"x", b'{"a": 1}']
    types = {"_offset": pa.int64(), "_watermark": TIMESTAMP, "_error": pa.string()}
    schema = pa.schema([(name, types[name]) for name in names])
    decoded = decode(pa.schema([]), *values)
    wanted = OffsetRange("t", 0, 0, 3)
    rows = assemble(schema, wanted, columns_of(values), decoded, TaskConstants(watermark_ms=5))
    assert rows.column("_offset").to_pylist() == offsets
    assert rows.column("_watermark").cast(pa.int64()).to_pylist() == [5000] * len(offsets)


def test_tick_has_a_time_and_nothing_else() -> None:
    from pyspark.sql.types import StructType

    schema = (
        StructType()
        .add("id", "long", nullable=False)
        .add("name", "string")
        .add("at", "timestamp")
        .add("_idle", "boolean")
    )
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "t",
        "valueFormat": "json",
        "idleAfter": "10s",
        "idleColumn": "at",
    }
    options = typed_options(parse_read_options(given, streaming=True), schema)
    (row,) = idle_row(options, 5).to_pylist()
    assert (row["id"], row["name"], row["_idle"]) == (0, None, True), "Spark relies on NOT NULL"
    assert row["at"].timestamp() == 0.005
    for columns, message in (
        ({"id": "long", "at": "timestamp"}, "belong together"),
        ({"id": "long", "_idle": "boolean"}, "idleColumn 'at' is not there"),
        ({"at": "string", "_idle": "boolean"}, "idleColumn 'at' is string"),
    ):
        wrong = StructType()
        for name, kind in columns.items():
            wrong = wrong.add(name, kind)
        with pytest.raises(ConfigError, match=message):
            typed_options(parse_read_options(given, streaming=True), wrong)


def test_rows_have_the_end_of_the_queries_if_the_topic_is_named() -> None:
    from pyspark.sql.types import StructType

    schema = StructType().add("id", "long").add("_queries", "long")
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "json"}
    with pytest.raises(ConfigError, match="queriesTopic and the column _queries bigint belong"):
        typed_options(parse_read_options(given, streaming=True), schema)
    typed_options(parse_read_options(given | {"queriesTopic": "q"}, streaming=True), schema)
    values = [b'{"id": 1}', b"{", b'{"id": 2}']
    fields = pa.schema([("id", pa.int64()), ("_queries", pa.int64())])
    decoded = decode(pa.schema([("id", pa.int64())]), *values)
    constants = TaskConstants(queries_end=7)
    rows = assemble(fields, OffsetRange("t", 0, 0, 3), columns_of(values), decoded, constants)
    assert rows.to_pylist() == [{"id": 1, "_queries": 7}, {"id": 2, "_queries": 7}]


def test_rows_have_their_position_and_whether_they_are_deletes() -> None:
    values = [b"{}", b"x", None]
    schema = pa.schema([("_position", pa.binary()), ("_deleted", pa.bool_())])
    decoded = decode(pa.schema([]), *values)
    wanted = OffsetRange("t", 0, 0, 3)
    rows = assemble(schema, wanted, columns_of(values), decoded, TaskConstants(log=7))
    positions = decode_positions(rows.column("_position"))
    assert (positions.offsets.tolist(), positions.logs.tolist()) == ([0, 2], [7, 7])
    assert rows.column("_deleted").to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        (None, {}, "valueFormat json needs a schema"),
        ("id long, _ofset long", {}, "column _ofset: names that begin with _ are those of"),
        ("id long, _key string", {}, "column _key is string; it must be binary"),
        ("id interval day to second", {}, "column id: duration"),
        (SCHEMA, {"valueFormat": "raw"}, "say with valueFormat what the values are"),
    ],
)
def test_schema_that_cannot_be_read_is_refused_before_reading(
    spark: SparkSession,
    topics: Topics,
    schema: str | None,
    options: dict[str, str],
    expected: str,
) -> None:
    topic = topics.create()
    with pytest.raises(PySparkException, match=expected):
        read(spark, topics, topic, schema, **options).collect()
