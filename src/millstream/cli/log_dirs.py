"""`millstream topic log-dirs`: where the replicas of topics are on their brokers' disks, and moving
them to another log directory of the same broker, of any Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from millstream.admin.log_dirs import log_dirs as described
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, error_console, print_json, print_rows
from millstream.client.cluster import check
from millstream.errors import ErrorCode

POLL_SECONDS = 0.2
# Apache Kafka describes one directory after the other: while it switches to the copy, a replica is
# in neither or still in the old one.
GRACE_SECONDS = 5.0
COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "broker": "BROKER",
    "log_dir": "LOG DIRECTORY",
    "bytes": "BYTES",
    "moving_to": "MOVING TO",
    "lag": "LAG",
}


def log_dirs(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...")] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="PATH", help="Move the replicas to this log directory."),
    ] = None,
    broker: Annotated[
        int | None, typer.Option(metavar="ID", help="The broker whose replicas are moved.")
    ] = None,
    partitions: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Only these partitions. Default: all.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until they have been moved.")
    ] = True,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show in which log directories replicas are, or move them to another one of their broker.

    Replicas are copied while they are in use. At the end a partition is unavailable for a moment,
    and clients retry. The broker setting replica.alter.log.dirs.io.max.bytes.per.second limits how
    fast they are copied.

    [bold]Examples[/bold]

    \b
      millstream topic log-dirs
      millstream topic log-dirs orders --json
      millstream topic log-dirs orders --to /mnt/disk2 --broker 1
      millstream topic log-dirs orders --to /mnt/disk2 --broker 1 --partitions 0,3 --no-wait
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    for topic in topics or ():
        cluster.partitions_of(topic)
    if to is None:
        if broker is not None or partitions is not None:
            raise usage_error("--broker and --partitions need --to, the directory to move to")
        rows = [row for row in _rows(cluster) if not topics or row["topic"] in topics]
        if as_json:
            print_json(rows)
        else:
            print_rows(rows, COLUMNS, empty="there are no replicas")
        return
    if broker is None or not topics:
        raise usage_error("--to needs the topics to move, and --broker, whose replicas are moved")
    wanted = _replicas(cluster, topics, broker, _numbers(partitions))
    _send(cluster, broker, to, wanted)
    if wait:
        _follow(cluster, broker, to, wanted)


def _numbers(text: str | None) -> set[int] | None:
    if text is None:
        return None
    try:
        return {int(part) for part in text.split(",")}
    except ValueError:
        raise usage_error(f"--partitions {text!r}: write them as 0,1,2") from None


def _rows(cluster: Cluster, brokers: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Each replica, with where it is and where it moves."""
    with cluster.protocol as protocol:
        found = described(protocol, brokers)
    for directory in found.directories:
        if directory.problem and not directory.path:
            raise CommandFailed(directory.problem)
    return [asdict(it) for it in found.replicas]


def _replicas(
    cluster: Cluster, topics: Sequence[str], broker: int, wanted: set[int] | None
) -> list[tuple[str, int]]:
    """The partitions of these topics that have a replica on the broker."""
    found = []
    for topic in topics:
        partitions = cluster.metadata().topics[topic].partitions
        unknown = sorted((wanted or set()) - partitions.keys())
        if unknown:
            raise CommandFailed(f"{topic} has no partition {unknown[0]}")
        found += [
            (topic, index)
            for index, it in sorted(partitions.items())
            if broker in it.replicas and (wanted is None or index in wanted)
        ]
    if not found:
        raise CommandFailed(f"broker {broker} has no replica of {', '.join(topics)}")
    return found


def _send(cluster: Cluster, broker: int, path: str, wanted: Sequence[tuple[str, int]]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, index in wanted:
        topics.setdefault(topic, []).append(index)
    moved = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]
    fields = {"dirs": [{"path": path, "topics": moved}]}
    with cluster.protocol as protocol:
        protocol.broker_ids()  # and their addresses
        answer = protocol.ask_broker(broker, "alter_replica_log_dirs", fields)
    for result in answer.results:
        for it in result.partitions:
            if it.error_code is ErrorCode.LOG_DIR_NOT_FOUND:
                raise CommandFailed(f"{path} is not one of the log.dirs of broker {broker}")
            name = f"{result.topic_name}-{it.partition_index}"
            check(
                it.error_code,
                f"{name} is not moved to {path} of broker {broker}",
                "alter_replica_log_dirs",
            )


def _follow(cluster: Cluster, broker: int, path: str, wanted: Sequence[tuple[str, int]]) -> None:
    """Show progress until all are there."""
    bars = Progress(
        TextColumn("moving"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=error_console(),
        transient=True,
    )
    with bars:
        task = bars.add_task("moving", total=None)
        given_up_at = time.monotonic() + GRACE_SECONDS
        while True:
            rows = {(it["topic"], it["partition"]): it for it in _rows(cluster, [broker])}
            mine = [rows[key] for key in wanted if key in rows]
            moving = [it for it in mine if it["moving_to"] is not None]
            elsewhere = [it for it in mine if it["log_dir"] != path]
            missing = [key for key in wanted if key not in rows]  # between two directories
            if moving:
                given_up_at = time.monotonic() + GRACE_SECONDS
            elif not (elsewhere or missing) or time.monotonic() > given_up_at:
                break
            done = sum(it["copied_bytes"] if it in moving else it["bytes"] for it in mine)
            bars.update(task, total=sum(it["bytes"] for it in mine), completed=done)
            time.sleep(POLL_SECONDS)
    if missing:
        topic, partition = missing[0]
        raise CommandFailed(
            f"{topic}-{partition} is no longer on broker {broker}, whose log says why"
        )
    if elsewhere:
        first = elsewhere[0]
        raise CommandFailed(
            f"{first['topic']}-{first['partition']} is still in {first['log_dir']}; the log of "
            f"broker {broker} says why"
        )
    console().print(f"moved {len(mine)} replicas to {path}", markup=False)
