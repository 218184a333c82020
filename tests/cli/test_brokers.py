"""`millstream cluster`: what it shows of a real broker, and how it sums up partitions."""

from __future__ import annotations

import json

from millstream.admin.cluster_state import parse_metadata
from millstream.admin.replica_lag import Replica, ReplicaLag
from millstream.cli.brokers import add_lags, summarize
from tests.admin.test_cluster_state import metadata, partition
from tests.cli.conftest import Run


def test_summary_counts_what_brokers_lead_and_follow() -> None:
    offline, behind = partition(-1, (1,), (1,), 1), partition(2, (2, 1), (2,), 0)
    fine = partition(1, (1,), (1,), 2)
    summary = summarize(parse_metadata(metadata(offline, behind, fine)))
    one, two = summary["brokers"]
    assert (one["id"], one["leads"], one["replicas"], one["in_sync"]) == (1, 1, 3, 2)
    assert (two["role"], one["role"], two["rack"]) == ("controller", None, "r2")
    assert (summary["offline"], summary["under_replicated"], summary["partitions"]) == (1, 1, 3)
    assert [(it["partition"], it["state"], it["leader"]) for it in summary["attention"]] == [
        (0, "under-replicated", 2),
        (1, "offline", None),
    ]


def test_lags_are_added_up_for_brokers_and_the_farthest_behind_comes_first() -> None:
    summary = summarize(parse_metadata(metadata(partition(2, (2, 1, 3), (2, 1)))))
    add_lags(
        summary,
        [
            ReplicaLag(Replica(1, "t", 0), 5, is_in_sync=True),
            ReplicaLag(Replica(1, "t", 1), 7, is_in_sync=False),
            ReplicaLag(Replica(2, "t", 2), 0, is_in_sync=True),
            ReplicaLag(Replica(3, "t", 0), None, is_in_sync=False),
        ],
    )
    assert [(it["id"], it["lag"]) for it in summary["brokers"]] == [(1, 12), (2, 0)]
    found = [(it["broker"], it["partition"], it["lag"], it["in_sync"]) for it in summary["behind"]]
    assert found == [(3, 0, None, False), (1, 1, 7, False), (1, 0, 5, True)]


def test_cluster_of_a_real_broker_is_shown(run: Run, bootstrap_servers: str) -> None:
    outcome = run("cluster", "--json", "--bootstrap-server", bootstrap_servers)
    assert outcome.exit_code == 0, outcome
    summary = json.loads(outcome.out)
    assert [it["address"] for it in summary["brokers"]] == [bootstrap_servers]
    assert summary["brokers"][0]["role"] == "controller"
    assert (summary["brokers"][0]["lag"], summary["behind"]) == (0, [])
    shown = run("cluster", "--check", "--bootstrap-server", bootstrap_servers)
    assert shown.exit_code == 0, shown
    assert summary["cluster_id"] in shown.out
    assert bootstrap_servers in shown.out
