"""A cluster's metadata: what brokers lead, and what is wrong with partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.admin.cluster_state import PartitionState, cluster_state, parse_metadata
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster


def partition(
    leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], index: int = 0
) -> SimpleNamespace:
    return SimpleNamespace(
        partition_index=index,
        leader_id=leader,
        leader_epoch=3,
        replica_nodes=replicas,
        isr_nodes=isr,
    )


def metadata(*partitions: SimpleNamespace) -> Any:
    """The answer to a Metadata request."""
    brokers = [SimpleNamespace(node_id=it, host="h", port=it, rack=f"r{it}") for it in (2, 1)]
    topic = SimpleNamespace(name="t", topic_id=None, is_internal=False, partitions=partitions)
    return SimpleNamespace(cluster_id="c", controller_id=2, brokers=brokers, topics=[topic])


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "state"),
    [
        (1, (1, 2), (2, 1), None),
        (1, (1, 2), (1,), "under-replicated"),
        (2, (1, 2), (1, 2), "not preferred"),
        (-1, (1, 2), (1, 2), "offline"),
        (2, (1, 2), (2,), "under-replicated"),
    ],
)
def test_state_of_a_partition_is_its_worst(
    leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], state: str | None
) -> None:
    assert PartitionState("t", 0, leader, 3, replicas, isr).state == state


def test_metadata_is_counted_by_broker_and_state() -> None:
    state = parse_metadata(
        metadata(
            partition(-1, (1,), (1,), 1), partition(2, (2, 1), (2,), 0), partition(1, (1,), (1,), 2)
        )
    )
    one, two = state.brokers
    assert (one.id, one.leads, one.replicas, one.in_sync) == (1, 1, 3, 2)
    assert (one.is_controller, two.is_controller, two.rack) == (False, True, "r2")
    assert (state.partition_count, state.topics["t"].state) == (3, "offline")
    assert dict(state.counts) == {"offline": 1, "under-replicated": 1}
    assert [(it.index, it.state) for it in state.attention] == [
        (0, "under-replicated"),
        (1, "offline"),
    ]
    assert state.leaders == {("t", 0): 2, ("t", 1): -1, ("t", 2): 1}
    assert state.topics["t"].replicas == 2
    assert state.gone == []
    assert parse_metadata(metadata(partition(1, (1, 7, 3), (1,)))).gone == [3, 7]


def test_real_cluster_is_described(cluster: Cluster, bootstrap_servers: str, name: str) -> None:
    create_topic(cluster, name, partitions=2)
    state = cluster_state(cluster)
    assert [it.address for it in state.brokers] == [bootstrap_servers]
    assert state.cluster_id
    topic = state.topics[name]
    assert [it.index for it in topic.partitions] == [0, 1]
    assert (topic.state, topic.is_internal) == (None, False)
    assert len(topic.id) == len("a85d23cd-7067-4eab-9a0e-25ec4f40632f")
