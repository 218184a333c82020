"""All connections together: how many, from where, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path

import pytest

from millstream import Broker
from tests.broker.serving import serving
from tests.peers.wire import ConnectionEnded, Wire, batch, produce_fields, request_frame


@pytest.mark.parametrize("setting", ["max.connections", "max.connections.per.ip"])
def test_connection_beyond_the_limit_is_closed_and_a_place_is_free_again(setting: str) -> None:
    with Broker.start(config={setting: 2}) as broker:
        address = broker.bootstrap_servers
        with Wire(address) as first, Wire(address) as second:
            assert first.call("api_versions", 0).error_code == 0
            assert second.call("api_versions", 0).error_code == 0
            with Wire(address) as third:
                assert third.is_closed()
            second.socket.close()
            while True:
                try:
                    with Wire(address) as fourth:
                        assert fourth.call("api_versions", 0).error_code == 0
                    break
                except (ConnectionEnded, BrokenPipeError, ConnectionResetError):
                    continue  # the broker has not yet noticed that the second is gone


def test_brokers_get_in_when_clients_have_taken_all_places() -> None:
    config = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "max.connections": 1,
    }
    with Broker.start(config=config) as broker, Wire(broker.addresses["CLIENTS"]) as first:
        assert first.call("api_versions", 0).error_code == 0
        with Wire(broker.addresses["CLIENTS"]) as second:
            assert second.is_closed()
        with Wire(broker.addresses["BROKERS"]) as third:
            assert third.call("api_versions", 0).error_code == 0


def test_idle_connection_is_closed() -> None:
    with Broker.start(config={"connections.max.idle.ms": 50}) as broker:
        while True:
            with Wire(broker.bootstrap_servers) as wire:
                try:
                    assert wire.call("api_versions", 0).error_code == 0
                except (ConnectionEnded, BrokenPipeError, ConnectionResetError):
                    continue  # we were idle for too long before the request
                assert wire.is_closed()
                break


def test_connections_are_numbered_as_they_are_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            numbers = [server.connections.accept("PLAINTEXT").id for _ in range(3)]
            assert numbers == sorted(set(numbers))

    asyncio.run(scenario())


def fetch_frames(topic: str, count: int) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    fields = {
        "max_bytes": 2**30,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    return b"".join(request_frame("fetch", 11, n, **fields) for n in range(count))


SHORT_OF_MEMORY = {"millstream.queued.max.response.bytes": 2**20}
PATIENT = {"millstream.connection.stalled.max.ms": 1}


@pytest.mark.parametrize("config", [{"connections.max.idle.ms": 1000}, SHORT_OF_MEMORY | PATIENT])
def test_client_that_does_not_read_is_disconnected(
    config: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    records, requests = batch([b"x" * 900_000]), fetch_frames("t", 100)
    with Broker.start(config=config) as broker, contextlib.ExitStack() as stack:
        with Wire(broker.bootstrap_servers) as client:
            client.call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            client.call("produce", 9, **produce_fields("t", records))
        stack.enter_context(Wire(broker.bootstrap_servers)).send(requests)
        while "has not read its responses" not in caplog.text:
            with Wire(broker.bootstrap_servers) as neighbour:
                assert neighbour.call("api_versions", 0).error_code == 0


def test_requests_wait_for_memory_and_are_all_received() -> None:
    """Each of many large requests fits, together they exceed what may be received."""
    config = {"queued.max.request.bytes": 2**20}
    with Broker.start(config=config) as broker, contextlib.ExitStack() as stack:
        address = broker.bootstrap_servers
        clients = [stack.enter_context(Wire(address)) for _ in range(10)]
        clients[0].call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        request = request_frame("produce", 9, **produce_fields("t", batch([b"x" * 900_000])))
        for client in clients:
            client.send(request[:400_000])
        for client in clients:
            client.send(request[400_000:])
        for client in clients:
            answer = client.receive("produce", 9)
            assert answer.responses[0].partition_responses[0].error_code == 0


def test_request_that_does_not_arrive_makes_room_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {"queued.max.request.bytes": 2**20, "millstream.connection.stalled.max.ms": 1}
    with Broker.start(config=config) as broker, contextlib.ExitStack() as stack:
        address = broker.bootstrap_servers
        client = stack.enter_context(Wire(address))
        client.call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        request = request_frame("produce", 9, **produce_fields("t", batch([b"x" * 900_000])))
        for _ in range(10):
            hostile = stack.enter_context(Wire(address))
            hostile.send(struct.pack(">i", 50_000_000) + b"x" * 200_000)
        while "a request is incomplete" not in caplog.text:
            with contextlib.suppress(OSError, ConnectionEnded), Wire(address) as neighbour:
                neighbour.send(request)
                neighbour.receive("produce", 9)
        client.send(request)
        answer = client.receive("produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
