"""`millstream group`: members, lag, offsets and settings of groups of any Kafka cluster."""

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
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Partition, suggestion, wait_each
from millstream.cli.failures import CommandFailed
from millstream.cli.lag import committed_offsets, group_lag, warnings
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    BootstrapServer,
    ClientConfig,
    parse_assignments,
)
from millstream.cli.output import console, note, print_json, print_pairs, print_rows, warn
from millstream.cli.reset import Move, Target, parse_scope, plan
from millstream.cli.share import alter_start_offsets, describe_share_group, start_offsets
from millstream.client.cluster import check

app = typer.Typer(
    help="Manage consumer and share groups: members, lag, offsets, settings.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
TARGET = "Where to"
DYNAMIC_GROUP_CONFIG = 8  # DescribeConfigs' source of what a group sets itself


@app.command("list")
def list_groups(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List classic, consumer and share groups.

    [bold]Examples[/bold]

    \b
      millstream group list
      millstream group list --json | jq -r '.[].group'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    rows = sorted(listed_groups(cluster), key=lambda row: row["group"])
    if as_json:
        print_json(rows)
        return
    columns = {"group": "GROUP", "type": "TYPE", "state": "STATE"}
    print_rows(rows, columns, empty="no groups yet")


def listed_groups(cluster: Cluster) -> list[dict[str, str]]:
    """All groups of all coordinators; brokers before 3.8 do not return the type."""
    rows = []
    for broker_id in cluster.protocol.broker_ids():
        answer = cluster.protocol.ask_broker(broker_id, "list_groups", {})
        check(answer.error_code, f"broker {broker_id} does not list its groups")
        rows += [
            {
                "group": str(it.group_id),
                "type": getattr(it, "group_type", "unknown").lower(),
                "state": getattr(it, "group_state", "unknown").lower(),
            }
            for it in answer.groups
        ]
    return rows


def is_share_group(cluster: Cluster, group: str) -> bool:
    return any(it["group"] == group and it["type"] == "share" for it in listed_groups(cluster))


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
    known = [it["group"] for it in listed_groups(cluster)]
    raise CommandFailed(f"there is no group {group!r}{suggestion(group, known)}")


def assigned_members(description: Any) -> dict[Partition, str]:
    """Readers by partition: `client id @ host`."""
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

    Warns before retention deletes unread records, and counts those it has deleted.

    For share groups: the first unfinished offset (START), unfinished records (BACKLOG), records
    locked by members (HELD), waiting for their next attempt (DELAYED), available (RELEASED),
    being written to the dead-letter topic (DYING), and delivery counts (DELIVERED).

    [bold]Examples[/bold]

    \b
      millstream group describe billing
      millstream group describe billing --json | jq '[.partitions[].lag] | add'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    if is_share_group(cluster, group):
        describe_share_group(cluster, group, as_json)
        return
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
    typer.Option(
        "--to-current", rich_help_panel=TARGET, help="Keep the offset, or move it into range."
    ),
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
        "--by-duration",
        metavar="SPAN",
        rich_help_panel=TARGET,
        help="Duration back from now: 2h, PT2H.",
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
        typer.Option(
            "--topic", "-t", metavar="NAME:0,1,...", help="Topic or TOPIC:PARTITION; repeatable."
        ),
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
        bool, typer.Option("--execute/--dry-run", help="Apply the changes, or only show them.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Reset a group's committed offsets, or the start of a share group.

    Only shows what it would do without --execute. For a share group, the state of individual
    records is discarded: all records from the new start on are delivered again.

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
    is_share = is_share_group(cluster, group)
    committed = (start_offsets if is_share else committed_offsets)(cluster, group)
    places = parse_scope(cluster, topic or [], all_topics, committed)
    moves = plan(cluster, committed, places, target, datetime.now().astimezone())
    if execute and is_share:
        alter_start_offsets(cluster, group, {(it.topic, it.partition): it.target for it in moves})
    elif execute:
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
    print_rows(rows, columns, empty="no offsets to change")
    if not execute:
        note("dry run: nothing was changed; add --execute to do it")


def apply_moves(cluster: Cluster, group: str, moves: list[Move]) -> None:
    """Commit the new offsets; the group must have no members."""
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
    return CommandFailed(f"group {group!r} has members; stop its consumers first")


@app.command()
def config(
    group: GroupName,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings to change.")
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="NAME", help="Reset to the broker's value; repeatable."),
    ] = None,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Include settings with default values.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show or change a group's settings. The group need not exist yet.

    [bold]Examples[/bold]

    \b
      millstream group config workers
      millstream group config workers share.auto.offset.reset=earliest
      millstream group config workers share.retry.backoff.ms=1000 share.delivery.count.limit=10
      millstream group config workers errors.deadletterqueue.topic.name=dlq.orders
      millstream group config workers --delete share.retry.backoff.ms
    """
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in parse_assignments(settings or [], "setting").items()
    ] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in delete_config or []
    ]
    cluster = Cluster.connect(bootstrap_server, client_config)
    if changes:
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=changes)
        futures = cluster.admin.incremental_alter_configs(
            [resource], request_timeout=REQUEST_TIMEOUT_S
        )
        wait_each(futures, "changing the settings")
    shown = {
        name: entry.value
        for name, entry in sorted(cluster.settings_of(group, ConfigResource.Type.GROUP).items())
        if all_settings or entry.source == DYNAMIC_GROUP_CONFIG
    }
    if as_json:
        print_json(shown)
    elif shown:
        print_pairs(shown.items())
    else:
        note(f"{group} has no settings; --all shows the effective ones")


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP")],
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Delete groups without members, with their offsets and state.

    [bold]Examples[/bold]

    \b
      millstream group delete billing
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    for group in groups:
        if not is_share_group(cluster, group):
            describe_group(cluster, group)
    futures = cluster.admin.delete_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S)
    wait_each(futures, "deleting")
    for group in groups:
        console().print(f"deleted {group}", markup=False)
