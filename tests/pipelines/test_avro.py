"""Avro through Spark: from topics, through pipelines, into topics, with real schema registries."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from millstream.client.schema_registry import Registry, RegistrySettings
from millstream.pipelines import pipeline, topic
from tests.peers.apicurio import program, start_apicurio
from tests.peers.cache import PeerMissing
from tests.peers.kafka import start_kafka
from tests.peers.schema_registry import running_registry
from tests.pipelines.conftest import Topics
from tests.pipelines.reading.decoding.avro_values import avro, framed, logical, record, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AMOUNT = {"type": ["null", "double"], "default": None}
ORDER_1 = record("Order", id="long", user="string")
ORDER_2 = record("Order", user=["null", "string"], id="long", amount=AMOUNT)
COLUMNS = "id long, user string, amount double"


def values_of(bootstrap: str, name: str) -> list[bytes]:
    """What a read-committed consumer sees of the topic's one partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        values: list[bytes] = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:  # the end
                return values
            values.append(message.value())
    finally:
        consumer.close()


def test_avro_of_all_types_arrives_in_spark(spark: SparkSession, topics: Topics) -> None:
    source = topics.create()
    inner = record("inner", tags={"type": "array", "items": ["null", "string"]})
    schema = record(
        flag="boolean",
        price=logical("bytes", "decimal", precision=10, scale=2),
        day=logical("int", "date"),
        at=logical("long", "timestamp-millis"),
        color={"type": "enum", "name": "color", "symbols": ["RED"]},
        inner=inner,
        counts={"type": "map", "values": "int"},
        clock=logical("int", "time-millis"),
    )
    row = {
        "flag": True,
        "price": Decimal("12.50"),
        "day": date(2026, 11, 14),
        "at": datetime(2026, 11, 14, 10, tzinfo=UTC),
        "color": "RED",
        "inner": {"tags": ["x", None]},
        "counts": {"k": 1},
    }
    topics.fill(source, [avro(schema, row | {"clock": 1}), None, b"\x02"])
    frame = (
        spark.read.format("millstream")
        .schema(
            "flag boolean, price decimal(10,2), day date, at timestamp, color string, "
            "inner struct<tags: array<string>>, counts map<string, int>, clock int, "
            "_error string"
        )
        .options(
            **{
                "kafka.bootstrap.servers": topics.bootstrap,
                "subscribe": source,
                "valueFormat": "avro",
                "avroSchema": text_of(schema),
                "mode": "drop",
            }
        )
        .load()
    )
    first, tombstone, bad = frame.collect()
    assert first.asDict(recursive=True) == row | {
        "at": first["at"],
        "clock": 1,
        "_error": None,
    }
    assert first["at"].timestamp() == row["at"].timestamp()  # type: ignore[attr-defined]
    assert tombstone["flag"] is None
    assert bad["_error"].startswith("malformed: ")


def test_columns_are_those_of_the_schema_unless_named(spark: SparkSession, topics: Topics) -> None:
    source = topics.create()
    with running_registry() as registry:
        number = registry.add(f"{source}-value", ORDER_2)
        topics.fill(source, [framed(number, avro(ORDER_2, {"id": 1, "user": "a", "amount": 2.0}))])
        frame = (
            spark.read.format("millstream")
            .option("kafka.bootstrap.servers", topics.bootstrap)
            .option("subscribe", source)
            .option("valueFormat", "avro")
            .option("schema.registry.url", registry.url)
            .load()
        )
        assert frame.collect() == [("a", 1, 2.0)]
        assert frame.schema.simpleString() == "struct<user:string,id:bigint,amount:double>"


def run_pipeline(
    spark: SparkSession,
    topics: Topics,
    registry_url: str,
    directory: Path,
    columns: str | None = COLUMNS,
) -> tuple[str, str]:
    """Orders of two schemas and a broken one, with taxes, into another topic as Avro."""
    source, target = topics.create(), topics.create()
    registry = Registry(RegistrySettings((registry_url,)))
    first = registry.register(f"{source}-value", text_of(ORDER_1))
    second = registry.register(f"{source}-value", text_of(ORDER_2))
    topics.fill(
        source,
        [
            framed(first, avro(ORDER_1, {"id": 1, "user": "ann"})),
            framed(second, avro(ORDER_2, {"id": 2, "user": None, "amount": 2.5})),
            framed(second, b"\x04"),
            framed(first, avro(ORDER_1, {"id": 3, "user": "eve"})),
        ],
    )
    options = {"schema.registry.url": registry_url}

    @pipeline(
        reads=topic(source, format="avro", schema=columns, options=options),
        writes=topic(target, format="avro", key="id", options=options),
        name=f"taxes-{target}",
    )
    def taxes(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("id", "user", "amount * 1.25 as total")

    query = taxes.start(
        spark, broker=topics.bootstrap, checkpoint=str(directory / "checkpoints"), once=True
    )
    query.awaitTermination()
    return source, target


def check_pipeline(topics: Topics, registry_url: str, source: str, target: str) -> None:
    registry = Registry(RegistrySettings((registry_url,)))
    number, latest = registry.latest(f"{target}-value")
    schema = fastavro.parse_schema(json.loads(latest.text))
    rows: list[Any] = []
    for value in values_of(topics.bootstrap, target):
        assert value[:5] == framed(number, b"")
        rows.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None))
    assert rows == [
        {"id": 1, "user": "ann", "total": None},
        {"id": 2, "user": None, "total": 3.125},
        {"id": 3, "user": "eve", "total": None},
    ]
    assert values_of(topics.bootstrap, f"dlq.{source}") == [b"\0\0\0\0\x02\x04"]


def test_pipeline_reads_and_writes_avro_by_a_registry(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    with running_registry() as registry:
        source, target = run_pipeline(spark, topics, registry.url, tmp_path)
        check_pipeline(topics, registry.url, source, target)


def test_pipeline_reads_the_columns_of_the_newest_schema(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    with running_registry() as registry:
        source, target = run_pipeline(spark, topics, registry.url, tmp_path, columns=None)
        check_pipeline(topics, registry.url, source, target)


def test_schema_may_be_taken_from_the_registry(spark: SparkSession, topics: Topics) -> None:
    target = topics.create()
    with running_registry() as registry:
        number = registry.add(f"{target}-value", ORDER_1)
        (
            spark.createDataFrame([(1, "ann")], "id long, user string")
            .write.format("millstream")
            .mode("append")
            .options(
                **{
                    "kafka.bootstrap.servers": topics.bootstrap,
                    "topic": target,
                    "valueFormat": "avro",
                    "schema.registry.url": registry.url,
                    "auto.register.schemas": "false",
                }
            )
            .save()
        )
        assert list(registry.schemas) == [number]
    expected = framed(number, avro(ORDER_1, {"id": 1, "user": "ann"}))
    assert values_of(topics.bootstrap, target) == [expected]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Topics]:
    try:
        program()
        server = start_kafka(tmp_path / "kafka", {"group.initial.rebalance.delay.ms": "0"})
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield Topics(server)
    server.stop()


@pytest.mark.java
def test_pipeline_reads_and_writes_avro_on_kafka_by_apicurio(
    spark: SparkSession, kafka: Topics, tmp_path: Path
) -> None:
    apicurio = start_apicurio(tmp_path / "apicurio")
    try:
        source, target = run_pipeline(spark, kafka, apicurio.url, tmp_path)
        check_pipeline(kafka, apicurio.url, source, target)
    finally:
        apicurio.stop()
