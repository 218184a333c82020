"""Throttles of reassignments; `tests/cli/test_reassign.py` moves replicas with one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.admin.throttling import (
    FOLLOWERS,
    LEADERS,
    RATES,
    Moved,
    remove_throttles,
    set_throttles,
    throttled_replicas,
    throttled_topics,
)
from millstream.client.cluster import Cluster as ClientCluster
from millstream.coordination.cluster import ResourceType
from tests.broker.replication.cluster import Cluster, run


def test_replicas_before_are_throttled_as_leaders_and_new_ones_as_followers() -> None:
    moved = [
        Moved("u", 0, (3,), (1, 2)),
        Moved("t", 1, (2, 3), (1,)),
        Moved("t", 0, (1, 2), (3,)),
    ]
    assert throttled_replicas(moved) == {
        "t": {LEADERS: "0:1,0:2,1:2,1:3", FOLLOWERS: "0:3,1:1"},
        "u": {LEADERS: "0:3", FOLLOWERS: "0:1,0:2"},
    }


def test_throttles_are_set_on_the_brokers_involved_and_removed_from_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.create_topic("u", 2)
            host, port = cluster.brokers[1].addresses[0]
            with ClientCluster(f"{host}:{port}") as client:

                def rates() -> list[dict[str, str]]:
                    config = cluster.image.config
                    return [dict(config(ResourceType.BROKER, it)) for it in "123"]

                both = dict.fromkeys(RATES, "5000")
                moved = [Moved("t", 0, (1, 2), (3,)), Moved("u", 0, (2,), ())]
                await asyncio.to_thread(set_throttles, client, moved[:1], 5000)
                assert rates() == [both, both, both]
                expected = {LEADERS: "0:1,0:2", FOLLOWERS: "0:3"}
                assert cluster.image.topic_overrides("t") == expected
                await asyncio.to_thread(set_throttles, client, moved[1:], 7000)
                assert rates()[0::2] == [both, both]
                assert rates()[1] == dict.fromkeys(RATES, "7000")
                assert await asyncio.to_thread(throttled_topics, client) == ["t", "u"]

                def remove(topics: list[str] | None, is_moving: bool) -> list[str]:
                    return remove_throttles(client, topics, is_moving=is_moving)

                assert await asyncio.to_thread(remove, ["u", "other"], True) == ["u"]
                assert rates()[0] == both
                assert await asyncio.to_thread(throttled_topics, client) == ["t"]
                assert await asyncio.to_thread(remove, None, False) == ["t"]
                assert rates() == [{}, {}, {}]
                assert not cluster.image.topic_overrides("t")

    run(main)
