"""Faults are drawn, end, and stop."""

from __future__ import annotations

from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.faults import Faults


def test_stop_ends_all_faults() -> None:
    cluster = Cluster(6)
    stories.start(cluster, ["t"])
    faults = Faults(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 5_000)
    faults.stop()
    assert sum(faults.counts.values()) > 3
    assert sorted(cluster.processes) == cluster.hosts
    assert not any(process.is_paused for process in cluster.processes.values())
    counts = dict(faults.counts)
    stories.heal(cluster, [], ["t"])
    assert faults.counts == counts
