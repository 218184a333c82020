"""Bridges on the session's broker, and what they wrote."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from millstream.bridges.config import parse_config
from millstream.bridges.running import Bridge

PATIENCE_SECONDS = 120.0


class Cluster(Protocol):
    """Millstream or Apache Kafka."""

    @property
    def bootstrap_servers(self) -> str: ...


@contextmanager
def bridge_to(millstream: Cluster, **tables: Any) -> Iterator[Bridge]:
    with Bridge(parse_config({"broker": millstream.bootstrap_servers, **tables})) as running:
        yield running


def request(
    address: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and body, decoded if it is JSON."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def read_records(millstream: Cluster, topic: str, count: int) -> list[Any]:
    """The first records of partition 0, when that many are there."""
    consumer = Consumer(
        {"bootstrap.servers": millstream.bootstrap_servers, "group.id": "unused", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < until:
        found += [it for it in consumer.consume(count, 0.5) if it.error() is None]
    consumer.close()
    assert len(found) >= count, f"{topic} has {len(found)} records, not {count}"
    return found


def read_all(millstream: Cluster, topic: str) -> list[Any]:
    """The records of all partitions up to their ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": millstream.bootstrap_servers,
            "group.id": "unused",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, it, OFFSET_BEGINNING) for it in partitions])
    found: list[Any] = []
    ended: set[int] = set()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(ended) < len(partitions):
        assert time.monotonic() < until, f"{topic} cannot be read to its end"
        for each in consumer.consume(1000, 0.2):
            if each.error() is None:
                found.append(each)
            elif each.error().code() == KafkaError._PARTITION_EOF:
                ended.add(each.partition())
    consumer.close()
    return found
