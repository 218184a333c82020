"""No share fetch waits while there are records for it.

Members of one group fetch with a wait that never ends within the test, so a wake-up that is lost
stops the run. They accept, release and hold records, acknowledge with the next fetch or by itself,
leave and lose their connections while fetches wait, and parts of the log are read from a cold disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.broker.server import BrokerServer
from millstream.errors import NotCached
from tests.broker.sharing.calls import (
    ACCEPT,
    RELEASE,
    Member,
    acquired,
    configure,
    joined,
    partition_of,
    produce,
    run,
)

MEMBERS = 4
BATCHES = 60
ENDLESS_MS = 600_000
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
            response = await member.client.receive(78, 2)
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
