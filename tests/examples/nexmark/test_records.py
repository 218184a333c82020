"""Events as records: what a consumer reads from a broker is what was generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message
from examples.nexmark.generator import SCHEMAS, Generator, Settings
from examples.nexmark.records import SPARK_SCHEMAS, TOPICS, Encoder, create_topics, produce

from tests.peers.servers import Server, start_millstream

SETTINGS = Settings(events=1_000, seed=2, events_per_second=100)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    server = start_millstream(tmp_path / "data")
    yield server
    server.stop()


def read(bootstrap: str, count: int) -> dict[str, list[Message]]:
    """So many records, by topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "nexmark", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(list(TOPICS))
    found: dict[str, list[Message]] = {topic: [] for topic in TOPICS}
    while sum(map(len, found.values())) < count:
        message = consumer.poll(60)
        assert message is not None, f"{sum(map(len, found.values()))} of {count} records came"
        assert message.error() is None, message.error()
        found[message.topic()].append(message)
    consumer.close()
    return found


def as_json(table: pa.Table) -> list[str]:
    """The rows as a reader of JSON sees them, in an order that does not matter."""
    rows = table.drop_columns("arrival").to_pylist()
    for row in rows:
        for name in {"dateTime", "expires"} & set(row):
            row[name] = row[name].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_topics_hold_the_events_with_the_time_of_their_arrival(broker: Server) -> None:
    generator = Generator(SETTINGS)
    create_topics(broker.bootstrap)
    produce(generator.batches(256), broker.bootstrap)
    found = read(broker.bootstrap, SETTINGS.events)
    for topic, table in generator.tables()._asdict().items():
        values = [json.loads(message.value()) for message in found[topic]]
        assert sorted(json.dumps(value, sort_keys=True) for value in values) == as_json(table)
        arrivals = table["arrival"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
        assert sorted(message.timestamp()[1] for message in found[topic]) == arrivals
        keys = [message.key() and int(message.key()) for message in found[topic]]
        expected = [value["id"] for value in values] if topic != "bid" else [None] * len(values)
        assert keys == expected


def test_records_are_the_same_in_batches_of_any_size() -> None:
    generator, encoder = Generator(SETTINGS), Encoder()
    by_size = []
    for size in (64, 1_000_000):
        values: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        for batch in generator.batches(size):
            for records in encoder.encode(batch):
                values[records.topic] += records.values.to_pylist()
        by_size.append(values)
    assert by_size[0] == by_size[1]


def test_schemas_for_spark_name_the_columns_of_the_events() -> None:
    types = {pa.int64(): "long", pa.string(): "string"}
    for topic, schema in zip(TOPICS, SCHEMAS, strict=True):
        names = [f"{it.name} {types.get(it.type, 'timestamp')}" for it in schema]
        assert SPARK_SCHEMAS[topic].split(", ") == names[:-1]  # all but the arrival
