"""`millstream group`: members, lag, offsets and settings of groups of any Kafka cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from millstream.admin import share_groups
from millstream.admin.groups import (
    SHARE,
    GroupListing,
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from millstream.admin.lag import group_lag, warnings
from millstream.admin.reset import Target, parse_scope, plan
from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, wait_each
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    BootstrapServer,
    ClientConfig,
    parse_assignments,
)
from millstream.cli.output import console, note, print_json, print_pairs, print_rows, warn
from millstream.cli.share import show_share_group
from millstream.errors import ApiError, ErrorCode

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
def list_(
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
    rows = [
        {"group": it.group, "type": it.type, "state": it.state}
        for it in list_groups(cluster.protocol)
    ]
    if as_json:
        print_json(rows)
        return
    columns = {"group": "GROUP", "type": "TYPE", "state": "STATE"}
    print_rows(rows, columns, empty="no groups yet")


def is_share_group(listed: list[GroupListing], group: str) -> bool:
    return any(it.group == group and it.type == SHARE for it in listed)


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
    if is_share_group(list_groups(cluster.protocol), group):
        show_share_group(cluster, group, as_json)
        return
    description = describe_group(cluster.protocol, group)
    members = [
        {
            "member": member.member,
            "instance": member.instance,
            "client": member.client,
            "host": member.host,
            "partitions": [f"{topic}[{index}]" for topic, index in member.partitions],
        }
        for member in description.members
    ]
    lags = group_lag(cluster.protocol, description)
    facts = {
        "group": group,
        "state": description.state,
        "type": description.type,
        "assignor": description.assignor,
        "coordinator": description.coordinator,
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
    protocol = cluster.protocol
    is_share = is_share_group(list_groups(protocol), group)
    try:
        committed = (share_groups.start_offsets if is_share else committed_offsets)(protocol, group)
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise
        # Reading needs less than the reset: `cli/rights.py` names what that needs.
        raise ApiError(error.code, f"the offsets of group {group!r} may not be reset") from error
    places = parse_scope(protocol, topic or [], all_topics, committed)
    moves = plan(protocol, committed, places, target, datetime.now().astimezone())
    if execute:
        apply = share_groups.alter_start_offsets if is_share else commit_offsets
        apply(protocol, group, {(it.topic, it.partition): it.target for it in moves})
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
        delete_group(cluster.protocol, group)
        console().print(f"deleted {group}", markup=False)
