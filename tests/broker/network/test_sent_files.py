"""Large responses, which are sent from the files of the log."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.records.batch import iterate_headers
from millstream.storage.filesystem import OsFileSystem
from tests.broker.network.test_connection import produce_frame
from tests.broker.serving import WireClient, serving
from tests.peers.wire import batch, produce_fields, request_frame

PRODUCE, FETCH = 0, 1
VALUES = [bytes([number]) * 300_000 for number in range(6)]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page cache of Linux is asked")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each call of sendfile has sent."""
    sizes: list[int] = []

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        sizes.append(os.sendfile(socket_fd, fd, position, size))
        return sizes[-1]

    monkeypatch.setattr(OsFileSystem, "sendfile", staticmethod(sendfile))
    return sizes


async def fill(server: BrokerServer, client: WireClient) -> None:
    await server.topics.create([NewTopic("t", 1)])
    for value in VALUES:
        await client.call(PRODUCE, 3, **produce_fields("t", batch([value])))
    server.services.load.last_produce_ms = 0  # so that responses have up to 4 MB


def fetch_fields() -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**30}
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**30,
        "session_epoch": -1,
        "isolation_level": 1,
        "topics": [{"topic": "t", "partitions": [partition]}],
    }


def check(records: bytes, count: int = len(VALUES)) -> None:
    """Whether these are the first batches, each with its value and its offset."""
    found = [(header.base_offset, position) for position, header in iterate_headers(records)]
    assert [offset for offset, _ in found] == list(range(count))
    for (_, position), value in zip(found, VALUES[:count], strict=True):
        assert value in records[position : position + len(value) + 200]


def test_large_response_is_sent_from_the_file(tmp_path: Path, sent: list[int]) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await fill(server, client)
            for _ in range(3):
                answer = await client.call(FETCH, 11, **fetch_fields())
                check(bytes(answer.responses[0].partitions[0].records))
            assert sum(sent) > 300_000

    asyncio.run(scenario())


def test_large_response_with_aborted_transactions_is_sent_from_the_file(
    tmp_path: Path, sent: list[int]
) -> None:
    """It names the aborted transactions of its records, and no later ones."""

    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            partition = server.partitions.find("t", 0)
            firsts = []
            for sequence in range(4):
                records = batch(
                    [b"x" * 300_000],
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                )
                appended = await partition.append(records, acks=-1, verified=True)
                firsts.append(appended.first_offset)
                await partition.append_marker(
                    producer_id=7,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    committed=sequence % 2 == 0,
                    transaction_version=1,
                )
            server.services.load.last_produce_ms = 0
            for max_bytes, aborted in ((2**30, [firsts[1], firsts[3]]), (900_000, [firsts[1]])):
                fields = fetch_fields()
                fields["topics"][0]["partitions"][0]["partition_max_bytes"] = max_bytes
                answer = await client.call(FETCH, 11, **fields)
                found = answer.responses[0].partitions[0]
                transactions = [
                    (it.producer_id, it.first_offset) for it in found.aborted_transactions
                ]
                assert transactions == [(7, offset) for offset in aborted]
                assert len(list(iterate_headers(bytes(found.records)))) == (
                    8 if len(aborted) == 2 else 4
                )
                assert sum(sent) > 300_000
                sent.clear()

    asyncio.run(scenario())


def test_rest_is_left_to_the_transport_when_the_socket_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [100_000, 70_000]  # of two calls; then the socket is full

    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        if not sizes:
            raise BlockingIOError
        return os.sendfile(socket_fd, fd, position, min(size, sizes.pop()))

    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await fill(server, client)
            monkeypatch.setattr(OsFileSystem, "sendfile", staticmethod(sendfile))
            answer = await client.call(FETCH, 11, **fetch_fields())
            check(bytes(answer.responses[0].partitions[0].records))
            assert not sizes

    asyncio.run(scenario())


def test_failed_send_closes_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sendfile(socket_fd: int, fd: int, position: int, size: int) -> int:
        raise OSError(errno.EIO, "input/output error")

    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await fill(server, client)
            monkeypatch.setattr(OsFileSystem, "sendfile", staticmethod(sendfile))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.call(FETCH, 11, **fetch_fields())

    asyncio.run(scenario())


def test_large_response_behind_another_is_sent_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await fill(server, client)
            frames = produce_frame("t", 1, acks=-1) + request_frame("fetch", 11, **fetch_fields())
            client._writer.write(frames)
            produced = await client.receive(PRODUCE, 9)
            assert produced.responses[0].partition_responses[0].base_offset == len(VALUES)
            answer = await client.receive(FETCH, 11)
            check(bytes(answer.responses[0].partitions[0].records), 3)  # up to 1 MB

    asyncio.run(scenario())


def test_records_that_are_not_in_memory_are_read_in_a_thread(
    tmp_path: Path, sent: list[int]
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await fill(server, client)
            (log_file,) = tmp_path.glob("t-0/*.log")
            fd = os.open(log_file, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            answer = await client.call(FETCH, 11, **fetch_fields())
            check(bytes(answer.responses[0].partitions[0].records))
            assert not sent

    asyncio.run(scenario())
