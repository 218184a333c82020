"""No share fetch waits while there are records for it.

Members of one group fetch with a wait that never ends within the test, so a wake-up that is lost
stops the run. They accept, release and hold records, acknowledge with the next fetch or by itself,
leave and lose their connections while fetches wait, and parts of the log are read from a cold disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import ResourceType
from millstream.errors import NotCached
from millstream.storage.retention import apply_all
from millstream.storage.steps import run_in_thread
from tests.broker.sharing.calls import (
    ACCEPT,
    ENDLESS_MS,
    NEWEST,
    RELEASE,
    SHARE_FETCH,
    Member,
    acquired,
    configure,
    joined,
    partition_of,
    produce,
    run,
    until_sessions,
)
from tests.peers.patience import PATIENCE_SECONDS

MEMBERS = 4
BATCHES = 60
CLOSE = -1


class Group:
    """What members of one group do, all random choices from one seed."""

    def __init__(self, server: BrokerServer, topic_id: UUID, chance: random.Random) -> None:
        self.server = server
        self.topic_id = topic_id
        self.chance = chance
        self.accepted: Counter[int] = Counter()  # by offset, where the broker said so
        self.expected: int | None = None  # how many records there are, once that is known

    async def work(self, number: int) -> None:
        """One worker: a member after the other, until every record is accepted."""
        for life in range(10_000):
            async with joined(self.server, self.topic_id, f"{number}-{life}") as member:
                await self.live(member)

    async def live(self, member: Member) -> None:
        acks: list[tuple[int, int, list[int]]] = []
        while True:
            limit = self.chance.choice([1, 5, 40])
            member.send_fetch(acks=acks, max_wait=ENDLESS_MS, max_records=limit)
            if self.chance.random() < 0.05:  # gone while it waits
                await asyncio.sleep(self.chance.choice([0, 0.002]))
                return
            response = await member.client.receive(SHARE_FETCH, NEWEST)
            if acks:
                assert partition_of(response).acknowledge_error_code == 0
                self.accepted.update(offsets_of(acks))
            acks = [self.outcome(first, last) for first, last, _ in acquired(response)]
            if self.chance.random() < 0.3:
                await asyncio.sleep(self.chance.choice([0, 0.001, 0.01]))
            kind = self.chance.random()
            if acks and kind < 0.3:
                answer = await member.acknowledge(*acks)
                assert partition_of(answer).error_code == 0
                self.accepted.update(offsets_of(acks))
                acks = []
            elif kind < 0.4:  # leaves, with or without a last word
                if acks and self.chance.random() < 0.5:
                    await member.fetch(acks=acks, epoch=CLOSE)
                    self.accepted.update(offsets_of(acks))
                return

    def outcome(self, first: int, last: int) -> tuple[int, int, list[int]]:
        return first, last, [RELEASE if self.chance.random() < 0.1 else ACCEPT]

    async def write(self) -> None:
        count = 0
        for _ in range(BATCHES):
            size = self.chance.choice([1, 3, 20])
            await produce(self.server, size)
            count += size
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.005]))
        self.expected = count

    async def until_all_are_done(self) -> None:
        """Every record was accepted, or given up after five deliveries."""
        while True:
            leader = self.server.services.share_partitions.get("g", self.topic_id, 0)
            window = None if leader is None else leader.window
            if window is not None and window.start_offset == self.expected:
                return
            await asyncio.sleep(0.005)


def offsets_of(acks: list[tuple[int, int, list[int]]]) -> set[int]:
    return {it for first, last, kind in acks if kind == [ACCEPT] for it in range(first, last + 1)}


@pytest.fixture(params=range(6))
def chance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Seeded; every tenth read of the topic finds the disk cold."""
    chance = random.Random(request.param)
    real = Partition.read

    def read(self: Partition, *args: Any, may_block: bool = False, **fields: Any) -> Any:
        if self.topic == "t" and not may_block and chance.random() < 0.1:
            raise NotCached
        return real(self, *args, may_block=may_block, **fields)

    monkeypatch.setattr(Partition, "read", read)
    return chance


def test_every_record_is_delivered_to_members_that_wait(
    tmp_path: Path, chance: random.Random
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        settings = {"share.partition.max.record.locks": "100"}
        if chance.random() < 0.5:
            settings["share.retry.backoff.ms"] = "10"
        await configure(server, "g", settings)
        group = Group(server, topic_id, chance)
        workers = [asyncio.ensure_future(group.work(number)) for number in range(MEMBERS)]
        done = asyncio.ensure_future(group.until_all_are_done())
        try:
            await group.write()
            await asyncio.wait([done, *workers], return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                assert not worker.done(), worker.exception()
        finally:
            for task in (done, *workers):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        assert not {offset for offset, count in group.accepted.items() if count > 1}

    run(tmp_path, scenario, records=0, group_share_min_partition_max_record_locks=100)


def test_cold_read_of_one_member_wakes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait while a thread reads the partition; its reader takes only some of the records."""
    real = Partition.read
    is_read, may_end = threading.Event(), threading.Event()

    def read(self: Partition, *args: Any, may_block: bool = False, **fields: Any) -> Any:
        if self.topic == "t":
            if not may_block:
                raise NotCached
            is_read.set()
            assert may_end.wait(PATIENCE_SECONDS)
        return real(self, *args, may_block=may_block, **fields)

    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as reader, joined(server, topic_id, "b") as other:
            try:
                reader.send_fetch(max_wait=ENDLESS_MS, max_records=4, share_acquire_mode=1)
                while not is_read.is_set():
                    await asyncio.sleep(0.001)
                other.send_fetch(max_wait=ENDLESS_MS)
                await until_sessions(server, 2)
            finally:
                may_end.set()
            assert acquired(await reader.client.receive(SHARE_FETCH, NEWEST)) == [(0, 3, 1)]
            assert acquired(await other.client.receive(SHARE_FETCH, NEWEST)) == [(4, 9, 1)]

    monkeypatch.setattr(Partition, "read", read)
    run(tmp_path, scenario)


@contextlib.asynccontextmanager
async def waiting_for_room(server: BrokerServer, topic_id: UUID) -> AsyncIterator[Member]:
    """A member whose fetch waits: another one holds 100 records, and no more may be locked. There
    are 10 more, in a second segment."""
    await configure(server, "g", {"share.partition.max.record.locks": "100"})
    partition = server.partitions.find("t", 0)
    partition.log.roll(server.clock.now_ms())
    await produce(server, 10)
    async with joined(server, topic_id, "a") as holder, joined(server, topic_id, "b") as other:
        assert acquired(await holder.fetch(max_wait=ENDLESS_MS)) == [(0, 99, 1)]
        other.send_fetch(max_wait=ENDLESS_MS)
        await until_sessions(server, 2)
        yield other


@pytest.mark.parametrize("locks", ["200", None], ids=["raised", "back to the default"])
def test_higher_limit_of_locks_wakes_fetches(tmp_path: Path, locks: str | None) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with waiting_for_room(server, topic_id) as member:
            await configure(server, "g", {"share.partition.max.record.locks": locks})
            response = await member.client.receive(SHARE_FETCH, NEWEST)
            assert acquired(response) == [(100, 109, 1)]

    run(tmp_path, scenario, records=100)


@pytest.mark.parametrize("means", ["retention", "DeleteRecords"])
def test_records_deleted_from_the_log_wake_fetches(tmp_path: Path, means: str) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with waiting_for_room(server, topic_id) as member:
            partition = server.partitions.find("t", 0)
            if means == "retention":
                await configure(server, "t", {"retention.bytes": "0"}, ResourceType.TOPIC)
                steps = apply_all([partition.retention_candidate()], server.clock.now_ms())
                assert await run_in_thread(steps, server.tasks.run_blocking) > 0
            else:
                partition.delete_records_before(100)
            response = await member.client.receive(SHARE_FETCH, NEWEST)
            assert acquired(response) == [(100, 109, 1)]

    run(tmp_path, scenario, records=100)
