"""The simulated process and cluster are what the parts of a broker expect of them."""

from __future__ import annotations

from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.surroundings import Broker, Surroundings


def test_cluster_and_process_fit_their_interfaces() -> None:
    cluster: Surroundings = Cluster(seed=1)
    assert isinstance(cluster, Cluster)
    cluster.start(1)
    broker: Broker = cluster.processes[1]
    assert broker.cluster is cluster
    assert broker.member.broker_epoch < 0, "it is not registered yet"
