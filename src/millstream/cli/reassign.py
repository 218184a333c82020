"""`millstream topic reassign` and `topic elect`: move replicas between brokers, and leaders between
replicas, of any Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from millstream.admin.reassignments import (
    Move,
    cancel_moves,
    elect_leaders,
    plan_moves,
    reassignments,
    remove_unused_throttles,
    start_moves,
)
from millstream.admin.throttling import Moved, remove_throttles, set_throttles
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, error_console, note, print_json, print_rows

POLL_SECONDS = 0.5

Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC")]


def reassign(
    topics: Topics = None,
    brokers: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,...", help="Brokers for the replicas. Default: all."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of each partition. Default: as many as now.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel reassignments that are in progress.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the new placement; change nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all replicas have caught up.")
    ] = True,
    throttle: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Bytes per second that each broker may send and fetch for replicas that catch up. "
            "0 removes throttles.",
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Move replicas to other brokers, or change their number; without topics, show what moves now.

    Replicas that may stay do. New ones catch up first, then the old ones are removed. Racks are
    respected if brokers have them. A throttle is removed when all have moved, or with
    --throttle 0 if the command does not wait. Without topics, it is set for what moves now.

    [bold]Examples[/bold]

    \b
      millstream topic reassign orders --brokers 1,2,3
      millstream topic reassign orders --replication-factor 3 --dry-run
      millstream topic reassign orders --brokers 1,2,3 --throttle 10000000
      millstream topic reassign                 # what is moving now
      millstream topic reassign --throttle 0    # at full speed
      millstream topic reassign orders --cancel
    """
    wanted = _broker_ids(brokers)
    cluster = Cluster.connect(bootstrap_server, client_config)
    if cancel:
        _cancel(cluster, topics)
    elif not topics:
        if wanted is not None or replication_factor is not None:
            raise usage_error("name the topics to reassign")
        if throttle is not None:
            _throttle_moving(cluster, throttle)
        _show_moving(cluster, as_json)
    else:
        planned = _plan(cluster, topics, wanted, replication_factor)
        _show_plan(planned, as_json)
        if not dry_run and planned:
            with cluster.protocol as protocol:
                start_moves(protocol, planned, throttle)
            if wait:
                _follow(cluster, [(it.topic, it.partition) for it in planned])
                with cluster.protocol as protocol:
                    if remove_unused_throttles(protocol, topics):
                        note("the throttle is removed")


def _plan(
    cluster: Cluster, topics: Sequence[str], brokers: list[int] | None, factor: int | None
) -> list[Move]:
    for topic in topics:
        cluster.partitions_of(topic)
    with cluster.protocol as protocol:
        return plan_moves(protocol, topics, brokers, factor)


def _throttle_moving(cluster: Cluster, bytes_per_second: int) -> None:
    """Set or remove the throttle of what moves now."""
    moved = [
        Moved(
            row["topic"],
            row["partition"],
            tuple(it for it in row["replicas"] if it not in row["adding"]),
            tuple(row["adding"]),
        )
        for row in _moving(cluster)
    ]
    if not bytes_per_second:
        remove_throttles(cluster.protocol, None, is_moving=False)
    elif moved:
        set_throttles(cluster.protocol, moved, bytes_per_second)


def _broker_ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise usage_error(f"--brokers {text!r}: write broker ids as 1,2,3") from None


def _show_plan(planned: Sequence[Move], as_json: bool) -> None:
    rows = [
        {
            "topic": it.topic,
            "partition": it.partition,
            "replicas": it.before,
            "new_replicas": it.after,
        }
        for it in planned
    ]
    if as_json:
        print_json(rows)
        return
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "replicas": "REPLICAS",
        "new_replicas": "NEW REPLICAS",
    }
    print_rows(rows, columns, empty="nothing to move: the replicas are where they should be")


def _moving(cluster: Cluster) -> list[dict[str, Any]]:
    with cluster.protocol as protocol:
        return [asdict(it) for it in reassignments(protocol)]


def _show_moving(cluster: Cluster, as_json: bool) -> None:
    rows = _moving(cluster)
    if as_json:
        print_json(rows)
        return
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "replicas": "REPLICAS",
        "adding": "ADDING",
        "removing": "REMOVING",
    }
    print_rows(rows, columns, empty="no reassignment is in progress")


def _cancel(cluster: Cluster, topics: Sequence[str] | None) -> None:
    for topic in topics or ():
        cluster.partitions_of(topic)
    with cluster.protocol as protocol:
        moving = cancel_moves(protocol, topics or None)
    for topic, index in moving:
        console().print(f"cancelled {topic}-{index}", markup=False)
    if not moving:
        note("no reassignment is in progress")


def _follow(cluster: Cluster, planned: Any) -> None:
    """Show progress until none of these partitions moves."""
    waiting = set(planned)
    with _bar(len(waiting)) as advance:
        while waiting:
            moving = {(row["topic"], row["partition"]) for row in _moving(cluster)}
            done = waiting - moving
            advance(len(done))
            waiting -= done
            if waiting:
                time.sleep(POLL_SECONDS)
    console().print(f"moved {len(planned)} partitions", markup=False)


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    bars = Progress(
        TextColumn("reassigning"),
        BarColumn(),
        MofNCompleteColumn(),
        console=error_console(),
        transient=True,
    )
    with bars:
        task = bars.add_task("reassigning", total=total)
        yield lambda count: bars.advance(task, count)


def elect(
    topics: Topics = None,
    every: Annotated[bool, typer.Option("--all", help="All topics of the cluster.")] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect a replica that is not in sync if no other is live. LOSES DATA.",
        ),
    ] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Make the preferred replicas, the first of each partition, the leaders.

    [bold]Examples[/bold]

    \b
      millstream topic elect orders
      millstream topic elect --all
      millstream topic elect orders --unclean   # records may be lost
    """
    if bool(topics) == every:
        raise usage_error("name the topics, or give --all")
    cluster = Cluster.connect(bootstrap_server, client_config)
    partitions = {topic: cluster.partitions_of(topic) for topic in topics or ()}
    with cluster.protocol as protocol:
        outcome = elect_leaders(protocol, None if every else partitions, unclean=unclean)
    for topic, index in outcome.partitions:
        console().print(f"elected a leader of {topic}-{index}", markup=False)
    if outcome.problems:
        problems = [f"{topic}-{index}: {why}" for (topic, index), why in outcome.problems.items()]
        raise CommandFailed(f"electing failed for {'; '.join(problems)}")
    if not outcome.partitions:
        note("every partition already has the leader it should have")
