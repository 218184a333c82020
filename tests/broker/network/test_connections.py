"""All connections together: how many, from where, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream import Broker
from tests.broker.serving import serving
from tests.peers.wire import ConnectionEnded, Wire


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


def test_idle_connection_is_closed() -> None:
    with (
        Broker.start(config={"connections.max.idle.ms": 50}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        assert wire.call("api_versions", 0).error_code == 0
        assert wire.is_closed()


def test_connections_are_numbered_as_they_are_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            numbers = [server.connections.accept("PLAINTEXT").id for _ in range(3)]
            assert numbers == sorted(set(numbers))

    asyncio.run(scenario())
