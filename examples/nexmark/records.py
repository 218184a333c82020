"""Nexmark's events as records: JSON in three topics, `person`, `auction` and `bid`.

A topic for each kind, where the benchmark has one for all: 17 of its 23 queries read bids alone,
and none of those shall parse what it does not want. So a topic has one flat schema and a watermark
of its own, people and auctions are tables by their keys (and may be compacted), and joins meet
sides that arrive apart, as they do in life. Bids have no key: half of them are for one hot auction,
which would fill one partition.

A record's timestamp is when its event arrived; see `generator.Batch`.

    python -m examples.nexmark.records 127.0.0.1:9092 1000000     so many events into new topics
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from examples.nexmark.generator import SCHEMAS, Batch, Generator, Settings

from millstream.pipelines.writing.encoding.json import JsonEncoder

TOPICS = Batch._fields
KEYS = {"person": "id", "auction": "id"}

# As Spark writes schemas, for `topic(..., schema=...)` and for `from_json`.
SPARK_SCHEMAS = {
    "person": "id long, name string, emailAddress string, creditCard string, city string, "
    "state string, dateTime timestamp, extra string",
    "auction": "id long, itemName string, description string, initialBid long, reserve long, "
    "dateTime timestamp, expires timestamp, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, "
    "dateTime timestamp, extra string",
}


class Records(NamedTuple):
    """Records of one topic, in the order of arrival."""

    topic: str
    keys: pa.Array | None
    values: pa.Array
    timestamps_ms: pa.Array


class Encoder:
    """Turns batches into records."""

    def __init__(self) -> None:
        events = (schema.remove(schema.get_field_index("arrival")) for schema in SCHEMAS)
        self._encoders = [JsonEncoder(schema) for schema in events]

    def encode(self, batch: Batch) -> Iterator[Records]:
        for topic, events, encoder in zip(TOPICS, batch, self._encoders, strict=True):
            key = KEYS.get(topic)
            yield Records(
                topic,
                events[key].cast(pa.string()).cast(pa.binary()) if key else None,
                encoder.encode(events.drop_columns("arrival")),
                events["arrival"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()),
            )


def create_topics(bootstrap_servers: str, partitions: int = 1) -> None:
    """Topics that keep what is old: the events say that they are of January 2026."""
    new = [NewTopic(it, partitions, config={"retention.ms": "-1"}) for it in TOPICS]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics(new).values():
        created.result(60)


def produce(batches: Iterable[Batch], bootstrap_servers: str) -> None:
    """Write events to the topics, which there are, with Kafka's own client."""
    settings = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 20}
    producer = Producer(settings)
    encoder = Encoder()
    for batch in batches:
        for records in encoder.encode(batch):
            keys = records.keys.to_pylist() if records.keys else [None] * len(records.values)
            times = records.timestamps_ms.to_pylist()
            for key, value, time in zip(keys, records.values.to_pylist(), times, strict=True):
                producer.produce(records.topic, value, key, timestamp=time)
        if producer.flush(60):
            raise SystemExit(f"{bootstrap_servers} does not take records")


if __name__ == "__main__":
    create_topics(sys.argv[1])
    produce(Generator(Settings(events=int(sys.argv[2]))).batches(1 << 14), sys.argv[1])
