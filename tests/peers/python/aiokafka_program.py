"""aiokafka as a program."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Record
from tests.peers.python.serve import Command, say, say_record, serve


async def produce(command: Command, records: list[Record]) -> list[tuple[int, int]]:
    compression = command["compression"]
    acks = command["acks"]
    producer = AIOKafkaProducer(
        bootstrap_servers=command["bootstrap"],
        compression_type=None if compression == "none" else compression,
        acks="all" if acks == "all" else int(acks),
        enable_idempotence=command["idempotent"],
        linger_ms=20,
        **command["config"],
    )
    await producer.start()
    try:
        futures = [
            await producer.send(
                command["topic"],
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        results = [await asyncio.wait_for(future, PATIENCE_SECONDS) for future in futures]
        # acks=0 has no answer, hence no position
        return [(result.partition, result.offset) for result in results if result is not None]
    finally:
        await producer.stop()


async def consume(command: Command) -> list[Record]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=command["bootstrap"], enable_auto_commit=False, **command["config"]
    )
    await consumer.start()
    try:
        topic = command["topic"]
        # partitions_for_topic knows only topics the client already follows
        cluster = await consumer._client.fetch_all_metadata()
        partitions = cluster.partitions_for_topic(topic) or set()
        assignment = [TopicPartition(topic, index) for index in sorted(partitions)]
        consumer.assign(assignment)
        await consumer.seek_to_beginning(*assignment)
        records: list[Record] = []
        while len(records) < command["count"]:
            records.append(to_record(await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)))
        return records
    finally:
        await consumer.stop()


async def member(command: Command) -> None:
    consumer = AIOKafkaConsumer(
        command["topic"],
        bootstrap_servers=command["bootstrap"],
        group_id=command["group"],
        auto_offset_reset="earliest",
        **command["config"],
    )
    await consumer.start()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    ended = loop.run_in_executor(None, sys.stdin.read)
    ended.add_done_callback(lambda _: stop.set())
    owned: set[int] | None = None
    while not stop.is_set():
        fetched = await consumer.getmany(timeout_ms=100)
        now_owned = {partition.partition for partition in consumer.assignment()}
        if now_owned != owned:
            owned = now_owned
            say(assigned=sorted(owned))
        for messages in fetched.values():
            for message in messages:
                say_record(to_record(message))
    await consumer.stop()


def transactional_producer(command: Command) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=command["bootstrap"],
        transactional_id=command["transactional_id"],
        **command["config"],
    )


async def transact(command: Command, transactions: list[tuple[bool, list[Record]]]) -> None:
    async with transactional_producer(command) as producer:
        for commit, records in transactions:
            await producer.begin_transaction()
            for record in records:
                await producer.send_and_wait(
                    command["topic"], value=record.value, partition=record.partition
                )
            await (producer.commit_transaction() if commit else producer.abort_transaction())


async def transform(command: Command) -> int:
    consumer = AIOKafkaConsumer(
        command["source"],
        bootstrap_servers=command["bootstrap"],
        group_id=command["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    done, ended = 0, 0
    async with transactional_producer(command) as producer, consumer:
        while done < command["count"]:
            fetched = await consumer.getmany(timeout_ms=1000, max_records=10)
            if not fetched:
                continue
            messages = [message for partition in fetched.values() for message in partition]
            await producer.begin_transaction()
            for message in messages:
                await producer.send(command["target"], value=message.value.upper())
            offsets = {part: records[-1].offset + 1 for part, records in fetched.items()}
            await producer.send_offsets_to_transaction(offsets, command["group"])
            ended += 1
            if ended == 2:
                await producer.abort_transaction()
                for partition, records in fetched.items():
                    consumer.seek(partition, records[0].offset)
            else:
                await producer.commit_transaction()
                done += len(messages)
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
    serve(
        lambda command, records: asyncio.run(produce(command, records)),
        lambda command: asyncio.run(consume(command)),
        lambda command: asyncio.run(member(command)),
        lambda command, transactions: asyncio.run(transact(command, transactions)),
        lambda command: asyncio.run(transform(command)),
    )
