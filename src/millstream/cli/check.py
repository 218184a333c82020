"""`millstream check`: tests the guarantees of a cluster, also under faults.

The workload and the judge are `millstream.testing.histories`; this module shows how far they are.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed
from millstream.cli.options import BOOTSTRAP_DEFAULT, BootstrapServer, ClientConfig
from millstream.cli.output import error_console, note
from millstream.testing.cluster import ClusterProcesses
from millstream.testing.histories.checker import check as judge
from millstream.testing.histories.faults import BrokerProcess, Nemesis
from millstream.testing.histories.history import History
from millstream.testing.histories.workload import Plan, Progress, remove_traces, run_workload

LINE_EVERY_S = 5.0

app = typer.Typer(
    help="Check whether a cluster loses, duplicates, reorders or tears records.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def check(
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long the clients run.")] = 30,
    seed: Annotated[
        int | None, typer.Option(help="Seed for operations and faults. Default: random.")
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Start a broker, and kill and pause it.")
    ] = False,
    brokers: Annotated[
        int,
        typer.Option(min=1, max=7, help="With --faults: brokers of a replicated cluster."),
    ] = 1,
    transactions: Annotated[bool, typer.Option(help="Include transactions.")] = True,
    classic_only: Annotated[
        bool, typer.Option("--classic-only", help="Skip groups of the consumer protocol.")
    ] = False,
    share_groups: Annotated[bool, typer.Option(help="Include a share group.")] = True,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the history to this file.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only check a saved history.")
    ] = None,
) -> None:
    """Check whether a cluster loses, duplicates, reorders or tears records.

    Runs producers, transactions, consumers of several groups and a share group at the
    same time, on its own topics. Records every operation and checks the history like
    Jepsen does.
    Deletes the topics at the end, unless it finds an anomaly. Exits with 1 if it does.

    [bold]Examples[/bold]

    \b
      millstream check
      millstream check --faults --seconds 60
      millstream check --faults --brokers 3
      millstream check -b broker:9092 --no-transactions --save run.jsonl
      millstream check --history run.jsonl
    """
    if history is not None:
        conclude(History.load(history))
        return
    seed = random.randrange(1_000_000) if seed is None else seed
    plan = Plan(
        seconds=seconds,
        seed=seed,
        prefix=f"millstream-check-{seed}-{random.randrange(16**6):06x}",
        transactors=2 if transactions else 0,
        workers=2 if transactions else 0,
        transactional_claimants=1 if transactions else 0,
        sharers=2 if share_groups else 0,
        protocols=("classic",) if classic_only else ("classic", "consumer"),
    )
    note(f"seed {seed}, {seconds:g} s, topics {plan.prefix}-in, -out, -recreated-0, -claims")
    if faults:
        found = run_broken(plan, brokers)
    else:
        cluster = Cluster.connect(bootstrap_server, client_config)
        with progress_shown() as show:
            found = run_workload(cluster.bootstrap_servers, plan, cluster.own_settings, None, show)
    if save is not None:
        found.save(save)
        note(f"history saved to {save}")
    conclude(found)
    if not faults:
        remove_traces(cluster.bootstrap_servers, plan, cluster.own_settings)


def run_broken(plan: Plan, count: int) -> History:
    """The workload on brokers with repeated faults, of one broker at a time."""
    with tempfile.TemporaryDirectory(prefix="millstream-check-") as directory:
        if count > 1:
            cluster = ClusterProcesses(Path(directory), count)
            nemesis = Nemesis(list(cluster.brokers.values()), plan.seed, broken_s=(0.1, 5.0))
            with cluster, progress_shown(nemesis) as show:
                return run_workload(cluster.addresses, plan, nemesis=nemesis, on_progress=show)
        broker = BrokerProcess.millstream(Path(directory))
        nemesis = Nemesis([broker], plan.seed)
        with broker, progress_shown(nemesis) as show:
            return run_workload(broker.address, plan, nemesis=nemesis, on_progress=show)


def conclude(history: History) -> None:
    report = judge(history)
    typer.echo(str(report))
    if not report.is_good:
        raise CommandFailed("the cluster violated its guarantees")


@contextlib.contextmanager
def progress_shown(nemesis: Nemesis | None = None) -> Iterator[Callable[[Progress], None]]:
    """A live line in a terminal, occasional lines elsewhere."""
    if error_console().is_terminal:
        with Live(console=error_console(), refresh_per_second=8, transient=True) as live:
            yield lambda progress: live.update(line_of(progress, nemesis))
        return
    next_line = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            error_console().print(line_of(progress, nemesis))

    yield show


def line_of(progress: Progress, nemesis: Nemesis | None) -> Text:
    line = Text(f"{progress.seconds:5.1f} s  ", style="dim")
    line.append(f"{progress.phase}  ", style="bold")
    line.append(f"{len(progress.history):,} operations")
    if nemesis is not None and nemesis.events:
        line.append(f"   {nemesis.events[-1].strip()}", style="red")
    return line
