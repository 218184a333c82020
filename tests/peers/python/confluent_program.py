"""confluent-kafka (librdkafka) as a program."""

from __future__ import annotations

import sys
import threading
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Record
from tests.peers.python.serve import Command, say, say_record, serve


def produce(command: Command, records: list[Record]) -> list[tuple[int, int]]:
    producer = Producer(
        {
            "bootstrap.servers": command["bootstrap"],
            "compression.type": command["compression"],
            "acks": command["acks"],
            "enable.idempotence": command["idempotent"],
            "linger.ms": 20,
            "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
            **command["config"],
        }
    )
    positions: dict[int, tuple[int, int]] = {}
    failures: list[str] = []

    def delivered(index: int) -> Any:
        def report(error: Any, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            positions[index] = (message.partition(), message.offset())

        return report

    for index, record in enumerate(records):
        placed = {} if record.partition is None else {"partition": record.partition}
        timed = {} if record.timestamp is None else {"timestamp": record.timestamp}
        producer.produce(
            command["topic"],
            record.value,
            record.key,
            headers=list(record.headers),
            on_delivery=delivered(index),
            **placed,
            **timed,
        )
    producer.flush(PATIENCE_SECONDS)
    if failures:
        raise RuntimeError(failures[0])
    return [positions[index] for index in range(len(records))]


def consume(command: Command) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": command["bootstrap"],
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            **command["config"],
        }
    )
    try:
        topic = command["topic"]
        partitions = consumer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        records: list[Record] = []
        while len(records) < command["count"]:
            message = consumer.poll(PATIENCE_SECONDS)
            if message is None:
                raise RuntimeError(f"only {len(records)} records came")
            records.append(to_record(message))
        return records
    finally:
        consumer.close()


def member(command: Command) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": command["bootstrap"],
            "group.id": command["group"],
            "auto.offset.reset": "earliest",
            **command["config"],
        }
    )
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    consumer.subscribe([command["topic"]])
    owned: set[int] | None = None
    while not stop.is_set():
        message = consumer.poll(0.1)
        now_owned = {partition.partition for partition in consumer.assignment()}
        if now_owned != owned:
            owned = now_owned
            say(assigned=sorted(owned))
        if message is not None and message.error() is None:
            say_record(to_record(message))
    consumer.close()


def transactional_producer(command: Command) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": command["bootstrap"],
            "transactional.id": command["transactional_id"],
            **command["config"],
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def transact(command: Command, transactions: list[tuple[bool, list[Record]]]) -> None:
    producer = transactional_producer(command)
    for commit, records in transactions:
        producer.begin_transaction()
        for record in records:
            producer.produce(command["topic"], record.value, partition=record.partition)
        if commit:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.flush(PATIENCE_SECONDS)  # an abort would throw away what has not left yet
            producer.abort_transaction(PATIENCE_SECONDS)


def transform(command: Command) -> int:
    producer = transactional_producer(command)
    consumer = Consumer(
        {
            "bootstrap.servers": command["bootstrap"],
            "group.id": command["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([command["source"]])
    done, ended = 0, 0
    while done < command["count"]:
        messages = consumer.consume(10, 1)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(command["target"], (to_record(message).value or b"").upper())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(
            positions, consumer.consumer_group_metadata(), PATIENCE_SECONDS
        )
        ended += 1
        if ended == 2:
            producer.abort_transaction(PATIENCE_SECONDS)
            rewind(consumer, messages)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
            done += len(messages)
    consumer.close()
    return ended


def rewind(consumer: Consumer, messages: list[Message]) -> None:
    for message in reversed(messages):
        consumer.seek(TopicPartition(message.topic(), message.partition(), message.offset()))


def to_record(message: Message) -> Record:
    if message.error() is not None:
        raise RuntimeError(str(message.error()))
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
    )


if __name__ == "__main__":
    serve(produce, consume, member, transact, transform)
