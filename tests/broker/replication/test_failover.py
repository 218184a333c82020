"""Leaders come and go under load: what was acknowledged or seen stays, in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, stored_bytes, until


class Load:
    """Produces with acks=all to the leader, and looks at what consumers see."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.acknowledged: dict[int, bytes] = {}
        self.seen: list[bytes | None] = []
        self._number = 0
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            leader = self._cluster.leader("t")
            if leader not in self._cluster.brokers:
                await asyncio.sleep(0.01)
                continue
            value = b"%d" % self._number
            self._number += 1
            try:
                error, offset = await self._cluster.produce(leader, "t", value, timeout_ms=2000)
            except (OSError, EOFError):
                continue  # it stopped
            if error is ErrorCode.NONE:
                self.acknowledged[offset] = value
            self.look()
            await asyncio.sleep(0)

    def look(self) -> None:
        leader = self._cluster.leader("t")
        if leader in self._cluster.brokers:
            visible = self._cluster.values(leader, "t")
            length = min(len(visible), len(self.seen))
            assert visible[:length] == self.seen[:length]
            if len(visible) > len(self.seen):
                self.seen = visible


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_or_seen_is_lost_or_moved(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        dice = Random(seed)
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2, 3, min_insync_replicas="2")
            load = Load(cluster)
            producing = asyncio.create_task(load.run())
            for _ in range(3):
                goal = len(load.acknowledged) + dice.randint(3, 15)
                await until(lambda goal=goal: len(load.acknowledged) >= goal)
                victim = cluster.leader("t")
                if dice.random() < 0.6:
                    await cluster.cut_off(victim)
                await cluster.stop(victim)
                goal = len(load.acknowledged) + dice.randint(1, 8)
                await until(lambda goal=goal: len(load.acknowledged) >= goal)
                await cluster.start(victim)
                await until(lambda: len(cluster.partition_image("t").isr) == 3)
            load.is_over = True
            await producing
            leader = cluster.leader("t")
            end = cluster.replica(leader, "t").log.log_end_offset
            await until(lambda: cluster.replica(leader, "t").high_watermark == end)
            final = cluster.values(leader, "t")
            assert final[: len(load.seen)] == load.seen
            for offset, value in load.acknowledged.items():
                assert final[offset] == value
            for node_id in cluster.brokers:
                replica = cluster.replica(node_id, "t")
                await until(lambda replica=replica: replica.log.log_end_offset == end)
                assert stored_bytes(replica) == stored_bytes(cluster.replica(leader, "t"))

    run(main)
