"""`millstream cluster`: the brokers of a cluster, and the partitions that need attention.

cluster               show them
cluster unregister    forget a broker that is gone for good
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from millstream.admin.cluster_state import (
    NO_LEADER,
    NOT_PREFERRED,
    OFFLINE,
    UNDER_REPLICATED,
    ClusterState,
    PartitionState,
    cluster_state,
)
from millstream.admin.quorum import unregister_broker
from millstream.admin.replica_lag import ReplicaLag, replica_lags
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    BootstrapServer,
    ClientConfig,
    hand_down,
)
from millstream.cli.output import console, note, print_json, print_rows

app = typer.Typer(rich_markup_mode="rich", add_completion=False, invoke_without_command=True)

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


@app.callback()
def cluster(
    context: typer.Context,
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
    if context.invoked_subcommand is not None:
        hand_down(context, bootstrap_server, client_config)
        return
    connected = Cluster.connect(bootstrap_server, client_config)
    with connected.protocol as protocol:
        state = cluster_state(protocol)
        summary = summarize(state)
        add_lags(summary, replica_lags(protocol, state))
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    if check and summary["offline"] + summary["under_replicated"]:
        raise CommandFailed(
            f"{summary['offline']} partitions are offline, {summary['under_replicated']} "
            "under-replicated"
        )


@app.command()
def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="Its node.id.")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Forget a broker that is gone for good.

    A broker that is stopped stays registered, and the levels of features rise only if it supports
    them, too: it may come back. Move its replicas to other brokers first, with `topic reassign`.
    One that is started again registers again.

    [bold]Examples[/bold]

    \b
      millstream cluster unregister 3
    """
    connected = Cluster.connect(bootstrap_server, client_config)
    with connected.protocol as protocol:
        unregister_broker(protocol, broker)
        left = sum(
            broker in partition.replicas
            for topic in cluster_state(protocol).topics.values()
            for partition in topic.partitions
        )
    console().print(f"unregistered broker {broker}", markup=False)
    if left:
        note(
            f"{left} partitions still have a replica there: move it with `millstream topic "
            "reassign TOPIC --brokers ...`"
        )


def summarize(state: ClusterState) -> dict[str, Any]:
    """What the command shows of the cluster's metadata."""
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "topics": len(state.topics),
        "partitions": state.partition_count,
        "offline": state.counts[OFFLINE],
        "under_replicated": state.counts[UNDER_REPLICATED],
        "not_preferred": state.counts[NOT_PREFERRED],
        "brokers": [
            {
                "id": broker.id,
                "address": broker.address,
                "rack": broker.rack,
                "leads": broker.leads,
                "replicas": broker.replicas,
                "in_sync": broker.in_sync,
                "role": "controller" if broker.is_controller else None,
            }
            for broker in state.brokers
        ],
        "attention": [_row(it) for it in state.attention],
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


def _row(partition: PartitionState) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.index,
        "state": partition.state,
        "leader": None if partition.leader == NO_LEADER else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
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
