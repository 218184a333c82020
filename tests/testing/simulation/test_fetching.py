"""A simulated follower fetches until it has what its leader has."""

from __future__ import annotations

from millstream.testing.simulation import stories
from millstream.testing.simulation.clients import ACKS_ALL, Producer
from millstream.testing.simulation.cluster import Cluster


def test_follower_that_was_cut_off_catches_up() -> None:
    cluster = Cluster(4)
    stories.start(cluster, ["t"])
    producer = Producer(cluster, 1, "t", 0, ACKS_ALL)
    [key, *_] = cluster.partitions()
    leader, other, behind = cluster.partitions()[key].replicas
    cluster.network.cut(behind, leader)
    cluster.world.run_until(cluster.world.now_ms + 3_000)
    assert behind not in cluster.partitions()[key].isr
    assert other in cluster.partitions()[key].isr
    cluster.network.heal()
    cluster.prefers_leaders = True
    stories.heal(cluster, [producer], ["t"])
    assert behind in cluster.partitions()[key].isr
