"""The server as a process of its own: ready, serving, stopped by a signal."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.broker.process import new_event_loop
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.errors import ApiError, DirectoryLocked, ErrorCode, MillstreamError
from tests.broker.serving import serving


def test_failed_start_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "one") as broker:
            port = broker.addresses[0][1]
            config = {"log.dirs": tmp_path / "two", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            with pytest.raises(MillstreamError, match="cannot listen"):
                await BrokerServer(BrokerConfig.from_values(config)).start()
        async with serving(tmp_path / "two"):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, new_event_loop])
def test_port_that_another_process_took_during_the_start_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    claim_leadership = BrokerServer._claim_leadership
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))  # and does not listen yet: we can bind it, too

        async def listen_before_us(server: BrokerServer) -> None:
            other.listen()
            await claim_leadership(server)

        monkeypatch.setattr(BrokerServer, "_claim_leadership", listen_before_us)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = {"log.dirs": tmp_path, "listeners": f"PLAINTEXT://{address}"}
        server = BrokerServer(BrokerConfig.from_values(config))
        loop = make_loop()
        with pytest.raises(MillstreamError, match=f"cannot listen on {address} .*already in use"):
            loop.run_until_complete(server.start())
        loop.close()


def test_second_server_on_a_directory_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path):
            with pytest.raises(DirectoryLocked):
                async with serving(tmp_path):
                    pass

    asyncio.run(main())


def test_listeners_tell_their_own_addresses(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://example.org:7777",
    }

    async def main() -> None:
        async with serving(tmp_path, **settings) as broker:
            inside, outside = broker.addresses
            assert inside[0] == "127.0.0.1"
            assert outside == ("example.org", 7777)

    asyncio.run(main())


def test_failed_directory_takes_down_its_own_partitions_only(tmp_path: Path) -> None:
    directories = f"{tmp_path}/one,{tmp_path}/two"

    async def main() -> None:
        async with serving(tmp_path, **{"log.dirs": directories}) as broker:
            logs = [
                broker.directories.create("t", index, uuid.uuid4(), broker.configs.topic("t"))
                for index in range(4)
            ]
            partitions = [
                broker.partitions.add("t", index, log, leader_epoch=0)
                for index, log in enumerate(logs)
            ]
            failed = logs[0].directory
            failed.fail(OSError("broken disk"))
            broker.flusher.on_directory_failed([logs[0]])  # type: ignore[misc]
            for log, partition in zip(logs, partitions, strict=True):
                assert (partition.offline_error is not None) is (log.directory is failed)
            error = partitions[0].offline_error
            assert isinstance(error, ApiError)
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR

    asyncio.run(main())
