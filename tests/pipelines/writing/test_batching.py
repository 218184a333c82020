"""Which columns make records, what is said of those that do not, and where records go."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.errors import ConfigError
from millstream.pipelines.writing import batching
from millstream.pipelines.writing.batching import Batcher, Layout
from millstream.pipelines.writing.options import parse_write_options
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import read_committed

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "topic": "out"}


def layout(schema: pa.Schema, **options: str) -> Layout:
    return Layout(parse_write_options(LEAST | options, streaming=False), schema)


def test_layout_of_raw_rows_is_the_connectors() -> None:
    found = layout(pa.schema({"key": pa.binary(), "value": pa.string(), "offset": pa.int64()}))
    assert found.columns == {"key": "key"}
    assert found.value_columns == ["value"]


def test_layout_of_json_takes_all_columns_but_the_readers_own() -> None:
    schema = pa.schema({"id": pa.int64(), "key": pa.string(), "_key": pa.binary()})
    found = layout(schema, valueFormat="json")
    assert found.columns == {"key": "_key"}
    assert found.value_columns == ["id", "key"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"id": pa.int64()}),
        pa.schema({"value": pa.int64()}),
        pa.schema({"value": pa.binary(), "price": pa.float64()}),
        pa.schema({"value": pa.binary(), "partition": pa.string()}),
    ],
)
def test_layout_refuses_columns_that_make_no_records(schema: pa.Schema) -> None:
    with pytest.raises(ConfigError):
        layout(schema)


# On a broker


@pytest.fixture
def cluster(topics: Topics) -> Iterator[Cluster]:
    with Cluster(topics.bootstrap) as opened:
        yield opened


def write(cluster: Cluster, rows: pa.RecordBatch, **options: str) -> list[Any]:
    """Where rows came to lie: topic, partition and how many."""
    producer = RawProducer(cluster)
    producer.begin()
    given = {"kafka.bootstrap.servers": "unused:1"} | options
    Batcher(parse_write_options(given, streaming=False), cluster, producer).write([rows])
    return sorted((it.topic, it.partition, it.record_count) for it in producer.flush())


def test_partition_of_a_row_is_checked_against_its_own_topic(
    topics: Topics, cluster: Cluster
) -> None:
    many, few = topics.create(10), topics.create(3)
    columns = {"topic": [many, few], "partition": pa.array([7, 1], pa.int32()), "value": ["a", "b"]}
    assert write(cluster, pa.record_batch(columns)) == sorted([(many, 7, 1), (few, 1, 1)])
    columns["partition"] = pa.array([1, 7], pa.int32())
    with pytest.raises(ConfigError, match=f"says 7, but {few} has 3 partitions"):
        write(cluster, pa.record_batch(columns))


def test_keys_are_dealt_to_partitions_that_a_topic_got_since(
    topics: Topics, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(1)
    rows = pa.record_batch({"key": [str(it) for it in range(100)], "value": ["x"] * 100})
    write(cluster, rows, topic=topic)
    topics.grow(topic, 2)
    assert {partition for _, partition, _ in write(cluster, rows, topic=topic)} == {0}
    monkeypatch.setattr(batching, "TOPIC_SECONDS_OLD_MAX", 0.0)
    assert {partition for _, partition, _ in write(cluster, rows, topic=topic)} == {0, 1}


def test_decimal_key_is_written_with_all_its_digits(topics: Topics, cluster: Cluster) -> None:
    topic = topics.create(1)
    price = pa.array([Decimal("0.0000000001")], pa.decimal128(38, 10))
    write(
        cluster,
        pa.record_batch({"price": price}),
        topic=topic,
        valueFormat="json",
        keyColumns="price",
    )
    assert [it.key() for it in read_committed(topics.bootstrap, topic, at_least=1)] == [
        b"0.0000000001"
    ]
