"""Responses: their order, and bounds on those that clients do not read."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.network.test_connection import (
    RecordingTransport,
    connect_without_reading,
    correlation_ids,
    create,
    fetch_fields,
    fetch_frame,
    produce_frame,
)
from tests.broker.serving import WireClient, serving
from tests.peers.wire import Wire, batch, produce_fields, request_frame


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


def test_responses_come_in_the_order_of_the_requests(wire: Wire, millstream: SharedBroker) -> None:
    """A wait for data, appends that wait for a flush, and answers that are ready at once."""
    topic = millstream.unique_topic()
    create(wire, topic)
    requests = [
        produce_frame(topic, 1, acks=-1),
        request_frame("api_versions", 0, 2),
        request_frame("list_groups", 4, 3),
        produce_frame(topic, 4, acks=-1),
        fetch_frame(topic, 5, max_wait=30, offset=2),
        request_frame("metadata", 1, 6),
        request_frame("list_offsets", 1, 7),
        produce_frame(topic, 8),
    ]
    wire.send(b"".join(requests))
    assert correlation_ids(wire, len(requests)) == list(range(1, 9))


def test_slow_reader_is_held_back_and_gets_everything_in_the_end(
    wire: Wire, millstream: SharedBroker
) -> None:
    topic = millstream.unique_topic()
    create(wire, topic)
    wire.send(produce_frame(topic, 0, b"x" * 900_000))
    wire.receive_frame()
    count = 60
    wire.send(b"".join(fetch_frame(topic, number, 0) for number in range(count)))
    with Wire(millstream.bootstrap_servers) as neighbour:
        assert neighbour.call("api_versions", 0).error_code == 0
    sizes = [len(wire.receive_frame()) for _ in range(count)]
    assert min(sizes) > 900_000


def test_unread_responses_are_bounded_and_all_sent_in_the_end(tmp_path: Path) -> None:
    """More is fetched than the connection and the broker may hold together."""

    async def scenario() -> None:
        settings = {"millstream_connection_queued_max_response_bytes": 2**20}
        async with (
            serving(tmp_path, **settings) as server,
            WireClient.connected(server) as client,
        ):
            memory = server.connections.response_memory
            await client.call(3, 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            for _ in range(4):
                records = batch([b"x" * 900_000])
                await client.call(0, 9, **produce_fields("t", records))
            reader, writer = await asyncio.open_connection(*server.addresses[0], limit=2**16)
            count = 300
            writer.write(b"".join(fetch_frame("t", number, 0) for number in range(count)))
            seen = 0
            for _ in range(count):
                seen = max(seen, memory.held_bytes)
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                assert len(await reader.readexactly(size)) > 900_000
            assert 0 < seen <= 2 * 2**20
            writer.close()
            await writer.wait_closed()
            while memory.held_bytes:
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_client_that_reads_is_served_beside_clients_that_hold_all_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, millstream_queued_max_response_bytes=2**20) as server,
            WireClient.connected(server) as client,
        ):
            memory = server.connections.response_memory
            await client.call(3, 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            await client.call(0, 9, **produce_fields("t", batch([b"x" * 900_000])))
            hostile = [await connect_without_reading(server) for _ in range(20)]
            for connection in hostile:
                data = b"".join(fetch_frame("t", number, 0) for number in range(100))
                await asyncio.get_running_loop().sock_sendall(connection, data)
            while memory.held_bytes < 20 * 900_000:
                await client.call(18, 0)
            for _ in range(10):
                fetched = await client.call(1, 11, **fetch_fields("t"))
                assert len(fetched.responses[0].partitions[0].records) > 900_000
            assert memory.held_bytes < 21 * 901_000
            for connection in hostile:
                connection.close()

    asyncio.run(scenario())


def test_waiting_consumer_is_answered_before_the_producer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            writes: list[str] = []
            connections = []
            for name, request in (
                ("consumer", fetch_frame("t", 1, max_wait=60_000)),
                ("producer", produce_frame("t", 1)),
            ):
                connection = server.connections.accept("PLAINTEXT")
                connection.connection_made(RecordingTransport(name, writes))
                connection.get_buffer(-1)[: len(request)] = request
                connection.buffer_updated(len(request))
                connections.append(connection)
            assert writes == ["consumer", "producer"]  # both in the turn of the append
            for connection in connections:
                connection.connection_lost(None)

    asyncio.run(scenario())
