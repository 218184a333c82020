"""Followers that are behind, ahead of their leader, or elsewhere altogether."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ErrorCode
from millstream.storage.steps import run_here
from millstream.storage.truncation import start_at
from tests.broker.replication.cluster import Cluster, run, stored_bytes, until


def test_follower_catches_up_over_many_answers(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"replica_fetch_max_bytes": 2000, "replica_fetch_response_max_bytes": 5000}
        async with Cluster.of(tmp_path, 2, **settings) as cluster:
            for name in ("s", "t"):
                await cluster.create_topic(name, 1, 2)
            await cluster.stop(2)
            for number in range(60):
                for name in ("s", "t"):
                    await cluster.produce(1, name, b"%d" % number * 50, acks=1)
            await cluster.start(2)
            for name in ("s", "t"):
                await until(lambda name=name: 2 in cluster.partition_image(name).isr)
                expected = stored_bytes(cluster.replica(1, name))
                follower = cluster.replica(2, name)
                await until(lambda it=follower, all_=expected: stored_bytes(it) == all_)

    run(main)


def test_tail_of_an_unclean_election_is_truncated(tmp_path: Path) -> None:
    """Below the high watermark, too: the new leader never had it."""

    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await cluster.stop(2)
            await cluster.produce(1, "t", b"b")
            await cluster.produce(1, "t", b"c")
            assert cluster.partition_image("t").isr == (1,)
            await cluster.cut_off(1)
            await cluster.stop(1)
            await cluster.start(2)
            assert cluster.leader("t") == -1
            await cluster.reconcile(is_unclean_allowed=lambda topic: True)
            assert cluster.leader("t") == 2
            await cluster.produce(2, "t", b"x", acks=1)
            await cluster.start(1)
            await until(lambda: 1 in cluster.partition_image("t").isr)
            await until(lambda: cluster.values(1, "t") == [b"a", b"x"])
            assert stored_bytes(cluster.replica(1, "t")) == stored_bytes(cluster.replica(2, "t"))
            log = cluster.replica(1, "t").log
            assert log.epochs.entries == cluster.replica(2, "t").log.epochs.entries

    run(main)


def test_follower_whose_records_were_deleted_starts_at_the_leaders_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a")
            await cluster.stop(2)
            for value in (b"b", b"c", b"d"):
                await cluster.produce(1, "t", value)
            leader = cluster.replica(1, "t")
            leader.delete_records_before(3)
            await cluster.start(2)
            await until(lambda: 2 in cluster.partition_image("t").isr)
            assert cluster.replica(2, "t").log_start_offset == 3
            await until(lambda: cluster.values(2, "t") == [b"d"])

    run(main)


@pytest.mark.parametrize("count", [2, 5])
def test_leader_that_starts_inside_a_batch_can_be_followed(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.stop(2)
            await cluster.produce(1, "t", *[b"%d" % number for number in range(count)])
            leader = cluster.replica(1, "t")
            leader.delete_records_before(1)
            await cluster.start(2)
            await until(lambda: 2 in cluster.partition_image("t").isr)
            follower = cluster.replica(2, "t")
            assert stored_bytes(follower) == stored_bytes(leader)
            await until(lambda: follower.log_start_offset == 1)

    run(main)


def test_log_start_of_the_leader_reaches_followers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            for value in (b"a", b"b", b"c"):
                await cluster.produce(1, "t", value)
            cluster.replica(1, "t").delete_records_before(2)
            await until(lambda: cluster.replica(2, "t").log_start_offset == 2)
            assert await cluster.produce(1, "t", b"d") == (ErrorCode.NONE, 3)

    run(main)


def test_follower_that_was_emptied_gets_everything_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.produce(1, "t", b"a", b"b")
            await cluster.stop(2)
            server = await cluster.start(2)
            follower = cluster.replica(2, "t")
            server.replication.unfollow(follower)
            run_here(start_at(follower.log, 0))
            follower.follow(1, follower.leader_epoch)
            server.replication.follow(follower, 1)
            await until(lambda: stored_bytes(follower) == stored_bytes(cluster.replica(1, "t")))

    run(main)
