"""`millstream pipelines`: lists running pipelines, and stops and restarts them, from anywhere.

Pipelines publish their status to a topic of their cluster, and read commands from another one
(`millstream.admin.pipeline_records`). These commands need nothing else than the cluster.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import STATUS_TOPIC, Action
from millstream.admin.pipelines import (
    find_pipeline,
    forget_pipeline,
    read_pipelines,
    send_command,
    wait_for,
)
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, print_json, print_rows

WAIT_SECONDS = 120.0

app = typer.Typer(
    help="List running pipelines; stop and restart them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

Identity = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="Its name, with its version: revenue, revenue@2.")
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is done."),
]


@app.command(name="list")
def list_pipelines(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List pipelines that run, or ran in the last days: state, rates, lag, watermark.

    A pipeline that was killed is shown as lost. Those that run with publish_status = false
    are not shown.

    [bold]Examples[/bold]

    \b
      millstream pipelines list
      millstream pipelines list --json
    """
    now_ms = time.time_ns() // 1_000_000
    found = read_pipelines(Cluster.connect(bootstrap_server, client_config).protocol, now_ms)
    if as_json:
        print_json([document_of(it) for it in found])
        return
    columns = {
        "pipeline": "PIPELINE",
        "state": "STATE",
        "rows": "ROWS/S",
        "lag": "LAG",
        "batch": "BATCH",
        "behind": "WATERMARK",
        "late": "LATE",
        "bad": "BAD",
        "state_bytes": "STATE SIZE",
        "where": "WHERE",
    }
    print_rows([row_of(it, now_ms) for it in found], columns, empty="no pipelines")


def row_of(shown: Shown, now_ms: int) -> dict[str, Any]:
    status = shown.status
    return {
        "pipeline": shown.identity,
        "state": f"lost for {shown.age_ms // 1000} s" if shown.is_lost else status.state,
        "rows": f"{status.rows_per_second:,.0f}" if shown.is_running else "-",
        "lag": "-" if status.lag is None else f"{status.lag:,}",
        "batch": "-" if status.batch_ms is None else f"{status.batch_ms:,} ms",
        "behind": "-"
        if status.watermark_ms is None
        else f"{max(now_ms - status.watermark_ms, 0) / 1000:,.0f} s behind",
        "late": sum(status.late.values()),
        "bad": status.bad,
        "state_bytes": f"{status.state_bytes / 1e6:,.1f} MB",
        "where": f"{shown.about.host}:{shown.about.process}" if shown.about.host else "-",
    }


def document_of(shown: Shown) -> dict[str, Any]:
    return {
        "state": shown.state,
        "age_ms": shown.age_ms,
        "twins": list(shown.twins),
        "about": asdict(shown.about),
        "status": asdict(shown.status),
    }


@app.command()
def stop(
    pipeline: Identity,
    wait: Wait = WAIT_SECONDS,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Stop a pipeline after its running batch, wherever it runs.

    `millstream run` goes on, and starts it again when `millstream pipelines restart` says so.
    A program that started the pipeline itself sees that its query has ended.

    [bold]Examples[/bold]

    \b
      millstream pipelines stop revenue
      millstream pipelines stop revenue@2 --wait 10
    """
    found = ask(pipeline, "stop", bootstrap_server, client_config)
    run = found.status.run
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        ended = wait_for(
            cluster,
            pipeline,
            lambda it: it.status.run != run or it.status.state in ("stopped", "done", "failed"),
            wait,
        )
    if ended is None and wait:
        raise CommandFailed(f"{pipeline} has not stopped in {wait:.0f} s; it was asked to")
    console().print(f"stopped {pipeline}" if ended else f"{pipeline} was asked to stop")


@app.command()
def restart(
    pipeline: Identity,
    wait: Wait = WAIT_SECONDS,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Restart a pipeline of `millstream run` after its running batch, or start a stopped one.

    It goes on from its checkpoint. Its code is that of the running process; to run other code,
    start the process again.

    [bold]Examples[/bold]

    \b
      millstream pipelines restart revenue
    """
    found = ask(pipeline, "restart", bootstrap_server, client_config)
    run = found.status.run
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        started = wait_for(
            cluster, pipeline, lambda it: it.status.run != run and it.is_running, wait
        )
    if started is None and wait:
        raise CommandFailed(f"{pipeline} has not restarted in {wait:.0f} s; it was asked to")
    console().print(f"restarted {pipeline}" if started else f"{pipeline} was asked to restart")


@app.command()
def forget(
    pipeline: Identity,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove a pipeline that has ended, or was killed, from what is listed.

    Nothing else of it is touched. If it runs again, it is listed again.

    [bold]Examples[/bold]

    \b
      millstream pipelines forget revenue
    """
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        now_ms = time.time_ns() // 1_000_000
        forget_pipeline(cluster, find_pipeline(read_pipelines(cluster, now_ms), pipeline))
    console().print(f"forgot {pipeline}; its records in {STATUS_TOPIC} are removed")


def ask(pipeline: str, action: Action, bootstrap_server: str, client_config: ClientConfig) -> Shown:
    """Send a command; returns the pipeline as it was before."""
    with closing(Cluster.connect(bootstrap_server, client_config).protocol) as cluster:
        found = find_pipeline(read_pipelines(cluster, time.time_ns() // 1_000_000), pipeline)
        send_command(cluster, found, action, by="millstream pipelines")
    return found
