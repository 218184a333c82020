"""Serializers of confluent-kafka, with a real producer and consumer."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.serialization import StringDeserializer, StringSerializer

from millstream.broker.embedded import Broker
from millstream.shredding import DirectoryKeys, Shredder
from millstream.shredding.serializers import DecryptingDeserializer, EncryptingSerializer
from tests.peers.patience import PATIENCE_SECONDS


def read(bootstrap: str, shredder: Shredder, count: int) -> list[Any]:
    consumer = DeserializingConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "value.deserializer": DecryptingDeserializer(
                StringDeserializer(), shredder, forgotten="forgotten"
            ),
        }
    )
    consumer.subscribe(["orders"])
    found: list[Any] = []
    while len(found) < count:
        record = consumer.poll(PATIENCE_SECONDS)
        assert record is not None
        assert record.error() is None
        found.append(record.value())
    consumer.close()
    return found


def test_values_of_a_forgotten_subject_cannot_be_read(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path / "keys")
    with Broker.start(tmp_path / "data") as broker:
        serializer = EncryptingSerializer(
            StringSerializer(),
            Shredder(keys),
            subject=lambda it: None if it == "public" else it.split()[0],
        )
        producer = SerializingProducer(
            {"bootstrap.servers": broker.bootstrap_servers, "value.serializer": serializer}
        )
        for value in ("alice 1", "bob 2", "public", None):
            producer.produce("orders", value=value, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        shown = read(broker.bootstrap_servers, Shredder(keys), 4)
        assert shown == ["alice 1", "bob 2", "public", None]
        keys.forget("alice")
        shown = read(broker.bootstrap_servers, Shredder(keys), 4)
        assert shown == ["forgotten", "bob 2", "public", None]
