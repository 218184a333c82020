"""`millstream topic reassign` and `topic elect`: move replicas between brokers, and leaders between
replicas, of any Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from millstream.admin.reassignments import elect_leaders, reassignments
from millstream.admin.reassignments import reassign as request_reassignment
from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, error_console, note, print_json, print_rows
from millstream.cli.reassignment import CannotPlace, Replicas, moves, plan
from millstream.cli.throttling import Moved, remove_throttles, set_throttles

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
            if throttle:
                set_throttles(cluster.protocol, _moved(planned), throttle)
            _send(cluster, {key: move.after for key, move in planned.items()})
            if wait:
                _follow(cluster, planned.keys())
                _remove_throttles(cluster, topics)


class Move:
    """The replicas of a partition before and after."""

    def __init__(self, before: Replicas, after: Replicas) -> None:
        self.before = before
        self.after = after


def _moved(planned: Mapping[tuple[str, int], Move]) -> list[Moved]:
    return [
        Moved(topic, index, move.before, tuple(it for it in move.after if it not in move.before))
        for (topic, index), move in planned.items()
    ]


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


def _remove_throttles(cluster: Cluster, topics: Sequence[str]) -> None:
    """Of topics that do not move any more. Rates stay while others move."""
    is_moving = bool(_moving(cluster))
    if remove_throttles(cluster.protocol, topics, is_moving=is_moving):
        note("the throttle is removed")


def _broker_ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise usage_error(f"--brokers {text!r}: write broker ids as 1,2,3") from None


def _plan(
    cluster: Cluster, topics: Sequence[str], brokers: list[int] | None, factor: int | None
) -> dict[tuple[str, int], Move]:
    racks = _racks(cluster)
    unknown = sorted(set(brokers or ()) - racks.keys())
    if unknown:
        known = ", ".join(map(str, sorted(racks)))
        raise CommandFailed(f"there is no broker {unknown[0]}; the cluster has {known}")
    named_racks = {broker: rack for broker, rack in racks.items() if rack}
    planned: dict[tuple[str, int], Move] = {}
    for topic in topics:
        indexes = cluster.partitions_of(topic)
        partitions = cluster.metadata().topics[topic].partitions
        current = {index: tuple(partitions[index].replicas) for index in indexes}
        try:
            placed = plan(current, brokers or racks.keys(), factor, racks=named_racks)
        except CannotPlace as error:
            raise CommandFailed(f"{topic}: {error}") from None
        for index, after in moves(current, placed).items():
            planned[topic, index] = Move(current[index], after)
    return planned


def _racks(cluster: Cluster) -> dict[int, str | None]:
    future = cluster.admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
    return {node.id: node.rack for node in future.result().nodes}


def _show_plan(planned: Mapping[tuple[str, int], Move], as_json: bool) -> None:
    rows = [
        {"topic": topic, "partition": index, "replicas": move.before, "new_replicas": move.after}
        for (topic, index), move in planned.items()
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


def _send(cluster: Cluster, replicas: Mapping[tuple[str, int], Replicas | None]) -> None:
    """Ask for these replicas; None cancels."""
    with cluster.protocol as protocol:
        refused = request_reassignment(protocol, replicas)
    if refused:
        problems = [f"{topic}-{index}: {why}" for (topic, index), why in refused.items()]
        raise CommandFailed(f"reassigning failed for {'; '.join(problems)}")


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
    moving = [
        (row["topic"], row["partition"])
        for row in _moving(cluster)
        if not topics or row["topic"] in topics
    ]
    if moving:
        _send(cluster, dict.fromkeys(moving))
        _remove_throttles(cluster, [topic for topic, _ in moving])
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
