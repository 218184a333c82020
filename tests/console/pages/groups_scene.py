"""Groups, queues, transactions and dead letters for the tests of their pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer

from millstream.admin.groups import commit_offsets
from millstream.admin.settings import Resource, alter_settings
from millstream.client.topics import NewTopic, create_topics
from tests.console.conftest import Console
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR, TransactionalProducer

HOSTILE = '"><img src=x onerror=alert(1)>'
DEAD_LETTER_SETTING = "errors.deadletterqueue.group.enable"


def make_topic(
    console: Console, name: str, records: int = 0, *, partitions: int = 1, **settings: str
) -> None:
    """With records of `{"number": 0}` and so on in its first partition."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    with console.cluster() as cluster:
        create_topics(cluster, [NewTopic(name, partitions, named)])
    write(console, name, [(f"k{n}", f'{{"number": {n}}}') for n in range(records)])


def write(
    console: Console,
    topic: str,
    records: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    producer = Producer({"bootstrap.servers": console.bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key=key, partition=0, headers=list(headers))
    assert producer.flush(60) == 0


def make_group(console: Console, group: str, topic: str, offset: int) -> None:
    """A group without members that has committed an offset of the first partition."""
    with console.cluster() as cluster:
        commit_offsets(cluster, group, {(topic, 0): offset})


@contextmanager
def reader(
    console: Console, group: str, topic: str, client: str = "till", protocol: str = "classic"
) -> Iterator[Consumer]:
    """A consumer that has its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": console.bootstrap_servers,
            "group.id": group,
            "client.id": client,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])

    def has_partitions() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    try:
        wait_until(has_partitions)
        yield consumer
    finally:
        consumer.close()


@contextmanager
def queue_member(
    console: Console, group: str, topic: str, records: int, client: str = "worker"
) -> Iterator[tuple[ShareConsumer, list[Any]]]:
    """A member of a share group that holds so many records."""
    with console.cluster() as cluster:
        alter_settings(cluster, Resource.GROUP, group, {"share.auto.offset.reset": "earliest"})
    member = ShareConsumer(
        {
            "bootstrap.servers": console.bootstrap_servers,
            "group.id": group,
            "client.id": client,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    member.subscribe([topic])
    held: list[Any] = []

    def holds_all() -> bool:
        held.extend(member.poll(1.0))
        return len(held) >= records

    try:
        wait_until(holds_all)
        yield member, held
    finally:
        member.close()


def acknowledge(member: ShareConsumer, held: Sequence[Any], kind: AcknowledgeType) -> None:
    for record in held:
        member.acknowledge(record, kind)
    member.commit_sync()


@contextmanager
def open_transaction(console: Console, transactional_id: str, topic: str) -> Iterator[Producer]:
    """A transaction that has written one record."""
    producer = Producer(
        {
            "bootstrap.servers": console.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction", partition=0)
    producer.flush(60)
    yield producer


def hang(console: Console, topic: str) -> None:
    """A transaction that no coordinator knows of, silent for an hour, from the first record on."""
    verification = "transaction.partition.verification.enable"
    with console.cluster() as cluster:
        broker = str(cluster.broker_ids()[0])
        alter_settings(cluster, Resource.BROKER, broker, {verification: "false"})
        try:
            with TransactionalProducer(
                console.bootstrap_servers, f"lost-{topic}", protocol=1
            ) as producer:
                assert producer.init() == NO_ERROR
                old_ms = round(time.time() * 1000) - 3_600_000

                def is_written() -> bool:
                    written = producer.produce(topic, [b"lost"], timestamp_ms=old_ms)
                    return bool(written.error_code == NO_ERROR)

                wait_until(is_written)
        finally:
            alter_settings(cluster, Resource.BROKER, broker, {verification: None})


def letter_headers(
    topic: str, offset: int, *, group: str = "billing", reason: str = "limit", message: str = "bad"
) -> list[tuple[str, bytes]]:
    """As a share group writes them."""
    errors = {
        "topic": topic,
        "partition": "0",
        "offset": str(offset),
        "group": group,
        "reason": reason,
        "message": message,
        "delivery.count": "5",
    }
    return [(f"__dlq.errors.{name}", text.encode()) for name, text in errors.items()]


def make_letters(console: Console, topic: str, source: str, count: int, **errors: str) -> None:
    """Letters about the first records of the source, each with a copy."""
    for number in range(count):
        headers = letter_headers(source, number, **errors)
        write(console, topic, [(f"k{number}", f'{{"number": {number}}}')], headers)
