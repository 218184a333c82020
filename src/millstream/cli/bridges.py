"""`millstream bridges`: lists running bridges, from anywhere.

Bridges publish their status to a topic of their cluster (`millstream.admin.bridges`). These
commands need nothing else than the cluster.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from millstream.admin.bridges import (
    BAD,
    IN,
    LOST,
    OUT,
    TOPIC,
    ShownBridge,
    find_bridge,
    forget_bridge,
    read_bridges,
)
from millstream.cli.cluster import Cluster
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, print_json, print_rows

app = typer.Typer(
    help="List running bridges: what passed, and what was lost.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command(name="list")
def list_bridges(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List bridges that run, or ran in the last days: records in and out, lost and bad ones.

    A bridge that was killed is shown as lost. Those with publish_status = false are not shown.
    JSON has all counters, with their reasons.

    [bold]Examples[/bold]

    \b
      millstream bridges list
      millstream bridges list --json
    """
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        found = read_bridges(cluster, time.time_ns() // 1_000_000)
    if as_json:
        print_json([document_of(it) for it in found])
        return
    columns = {
        "bridge": "BRIDGE",
        "state": "STATE",
        "in": "IN",
        "out": "OUT",
        "lost": "LOST",
        "bad": "BAD",
        "where": "WHERE",
        "addresses": "ADDRESSES",
    }
    print_rows([row_of(it) for it in found], columns, empty="no bridges")


def row_of(shown: ShownBridge) -> dict[str, Any]:
    status = shown.status
    return {
        "bridge": shown.name,
        "state": f"lost for {shown.age_ms // 1000} s" if shown.is_lost else shown.state,
        **{kind: status.total(kind) for kind in (IN, OUT, LOST, BAD)},
        "where": f"{status.host}:{status.process}" if status.host else "-",
        "addresses": ", ".join(status.addresses),
    }


def document_of(shown: ShownBridge) -> dict[str, Any]:
    return {
        "state": shown.state,
        "age_ms": shown.age_ms,
        "twins": list(shown.twins),
        "status": asdict(shown.status),
    }


@app.command()
def forget(
    bridge: Annotated[str, typer.Argument(metavar="BRIDGE", help="Its name.")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove a bridge that has ended, or was killed, from what is listed.

    Nothing else of it is touched. If it runs again, it is listed again.

    [bold]Examples[/bold]

    \b
      millstream bridges forget edge
    """
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        now_ms = time.time_ns() // 1_000_000
        forget_bridge(cluster, find_bridge(read_bridges(cluster, now_ms), bridge))
    console().print(f"forgot {bridge}; its record in {TOPIC} is removed", markup=False)
