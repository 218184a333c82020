"""Fetches of clients whose bulk reads are paced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.fetch_pacing import BULK_BYTES_MIN, FetchPacer, PartitionKey
from millstream.broker.server import BrokerServer
from millstream.broker.services import Client
from tests.broker.handlers.test_fetch import API_VERSIONS, FETCH, PRODUCE, fields
from tests.broker.serving import WireClient, serving
from tests.peers.wire import batch, produce_fields


class HeldPartitions(FetchPacer):
    """Holds back the given partitions, for these seconds in turn and then no longer."""

    def __init__(self, held: dict[int, list[float]]) -> None:
        super().__init__()
        self._held = held

    def hold_seconds(self, key: PartitionKey, now: float) -> float:
        seconds = self._held.get(key[1], [])
        return seconds.pop(0) if seconds else 0.0


def client_of(server: BrokerServer) -> Client:
    (connection,) = server.connections._open
    return connection._client


def sizes(answer: Any) -> dict[int, int]:
    """Bytes of records by partition."""
    return {it.partition_index: len(it.records or b"") for it in answer.responses[0].partitions}


def test_held_partition_is_left_out_while_others_are_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 2)])
            for index in (0, 1):
                await client.call(PRODUCE, 3, **produce_fields("t", batch([b"x"]), partition=index))
            client_of(server).fetch_pacer = HeldPartitions({0: [60.0]})
            asked = fields("t", {0: 0, 1: 0}, max_wait=60_000)
            found = sizes(await client.call(FETCH, 11, **asked))
            assert found[0] == 0
            assert found[1] > 0

    asyncio.run(scenario())


def test_held_partition_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            await client.call(PRODUCE, 3, **produce_fields("t", batch([b"x"])))
            client_of(server).fetch_pacer = HeldPartitions({0: [0.001]})
            asked = fields("t", {0: 0}, max_wait=600_000)
            assert sizes(await client.call(FETCH, 11, **asked))[0] > 0

    asyncio.run(scenario())


def test_append_to_a_held_partition_does_not_wake_the_fetch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as consumer:
            await server.topics.create([NewTopic("t", 2)])
            await consumer.call(PRODUCE, 3, **produce_fields("t", batch([b"x"])))
            client_of(server).fetch_pacer = HeldPartitions({0: [60.0, 60.0]})
            consumer.send(FETCH, 11, **fields("t", {0: 0, 1: 0}, max_wait=600_000))
            async with WireClient.connected(server) as producer:
                for index in (0, 1):
                    records = batch([b"y"])
                    await producer.call(PRODUCE, 3, **produce_fields("t", records, partition=index))
                found = sizes(await consumer.receive(FETCH, 11))
            assert found[0] == 0
            assert found[1] > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "version", "is_paced"),
    [
        ("librdkafka", "2.16.0", True),
        ("confluent-kafka-python", "2.16.0-rdkafka-2.16.0", True),
        ("apache-kafka-java", "4.3.1", False),
    ],
)
def test_bulk_reads_are_paced_for_librdkafka_only(
    name: str, version: str, is_paced: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            software = {"client_software_name": name, "client_software_version": version}
            await client.call(API_VERSIONS, 3, **software)
            await client.call(PRODUCE, 3, **produce_fields("t", batch([b"x"])))
            await client.call(FETCH, 11, **fields("t", {0: 0}))
            assert client_of(server).fetch_pacer is None  # a small answer is not counted
            records = batch([b"x" * BULK_BYTES_MIN])
            await client.call(PRODUCE, 3, **produce_fields("t", records))
            await client.call(FETCH, 11, **fields("t", {0: 0}))
            assert (client_of(server).fetch_pacer is not None) == is_paced

    asyncio.run(scenario())
