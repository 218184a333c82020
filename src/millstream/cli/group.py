"""`millstream group`: members, lag and offsets of consumer groups of any Kafka cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Partition, suggestion, wait_each
from millstream.cli.failures import CommandFailed
from millstream.cli.lag import group_lag, warnings
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_pairs, print_rows, warn
from millstream.cli.reset import Move, Target, parse_scope, plan

app = typer.Typer(
    help="Look after consumer and share groups: members, lag, offsets, settings.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
TARGET = "Where to"


@app.command("list")
def list_groups(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List consumer groups.

    [bold]Examples[/bold]

    \b
      millstream group list
      millstream group list --json | jq -r '.[].group'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    rows = [
        {"group": g.group_id, "type": g.type.name.lower(), "state": g.state.name.lower()}
        for g in sorted(listed_groups(cluster), key=lambda g: str(g.group_id))
    ]
    if as_json:
        print_json(rows)
        return
    columns = {"group": "GROUP", "type": "TYPE", "state": "STATE"}
    print_rows(rows, columns, empty="no consumer groups yet")


def listed_groups(cluster: Cluster) -> list[Any]:
    result = cluster.admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
    for error in result.errors:
        raise KafkaException(error)
    return list(result.valid)


def describe_group(cluster: Cluster, group: str) -> Any:
    """confluent-kafka's description of the group; raises `CommandFailed` where there is none.

    Older brokers describe an unknown group as dead rather than refuse it.
    """
    try:
        future = cluster.admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[
            group
        ]
        description = future.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise
    else:
        if description.state != ConsumerGroupState.DEAD:
            return description
    known = [g.group_id for g in listed_groups(cluster)]
    raise CommandFailed(f"there is no group {group!r}{suggestion(group, known)}")


def assigned_members(description: Any) -> dict[Partition, str]:
    """Who reads which partition: `client id @ host` by partition."""
    return {
        (place.topic, place.partition): f"{member.client_id} @ {member.host.lstrip('/')}"
        for member in description.members
        for place in member.assignment.topic_partitions
    }


@app.command()
def describe(
    group: GroupName,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show a group's members and its lag in every partition.

    Warns before retention deletes records that the group has not read, and says how many it has.

    [bold]Examples[/bold]

    \b
      millstream group describe billing
      millstream group describe billing --json | jq '[.partitions[].lag] | add'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    description = describe_group(cluster, group)
    members = [
        {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.host.lstrip("/"),
            "partitions": [f"{p.topic}[{p.partition}]" for p in member.assignment.topic_partitions],
        }
        for member in description.members
    ]
    lags = group_lag(cluster, group, assigned_members(description))
    facts = {
        "group": group,
        "state": description.state.name.lower(),
        "type": description.type.name.lower(),
        "assignor": description.partition_assignor,
        "coordinator": f"{description.coordinator.host}:{description.coordinator.port}",
        "lag": sum(lag.lag or 0 for lag in lags),
    }
    if as_json:
        print_json(facts | {"members": members, "partitions": [lag.as_row() for lag in lags]})
        return
    print_pairs(facts.items())
    show_members(members)
    show_lags([lag.as_row() for lag in lags])
    for warning in warnings(lags):
        warn(warning)


def show_members(members: list[dict[str, Any]]) -> None:
    columns = {
        "client": "CLIENT",
        "host": "HOST",
        "instance": "INSTANCE",
        "partitions": "PARTITIONS",
    }
    console().print()
    print_rows(members, columns, empty="no members", title="Members")


def show_lags(rows: list[dict[str, Any]]) -> None:
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "committed": "COMMITTED",
        "start": "START",
        "end": "END",
        "lag": "LAG",
        "lost": "LOST",
        "member": "READ BY",
    }
    print_rows(rows, columns, empty="nothing committed", title="Partitions")


ToEarliest = Annotated[bool, typer.Option("--to-earliest", rich_help_panel=TARGET)]
ToLatest = Annotated[bool, typer.Option("--to-latest", rich_help_panel=TARGET)]
ToCurrent = Annotated[
    bool,
    typer.Option("--to-current", rich_help_panel=TARGET, help="Stay, or come back into range."),
]
ToOffset = Annotated[int | None, typer.Option("--to-offset", min=0, rich_help_panel=TARGET)]
ToMoment = Annotated[
    str | None,
    typer.Option(
        "--to-datetime", metavar="WHEN", rich_help_panel=TARGET, help="As in `consume --since`."
    ),
]
BySpan = Annotated[
    str | None,
    typer.Option(
        "--by-duration", metavar="SPAN", rich_help_panel=TARGET, help="So long ago: 2h, PT2H."
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option("--shift-by", rich_help_panel=TARGET, help="Forward; back if negative."),
]


@app.command()
def reset(
    group: GroupName,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="NAME:0,1,...", help="What to move; repeatable."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition the group has committed to.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: ToCurrent = False,
    to_offset: ToOffset = None,
    to_datetime: ToMoment = None,
    by_duration: BySpan = None,
    shift_by: ShiftBy = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it, or only show it.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Move a group's committed offsets. Shows what it would do, unless --execute is given.

    [bold]Examples[/bold]

    \b
      millstream group reset billing --topic orders --to-earliest
      millstream group reset billing --topic orders:0,2 --to-datetime yesterday --execute
      millstream group reset billing --all-topics --by-duration 2h --execute
      millstream group reset billing --topic orders --shift-by -10 --execute
    """
    target = Target(
        to_earliest, to_latest, to_current, to_offset, to_datetime, by_duration, shift_by
    )
    cluster = Cluster.connect(bootstrap_server, client_config)
    places = parse_scope(cluster, group, topic or [], all_topics)
    moves = plan(cluster, group, places, target, datetime.now().astimezone())
    if execute:
        apply_moves(cluster, group, moves)
    rows = [move.as_row() for move in moves]
    if as_json:
        print_json({"group": group, "executed": execute, "moves": rows})
        return
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "committed": "COMMITTED",
        "target": "NEW",
        "note": "NOTE",
    }
    print_rows(rows, columns, empty="nothing to move")
    if not execute:
        note("dry run: nothing was changed; add --execute to do it")


def apply_moves(cluster: Cluster, group: str, moves: list[Move]) -> None:
    """Commit the moves; only an empty group lets itself be moved."""
    request = [
        ConsumerGroupTopicPartitions(
            group, [TopicPartition(move.topic, move.partition, move.target) for move in moves]
        )
    ]
    futures = cluster.admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)
    try:
        places = futures[group].result().topic_partitions
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
            raise still_active(group) from None
        raise
    for place in places:
        if place.error is not None:
            if place.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
                raise still_active(group)
            raise CommandFailed(f"{place.topic}[{place.partition}]: {place.error.str()}")


def still_active(group: str) -> CommandFailed:
    return CommandFailed(f"group {group!r} has members; stop its consumers before moving it")


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Delete groups that have no members, with their offsets.

    [bold]Examples[/bold]

    \b
      millstream group delete billing
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    for group in groups:
        describe_group(cluster, group)
    futures = cluster.admin.delete_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S)
    wait_each(futures, "deleting")
    for group in groups:
        console().print(f"deleted {group}", markup=False)
