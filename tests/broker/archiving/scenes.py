"""A broker with an archive, real clients, and what they see of a topic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from millstream.admin.settings import Resource, alter_settings
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from tests.peers.patience import PATIENCE_SECONDS

SEGMENT_BYTES = 4000
START_MS = 1_700_000_000_000
LARGE = 2**40


def settings(archive: str, **more: object) -> dict[str, object]:
    """Everything happens at once."""
    return {
        "millstream.archive.path": archive,
        "remote.log.manager.task.interval.ms": 50,
        "log.retention.check.interval.ms": 50,
        "log.cleaner.backoff.ms": 50,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@contextmanager
def archiving_broker(tmp_path: Path, **more: object) -> Iterator[Broker]:
    with Broker.start(tmp_path / "data", settings(str(tmp_path / "archive"), **more)) as broker:
        yield broker


def create(broker: Broker, topic: str = "orders", **config: object) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    values = {
        "remote.storage.enable": "true",
        "internal.segment.bytes": str(SEGMENT_BYTES),
        "retention.ms": "-1",
        "message.timestamp.before.max.ms": str(2**60),
        **{name.replace("_", "."): str(value) for name, value in config.items()},
    }
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=values)
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)


def alter(broker: Broker, topic: str = "orders", **config: object) -> None:
    values: dict[str, str | None] = {
        name.replace("_", "."): str(value) for name, value in config.items()
    }
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_settings(cluster, Resource.TOPIC, topic, values)


def set_group(broker: Broker, group: str, reset: str) -> None:
    """Where a share group begins."""
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_settings(cluster, Resource.GROUP, group, {"share.auto.offset.reset": reset})


def keep_little(broker: Broker, topic: str = "orders") -> None:
    """On the broker."""
    alter(broker, topic, local_retention_bytes=SEGMENT_BYTES // 2)


def produce(broker: Broker, first: int, end: int, topic: str = "orders", **more: object) -> None:
    """Records whose numbers are their offsets, if nothing else is produced."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0}
    producer = Producer({**options, "batch.num.messages": 10, **more})
    for number in range(first, end):
        producer.produce(
            topic,
            key=b"key%d" % (number % 5),
            value=b"value %d" % number + b"." * 60,
            headers=[("number", str(number))] if number % 3 else None,
            timestamp=START_MS + number,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0


def consume(
    broker: Broker, end: int, topic: str = "orders", first: int = 0, **more: object
) -> list[Any]:
    """The messages from the offset `first` on, until one with the offset `end - 1` or later."""
    options = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        **more,
    }
    consumer = Consumer(options)
    messages: list[Any] = []
    try:
        consumer.assign([TopicPartition(topic, 0, first)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                messages.append(message)
                if message.offset() >= end - 1:
                    return messages
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return messages
            else:
                raise AssertionError(message.error())
        raise AssertionError(f"only {len(messages)} messages")
    finally:
        consumer.close()


def check_records(messages: list[Any], first: int, end: int) -> None:
    assert [message.offset() for message in messages] == list(range(first, end))
    for number, message in enumerate(messages, first):
        assert message.key() == b"key%d" % (number % 5)
        assert message.value() == b"value %d" % number + b"." * 60
        assert message.headers() == ([("number", str(number).encode())] if number % 3 else None)
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, START_MS + number)


def list_offset(broker: Broker, spec: OffsetSpec, topic: str = "orders") -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    wanted = TopicPartition(topic, 0)
    return int(admin.list_offsets({wanted: spec})[wanted].result(PATIENCE_SECONDS).offset)


def local_start(broker: Broker, topic: str = "orders") -> int:
    """Of the files: the broker need not run."""
    directory = broker.data_dir / f"{topic}-0"
    return min(int(path.stem) for path in directory.glob("*.log"))


def archived_end(archive: Path | str, topic: str = "orders") -> int:
    path = str(archive)
    if not open_place(path).list(topic):
        return 0
    found = open_archive(path).topics().get(topic)
    return found[-1].partitions[0].end_offset if found else 0


def manifests(archive: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(archive.rglob("manifest-*.json"))]
