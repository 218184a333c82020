"""The same broker from asyncio, with aiokafka: any Kafka client works."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from millstream import Broker


async def exchange(bootstrap_servers: str) -> list[bytes]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all") as producer:
        for word in (b"to", b"and", b"fro"):
            await producer.send_and_wait("words", word)
    words: list[bytes] = []
    async with AIOKafkaConsumer(
        "words", bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        async for message in consumer:
            words.append(message.value)
            if len(words) == 3:
                break
    return words


def main() -> None:
    with Broker.start() as broker:
        words = asyncio.run(exchange(broker.bootstrap_servers))
        print(words)
        assert words == [b"to", b"and", b"fro"]


if __name__ == "__main__":
    main()
