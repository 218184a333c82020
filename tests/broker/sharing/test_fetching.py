"""A share fetch on its way: cold reads, many members at once, and answers that nobody awaits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.coordination.sharing.window import ShareWindow
from millstream.errors import ApiError, ErrorCode, NotCached
from tests.broker.sharing.calls import (
    ACCEPT,
    ENDLESS_MS,
    NEWEST,
    SHARE_FETCH,
    acquired,
    joined,
    loaded,
    partition_of,
    produce,
    run,
)


@pytest.fixture
def cold_disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A page cache that holds nothing: every read must wait for the disk. Notes the reads."""
    real = Partition.read
    reads: list[bool] = []

    def read(self: Partition, *args: Any, may_block: bool = False, **fields: Any) -> Any:
        reads.append(may_block)
        if not may_block:
            raise NotCached
        return real(self, *args, may_block=True, **fields)

    monkeypatch.setattr(Partition, "read", read)
    return reads


def test_share_fetch_reads_what_is_not_cached_in_a_thread(
    tmp_path: Path, cold_disk: list[bool]
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 9, 1)]
            response = await member.fetch(acks=[(0, 9, [ACCEPT])], max_wait=30)
            assert partition_of(response).acknowledge_error_code == 0
            fetch = asyncio.ensure_future(member.fetch(max_wait=30_000))
            await asyncio.sleep(0.05)
            await produce(server, 5)
            assert acquired(await fetch) == [(10, 14, 1)]
        assert True in cold_disk

    run(tmp_path, scenario)


def test_share_window_is_looked_at_by_the_loop_alone(
    tmp_path: Path, cold_disk: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    real = ShareWindow.next_fetch_offset.fget
    assert real is not None

    def next_fetch_offset(self: ShareWindow) -> int:
        threads.add(threading.get_ident())
        return real(self)

    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 9, 1)]
        assert True in cold_disk
        assert threads == {threading.get_ident()}

    monkeypatch.setattr(ShareWindow, "next_fetch_offset", property(next_fetch_offset))
    run(tmp_path, scenario)


def test_share_fetches_of_many_members_get_every_record_once(
    tmp_path: Path, cold_disk: list[bool]
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        offsets: list[int] = []

        async def work(name: str) -> None:
            async with joined(server, topic_id, name) as member:
                while len(offsets) < 500:
                    taken = acquired(
                        await member.fetch(max_wait=300, max_records=7, share_acquire_mode=1)
                    )
                    if not taken:
                        continue  # the disk is slow, or the others have the rest
                    for first, last, _ in taken:
                        offsets.extend(range(first, last + 1))
                    await member.acknowledge(*[(first, last, [ACCEPT]) for first, last, _ in taken])

        for _ in range(20):
            await produce(server, 25)
        await asyncio.gather(*(work(f"member-{number}") for number in range(8)))
        assert sorted(offsets) == list(range(500))

    run(tmp_path, scenario, records=0)


def test_share_fetch_tells_of_a_log_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        def read(*_: Any, **__: Any) -> Any:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk")

        async with joined(server, topic_id) as member:
            with monkeypatch.context() as patched:
                patched.setattr(Partition, "read", read)
                response = partition_of(await member.fetch(max_wait=30_000))
                assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert response.error_message == "no disk"
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 9, 1)]

    run(tmp_path, scenario)


@pytest.mark.parametrize("outcome", [b"", ValueError("a defect")])
def test_share_fetch_is_answered_whatever_a_cold_read_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: bytes | Exception
) -> None:
    """The log may be truncated between the check and the read: then there is nothing to read."""
    real = Partition.read
    outcomes = [outcome]

    def read(self: Partition, *args: Any, may_block: bool = False, **fields: Any) -> Any:
        if outcomes and self.topic == "t":
            if not may_block:
                raise NotCached
            found = outcomes.pop()
            if isinstance(found, Exception):
                raise found
            return found
        return real(self, *args, may_block=may_block, **fields)

    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            response = await member.fetch(max_wait=60_000)
            if isinstance(outcome, Exception):
                assert partition_of(response).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
                response = await member.fetch(max_wait=60_000)
            assert acquired(response) == [(0, 9, 1)]

    monkeypatch.setattr(Partition, "read", read)
    run(tmp_path, scenario)


def test_share_fetch_whose_member_is_gone_takes_nothing(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "b") as other:
            async with joined(server, topic_id, "a") as member:
                member.send_fetch(max_wait=30_000)
                while server.services.share_partitions.get("g", topic_id, 0) is None:
                    await asyncio.sleep(0.01)
            while len(server.services.share_partitions.sessions):
                await asyncio.sleep(0.01)
            await produce(server, 3)
            assert acquired(await other.fetch(max_wait=60_000)) == [(0, 2, 1)]

    run(tmp_path, scenario, records=0)


def test_share_fetch_that_waits_is_refused_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            member.send_fetch(max_wait=ENDLESS_MS)
            await loaded(server, topic_id)
            await server.topics.delete([topic_id])
            for _ in range(2):
                response = partition_of(await member.client.receive(SHARE_FETCH, NEWEST))
                assert response.error_code == ErrorCode.UNKNOWN_TOPIC_ID
                member.send_fetch(max_wait=ENDLESS_MS)

    run(tmp_path, scenario, records=0)
