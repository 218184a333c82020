"""`millstream cluster`: the brokers of a cluster, and the partitions that need attention."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_rows
from millstream.cli.replica_lag import ReplicaLag, replica_lags

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

NO_LEADER = -1
OFFLINE, UNDER_REPLICATED, NOT_PREFERRED = "offline", "under-replicated", "not preferred"
BROKER_COLUMNS = {
    "id": "BROKER",
    "address": "ADDRESS",
    "rack": "RACK",
    "leads": "LEADS",
    "replicas": "REPLICAS",
    "in_sync": "IN SYNC",
    "lag": "LAG",
    "role": "ROLE",
}
PARTITION_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "state": "STATE",
    "leader": "LEADER",
    "leader_epoch": "EPOCH",
    "replicas": "REPLICAS",
    "in_sync": "IN SYNC",
}

LAG_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "broker": "BROKER",
    "lag": "LAG",
    "in_sync": "IN SYNC",
}
LAGS_SHOWN_MAX = 20


@app.command()
def cluster(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a partition is not fully replicated.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show the brokers of a cluster, its controller, and partitions that need attention.

    A partition is offline if it has no leader, under-replicated if a replica is not in sync, and
    not preferred if another replica than its first leads it. The lag of a replica is the number of
    records that it has not fetched from its leader; that of a broker is the sum for its replicas.

    [bold]Examples[/bold]

    \b
      millstream cluster
      millstream cluster --check --json
    """
    connected = Cluster.connect(bootstrap_server, client_config)
    fields = {"topics": None, "allow_auto_topic_creation": False}
    with connected.protocol as protocol:
        metadata = protocol.any_connection().call("metadata", fields)
        summary = summarize(metadata)
        add_lags(summary, replica_lags(protocol, metadata))
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    if check and summary["offline"] + summary["under_replicated"]:
        raise CommandFailed(
            f"{summary['offline']} partitions are offline, {summary['under_replicated']} "
            "under-replicated"
        )


def summarize(metadata: Any) -> dict[str, Any]:
    """The answer to a Metadata request about all topics."""
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    attention = []
    count = 0
    for topic in sorted(metadata.topics, key=lambda it: it.name or ""):
        for partition in sorted(topic.partitions, key=lambda it: it.partition_index):
            count += 1
            leads[partition.leader_id] += 1
            replicas.update(partition.replica_nodes)
            in_sync.update(partition.isr_nodes)
            state = state_of(partition)
            if state is not None:
                attention.append(_row(topic.name, partition, state))
    states = Counter(row["state"] for row in attention)
    return {
        "cluster_id": metadata.cluster_id,
        "controller": int(metadata.controller_id),
        "topics": len(metadata.topics),
        "partitions": count,
        "offline": states[OFFLINE],
        "under_replicated": states[UNDER_REPLICATED],
        "not_preferred": states[NOT_PREFERRED],
        "brokers": [
            {
                "id": int(broker.node_id),
                "address": f"{broker.host}:{broker.port}",
                "rack": broker.rack,
                "leads": leads[broker.node_id],
                "replicas": replicas[broker.node_id],
                "in_sync": in_sync[broker.node_id],
                "role": "controller" if broker.node_id == metadata.controller_id else None,
            }
            for broker in sorted(metadata.brokers, key=lambda it: it.node_id)
        ],
        "attention": attention,
    }


def add_lags(summary: dict[str, Any], lags: list[ReplicaLag]) -> None:
    """Add the lags of replicas that are behind, and of brokers: the farthest behind first."""
    totals: Counter[int] = Counter()
    for each in lags:
        totals[each.replica.broker] += each.lag or 0
    for broker in summary["brokers"]:
        broker["lag"] = totals[broker["id"]]
    # An unknown lag comes first: that of a broker that is gone.
    behind = sorted(
        (each for each in lags if each.lag != 0),
        key=lambda it: (it.lag is not None, -(it.lag or 0), it.replica),
    )
    summary["behind"] = [
        {
            "topic": it.replica.topic,
            "partition": it.replica.partition,
            "broker": it.replica.broker,
            "lag": it.lag,
            "in_sync": it.is_in_sync,
        }
        for it in behind
    ]


def state_of(partition: Any) -> str | None:
    """What is wrong with a partition; the worst first."""
    if partition.leader_id == NO_LEADER:
        return OFFLINE
    if len(partition.isr_nodes) < len(partition.replica_nodes):
        return UNDER_REPLICATED
    if partition.replica_nodes and partition.leader_id != partition.replica_nodes[0]:
        return NOT_PREFERRED
    return None


def _row(topic: str, partition: Any, state: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": int(partition.partition_index),
        "state": state,
        "leader": None if partition.leader_id == NO_LEADER else int(partition.leader_id),
        "leader_epoch": int(partition.leader_epoch),
        "replicas": [int(it) for it in partition.replica_nodes],
        "in_sync": [int(it) for it in partition.isr_nodes],
    }


def _print(summary: dict[str, Any]) -> None:
    console().print(
        f"cluster {summary['cluster_id']}: {len(summary['brokers'])} brokers, "
        f"{summary['topics']} topics, {summary['partitions']} partitions, "
        f"{summary['offline']} offline, {summary['under_replicated']} under-replicated",
        markup=False,
    )
    print_rows(summary["brokers"], BROKER_COLUMNS, empty="no brokers")
    if summary["attention"]:
        print_rows(summary["attention"], PARTITION_COLUMNS, empty="")
    behind = summary["behind"]
    if behind:
        print_rows(behind[:LAGS_SHOWN_MAX], LAG_COLUMNS, empty="", title="Replicas behind")
    if len(behind) > LAGS_SHOWN_MAX:
        note(f"and {len(behind) - LAGS_SHOWN_MAX} more; --json shows all")
