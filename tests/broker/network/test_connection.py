"""One connection: bounds, and clients that break the protocol."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.network.connection import (
    MUTE_MS_MAX,
    TASKS_MAX,
    TURN_REQUESTS_MAX,
    Connection,
)
from millstream.broker.server import BrokerServer
from millstream.protocol.framing import FrameReader
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.serving import WireClient, serving
from tests.peers.wire import Wire, batch, frame, request_frame


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


def produce_frame(topic: str, correlation_id: int, value: bytes = b"x", acks: int = 1) -> bytes:
    partition = {"index": 0, "records": batch([value])}
    return request_frame(
        "produce",
        9,
        correlation_id,
        acks=acks,
        timeout=1000,
        topic_data=[{"name": topic, "partition_data": [partition]}],
    )


def fetch_frame(topic: str, correlation_id: int, max_wait: int, offset: int = 0) -> bytes:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return request_frame(
        "fetch",
        11,
        correlation_id,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=2**30,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [partition]}],
    )


def fetch_fields(topic: str) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**30,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }


def join_frame(group_id: str) -> bytes:
    return request_frame(
        "join_group",
        2,
        group_id=group_id,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"x" * 100}],
    )


async def connect_without_reading(server: BrokerServer) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(connection, server.addresses[0])
    return connection


class FakeTransport(asyncio.Transport):
    """Sends everything at once, and counts the frames."""

    def __init__(self) -> None:
        super().__init__()
        self._is_reading = True
        self._sent = FrameReader(2**30)
        self.frame_count = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            buffer = self._sent.get_buffer()
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self._sent.buffer_updated(size)
            while self._sent.next_frame() is not None:
                self.frame_count += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class RecordingTransport(FakeTransport):
    """Adds its name to a list with every write."""

    def __init__(self, name: str, writes: list[str]) -> None:
        super().__init__()
        self._name = name
        self._writes = writes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._writes.append(self._name)


def create(wire: Wire, topic: str) -> None:
    wire.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=True)


def correlation_ids(wire: Wire, count: int) -> list[int]:
    return [struct.unpack_from(">i", wire.receive_frame())[0] for _ in range(count)]


def test_more_requests_than_may_be_in_flight_are_all_answered(
    wire: Wire, millstream: SharedBroker
) -> None:
    topic = millstream.unique_topic()
    create(wire, topic)
    count = 1000
    wire.send(b"".join(produce_frame(topic, number, acks=-1) for number in range(count)))
    assert correlation_ids(wire, count) == list(range(count))


def test_pipelined_requests_are_handled_in_several_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            connection = server.connections.accept("PLAINTEXT")
            transport = FakeTransport()
            connection.connection_made(transport)
            count = 1000
            stream = b"".join(request_frame("api_versions", 0, n) for n in range(count))
            connection.get_buffer(-1)[: len(stream)] = stream
            connection.buffer_updated(len(stream))
            assert 0 < transport.frame_count <= TURN_REQUESTS_MAX
            assert not transport.is_reading()
            while not transport.is_reading():
                await asyncio.sleep(0)
            assert transport.frame_count == count
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_tasks_under_way_and_their_requests_are_bounded(tmp_path: Path) -> None:
    """A member waits for others to join: the requests behind it wait in the socket."""

    async def scenario() -> None:
        async with (
            serving(tmp_path, group_initial_rebalance_delay_ms=100) as server,
            WireClient.connected(server) as client,
        ):
            await client.call(10, 2, key="group", key_type=0)
            connection = server.connections.accept("PLAINTEXT")
            transport = FakeTransport()
            connection.connection_made(transport)
            stream = b"".join(join_frame(f"group-{n}") for n in range(2 * TASKS_MAX))
            connection.get_buffer(-1)[: len(stream)] = stream
            connection.buffer_updated(len(stream))
            most = 0
            while transport.frame_count < 2 * TASKS_MAX:
                names = [it.get_coro().__qualname__ for it in asyncio.all_tasks()]
                most = max(most, names.count("Route.run"))
                await asyncio.sleep(0)
            assert most == TASKS_MAX
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_request_that_its_handler_keeps_counts_until_it_is_answered(tmp_path: Path) -> None:
    """One is decoded for a task, the other waits for records."""

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            memory = server.connections.receive_buffer
            for request in (join_frame("group"), fetch_frame("t", 1, max_wait=20)):
                connection = server.connections.accept("PLAINTEXT")
                transport = FakeTransport()
                connection.connection_made(transport)
                connection.get_buffer(-1)[: len(request)] = request
                connection.buffer_updated(len(request))
                assert memory.kept_bytes > len(request) / 2
                while not transport.frame_count:
                    await asyncio.sleep(0.001)
                assert memory.kept_bytes == 0
                connection.connection_lost(None)

    asyncio.run(scenario())


def test_waiting_request_does_not_count_after_its_connection_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            connection = server.connections.accept("PLAINTEXT")
            connection.connection_made(FakeTransport())
            request = fetch_frame("t", 1, max_wait=60_000)
            connection.get_buffer(-1)[: len(request)] = request
            connection.buffer_updated(len(request))
            assert server.connections.receive_buffer.kept_bytes > 0
            connection.connection_lost(None)
            assert server.connections.receive_buffer.kept_bytes == 0

    asyncio.run(scenario())


def receive(connection: Connection, stream: bytes) -> None:
    connection.get_buffer(-1)[: len(stream)] = stream
    connection.buffer_updated(len(stream))


def test_muted_connection_answers_what_it_has_handled_and_then_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create([NewTopic("t", 1)])
            connection = server.connections.accept("PLAINTEXT")
            transport = FakeTransport()
            connection.connection_made(transport)
            receive(connection, produce_frame("t", 1, acks=-1))  # answered after a flush
            connection.mute(3_600_000)
            assert connection.is_muted
            assert not transport.is_reading()
            while not transport.frame_count:
                await asyncio.sleep(0)
            receive(connection, request_frame("api_versions", 0, 2) * 2)
            for _ in range(10):
                await asyncio.sleep(0)
            assert transport.frame_count == 1
            connection.unmute()
            assert transport.frame_count == 3
            assert transport.is_reading()
            assert not connection.is_muted
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_mute_ends_by_itself_and_is_never_longer_than_its_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            connection = server.connections.accept("PLAINTEXT")
            transport = FakeTransport()
            connection.connection_made(transport)
            connection.mute(0)
            assert not connection.is_muted
            connection.mute(2**40)
            timer = connection._unmute_timer
            assert timer is not None
            assert timer.when() <= server.loop.time() + MUTE_MS_MAX / 1000
            connection.mute(1)  # does not make it shorter
            assert connection._unmute_timer is not None
            assert connection._unmute_timer.when() == pytest.approx(timer.when(), abs=1)
            connection.unmute()
            connection.mute(1)
            while connection.is_muted:
                await asyncio.sleep(0)
            assert transport.is_reading()
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_muted_connection_is_not_closed_for_being_idle(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            connection = server.connections.accept("PLAINTEXT")
            connection.connection_made(FakeTransport())
            connection.mute(3_600_000)
            connection.last_active -= 3600
            server.connections.close_idle()
            assert not connection.is_closing
            connection.unmute()
            server.connections.close_idle()
            assert not connection.is_closing
            connection.last_active -= 3600
            server.connections.close_idle()
            assert connection.is_closing
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_muted_connection_that_is_closed_or_lost_leaves_no_timer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            connection = server.connections.accept("PLAINTEXT")
            connection.connection_made(FakeTransport())
            connection.mute(3_600_000)
            receive(connection, request_frame("api_versions", 0, 1))
            connection.close_when_answered()
            connection.connection_lost(None)
            assert not connection.is_muted
            connection.mute(3_600_000)
            assert not connection.is_muted
            assert server.connections.receive_buffer.kept_bytes == 0

    asyncio.run(scenario())


BAD_FRAMES = {
    "negative length": struct.pack(">i", -5),
    "length beyond the limit": struct.pack(">i", 2**31 - 1),
    "no header": frame(b"\0\0"),
    "client id past the end": frame(struct.pack(">hhih", 3, 1, 1, 500)),
    "unknown api": frame(struct.pack(">hhih", 999, 1, 1, -1)),
    "unknown version": frame(struct.pack(">hhih", 3, 99, 1, -1)),
    "negative version": frame(struct.pack(">hhih", 3, -1, 1, -1)),
    "body cut short": frame(struct.pack(">hhih", 0, 3, 1, -1) + b"\xff\xff"),
    "array of two billion": frame(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)),
    "array of a billion through kio": frame(struct.pack(">hhihi", 19, 2, 1, -1, 10**9)),
}


@pytest.mark.parametrize("bad", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_malformed_frame_closes_its_connection_with_one_line_and_no_other(
    bad: bytes, wire: Wire, millstream: SharedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Wire(millstream.bootstrap_servers) as neighbour:
        with caplog.at_level(logging.WARNING, "millstream"):
            wire.send(bad)
            assert wire.is_closed()
        assert neighbour.call("api_versions", 0).error_code == 0
    said = [it for it in caplog.records if it.name == "millstream.connection"]
    assert len(said) == 1


def test_produce_without_acks_that_fails_closes_the_connection(
    wire: Wire, millstream: SharedBroker
) -> None:
    wire.send(produce_frame(millstream.unique_topic(), 1, acks=0))
    assert wire.is_closed()


def test_produce_without_acks_has_no_response(wire: Wire, millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    create(wire, topic)
    for number in range(3):
        wire.send(produce_frame(topic, number, acks=0))
    wire.send(request_frame("api_versions", 0, 77))
    assert correlation_ids(wire, 1) == [77]


def test_api_versions_in_an_unknown_version_is_answered_in_version_0(wire: Wire) -> None:
    wire.send(frame(struct.pack(">hhih", 18, 99, 5, -1)))
    answer: Any = wire.receive("api_versions", 0)
    assert answer.error_code == 35
    assert any(it.api_key == 18 and it.max_version == 4 for it in answer.api_keys)
    assert wire.call("api_versions", 0).error_code == 0


def test_half_sent_request_does_not_disturb_and_goes_with_its_connection(
    millstream: SharedBroker,
) -> None:
    host, port = millstream.bootstrap_servers.split(":")
    half = socket.create_connection((host, int(port)))
    half.sendall(struct.pack(">i", 50_000_000) + b"x" * 1000)
    with Wire(millstream.bootstrap_servers) as neighbour:
        assert neighbour.call("api_versions", 0).error_code == 0
    half.close()


def test_waiting_fetch_is_dropped_with_its_connection(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    with Wire(millstream.bootstrap_servers) as waiting:
        create(waiting, topic)
        waiting.send(fetch_frame(topic, 1, max_wait=600_000))
    with Wire(millstream.bootstrap_servers) as neighbour:
        neighbour.send(produce_frame(topic, 1))
        assert correlation_ids(neighbour, 1) == [1]


def test_request_in_flight_is_answered_when_the_broker_stops() -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        create(wire, "topic")
        wire.send(produce_frame("topic", 1, acks=-1) + produce_frame("topic", 2, acks=-1))
        assert correlation_ids(wire, 1) == [1]
        broker.stop()
        assert correlation_ids(wire, 1) == [2]
        assert wire.is_closed()
