"""A simulated cluster: topics, moves, and what is still to be healed."""

from __future__ import annotations

from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster


def test_partition_is_moved_to_other_hosts() -> None:
    cluster = Cluster(5, host_count=4)
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    for _ in range(5):
        cluster.reassign("t", 0)
        cluster.world.run_until(cluster.world.now_ms + 1_500)
    cluster.prefers_leaders = True
    stories.heal(cluster, [], ["t"])


def test_problem_names_what_is_not_healed() -> None:
    cluster = Cluster(5)
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    cluster.prefers_leaders = True
    cluster.world.run_until(cluster.world.now_ms + 1_000)
    assert cluster.problem() is None
    cluster.kill(1, cuts_power=True)
    assert cluster.problem() == "host 1 does not have the newest metadata"


def test_deleted_topic_leaves_no_logs() -> None:
    cluster = Cluster(5)
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    cluster.delete_topic("t")
    cluster.world.run_until(cluster.world.now_ms + 500)
    assert [len(process.replicas) for process in cluster.processes.values()] == [0, 0, 0]
