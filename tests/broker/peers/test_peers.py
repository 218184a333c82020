"""Other brokers: found by the metadata, reached again after they were away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.peers import peers as module
from millstream.broker.peers.connection import PeerError
from millstream.broker.peers.peers import Peers
from millstream.errors import ErrorCode
from tests.broker.peers.brokers import Addresses, peers_of, raw_server
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

METADATA = {"topics": None, "allow_auto_topic_creation": False}


def run(test: Callable[[Addresses, Peers], Awaitable[Any]]) -> None:
    async def main() -> None:
        addresses = Addresses()
        peers = peers_of(addresses)
        try:
            await test(addresses, peers)
        finally:
            peers.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_SECONDS))


async def brokers_at(peers: Peers) -> list[int]:
    return [broker.node_id for broker in (await peers.call(2, "metadata", METADATA)).brokers]


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_calls_reach_a_broker_in_the_newest_common_version(tmp_path: Path) -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        async with serving(tmp_path, node_id=2) as server:
            addresses.register(2, server.addresses[0])
            assert await brokers_at(peers) == [2]
            assert peers.peer(2).version_for("metadata") == 13
            answer = await peers.call(
                2, "heartbeat", {"group_id": "g", "member_id": "m"}, version=4
            )
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            many = [peers.call(2, "metadata", METADATA) for _ in range(500)]
            assert len(await asyncio.gather(*many)) == 500
            assert len(server.connections) == 1
            await peers.peer(2, "fetch").call("metadata", METADATA)
            assert len(server.connections) == 2

    run(test)


def test_restarted_broker_is_reached_at_its_new_address(tmp_path: Path) -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        for number in range(3):
            async with serving(tmp_path / str(number), node_id=2) as server:
                addresses.register(2, server.addresses[0])
                assert await brokers_at(peers) == [2]
            with pytest.raises(PeerError):
                await brokers_at(peers)

    run(test)


def test_lost_connection_is_opened_again(tmp_path: Path) -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        async with serving(tmp_path, node_id=2) as server:
            addresses.register(2, server.addresses[0])
            for _ in range(3):
                assert await brokers_at(peers) == [2]
                connection = peers.peer(2)._connection
                assert connection is not None
                connection.close("the network is bad")
        assert "connect" in str(await failure(peers))

    run(test)


async def failure(peers: Peers) -> PeerError:
    with pytest.raises(PeerError) as raised:
        await brokers_at(peers)
    return raised.value


def test_brokers_that_cannot_be_reached_are_named() -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        assert "broker 2 is not registered" in str(await failure(peers))
        address = ("127.0.0.1", free_port())
        addresses.register(2, address)
        assert f"broker 2 at 127.0.0.1:{address[1]}: cannot connect" in str(await failure(peers))
        addresses.register(2, address, "INTERNAL")
        assert "no listener PLAINTEXT" in str(await failure(peers))
        addresses.fence(2)
        error = await failure(peers)
        assert "broker 2 is not live" in str(error)
        assert error.code is ErrorCode.NETWORK_EXCEPTION

    run(test)


def test_failed_attempts_are_repeated_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async def test(addresses: Addresses, peers: Peers) -> None:
        monkeypatch.setattr(module, "BACKOFF_SECONDS_MIN", 1000.0)
        monkeypatch.setattr(module, "BACKOFF_SECONDS_MAX", 1000.0)
        async with raw_server(count) as address:
            addresses.register(2, address)
            peers.peer(2).reset("with the pauses of this test")
            for _ in range(20):
                await failure(peers)
            assert attempts == 1  # the others failed without an attempt
            addresses.register(2, address)  # it has started again: no reason to wait
            await failure(peers)
            assert attempts == 2

    run(test)


def test_requests_in_flight_fail_when_their_broker_is_fenced() -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        async with raw_server(say_nothing) as address:
            addresses.register(2, address)
            waiting = asyncio.ensure_future(failure(peers))
            await asyncio.sleep(0.05)
            addresses.fence(2)
            await waiting

    run(test)


def test_connection_attempts_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS_MAX", 0.1)

    async def test(addresses: Addresses, peers: Peers) -> None:
        async with raw_server(say_nothing) as address:
            addresses.register(2, address)
            errors = await asyncio.gather(*(failure(peers) for _ in range(5)))
            assert all("0.1 s" in str(error) for error in errors)

    run(test)


def test_cancelled_caller_leaves_the_connection_to_the_others(tmp_path: Path) -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        async with serving(tmp_path, node_id=2) as server:
            addresses.register(2, server.addresses[0])
            first = asyncio.ensure_future(brokers_at(peers))
            second = asyncio.ensure_future(brokers_at(peers))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == [2]

    run(test)


def test_closed_peers_refuse_requests(tmp_path: Path) -> None:
    async def test(addresses: Addresses, peers: Peers) -> None:
        async with serving(tmp_path, node_id=2) as server:
            addresses.register(2, server.addresses[0])
            await brokers_at(peers)
            peers.close()
            assert "stopping" in str(await failure(peers))
            with pytest.raises(PeerError, match="stopping"):
                await peers.call(3, "metadata", METADATA)

    run(test)
