"""kafka-python as a program."""

from __future__ import annotations

import sys
import threading
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Record
from tests.peers.python.serve import Command, say, say_record, serve

LONG_POLL_MS = 5_000  # see `group_consumer`


def produce(command: Command, records: list[Record]) -> list[tuple[int, int]]:
    compression = command["compression"]
    acks = command["acks"]
    producer = KafkaProducer(
        bootstrap_servers=command["bootstrap"],
        compression_type=None if compression == "none" else compression,
        acks="all" if acks == "all" else int(acks),
        enable_idempotence=command["idempotent"],
        linger_ms=20,
        **command["config"],
    )
    try:
        futures = [
            producer.send(
                command["topic"],
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        results = [future.get(timeout=PATIENCE_SECONDS) for future in futures]
        return [(result.partition, result.offset) for result in results]
    finally:
        producer.close()


def consume(command: Command) -> list[Record]:
    consumer = KafkaConsumer(
        bootstrap_servers=command["bootstrap"],
        enable_auto_commit=False,
        consumer_timeout_ms=PATIENCE_SECONDS * 1000,
        **command["config"],
    )
    try:
        topic = command["topic"]
        partitions = consumer.partitions_for_topic(topic) or set()
        consumer.assign([TopicPartition(topic, index) for index in sorted(partitions)])
        consumer.seek_to_beginning()
        records: list[Record] = []
        for message in consumer:
            records.append(to_record(message))
            if len(records) == command["count"]:
                return records
        raise RuntimeError(f"only {len(records)} records came")
    finally:
        consumer.close()


class SayAssigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells what the member owns when it does, which may be long before its poll returns."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """What comes next is all that it owns then."""

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        say(assigned=sorted(it.partition for it in assigned))


def group_consumer(
    command: Command,
    topic: str,
    listener: ConsumerRebalanceListener | None = None,
    **config: Any,
) -> KafkaConsumer:
    """A member of the command's group that knows the topic before it subscribes to it.

    When a poll of kafka-python 3.0.12 times out between JoinGroup and SyncGroup, the member takes
    itself for joined and waits forever: it drops the answer to its SyncGroup and sends no
    heartbeats. The fault is the client's and shows with Apache Kafka as well. So polls here are
    long, and joins few: as it starts the client asks for metadata without topics, and forgets a
    subscription made meanwhile, which costs it a second join; unless it has seen the topic before.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=command["bootstrap"],
        group_id=command["group"],
        auto_offset_reset="earliest",
        **config,
    )
    while not consumer.partitions_for_topic(topic):
        pass
    consumer.subscribe([topic], listener=listener)
    return consumer


def member(command: Command) -> None:
    consumer = group_consumer(command, command["topic"], SayAssigned(), **command["config"])
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    while not stop.is_set():
        fetched = consumer.poll(timeout_ms=LONG_POLL_MS)
        for messages in fetched.values():
            for message in messages:
                say_record(to_record(message))
    consumer.close()


def transactional_producer(command: Command) -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=command["bootstrap"],
        transactional_id=command["transactional_id"],
        **command["config"],
    )
    producer.init_transactions()
    return producer


def transact(command: Command, transactions: list[tuple[bool, list[Record]]]) -> None:
    producer = transactional_producer(command)
    for commit, records in transactions:
        producer.begin_transaction()
        for record in records:
            producer.send(command["topic"], value=record.value, partition=record.partition)
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    producer.close()


def transform(command: Command) -> int:
    producer = transactional_producer(command)
    consumer = group_consumer(
        command,
        command["source"],
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=10,
    )
    done, ended = 0, 0
    while done < command["count"]:
        fetched = consumer.poll(timeout_ms=LONG_POLL_MS)
        if not fetched:
            continue
        messages = [message for partition in fetched.values() for message in partition]
        producer.begin_transaction()
        for message in messages:
            producer.send(command["target"], value=message.value.upper())
        offsets = {
            partition: OffsetAndMetadata(consumer.position(partition), "", -1)
            for partition in fetched
        }
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        ended += 1
        if ended == 2:
            producer.abort_transaction()
            for partition, records in fetched.items():
                consumer.seek(partition, records[0].offset)
        else:
            producer.commit_transaction()
            done += len(messages)
    consumer.close()
    producer.close()
    return ended


def to_record(message: Any) -> Record:
    return Record(
        key=message.key,
        value=message.value,
        headers=tuple(message.headers or ()),
        partition=message.partition,
        offset=message.offset,
        timestamp=message.timestamp,
    )


if __name__ == "__main__":
    serve(produce, consume, member, transact, transform)
