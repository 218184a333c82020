"""Concurrent clients on a cluster whose brokers are killed, paused and restarted in turn.

Transactions, groups of both protocols, a share group, conditional appends, and topics that are
deleted and recreated: with three replicas, of which two must be in sync, the checker finds no
anomaly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing.cluster import ClusterProcesses
from millstream.testing.histories import check
from millstream.testing.histories.faults import Nemesis
from millstream.testing.histories.workload import Plan, run_workload

SETTINGS = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
}


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "seconds"), [(1, 45), (2, 45), (3, 240)])
def test_cluster_keeps_its_word_under_faults(tmp_path: Path, seed: int, seconds: int) -> None:
    cluster = ClusterProcesses(tmp_path, settings=SETTINGS)
    # Longer than a session: others are elected.
    nemesis = Nemesis(list(cluster.brokers.values()), seed, broken_s=(0.1, 5.0))
    with cluster:
        history = run_workload(
            cluster.addresses, Plan(seed=seed, seconds=seconds, sharers=2), nemesis=nemesis
        )
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"seed {seed}, history in {tmp_path}, {nemesis.events}\n{report}"
    assert report.summary.committed > seconds
    assert report.summary.settled > seconds
    assert len(nemesis.events) > seconds / 10
