"""`millstream topic`: create, list, describe, alter and delete topics of any Kafka cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)

from millstream.cli.backlog import describe_backlog, show_backlog
from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, wait_each
from millstream.cli.failures import usage_error
from millstream.cli.log_dirs import log_dirs
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    CLIENT_CONFIG_VARIABLE,
    AsJson,
    BootstrapServer,
    ClientConfig,
    parse_assignments,
)
from millstream.cli.output import console, print_json, print_pairs, print_rows
from millstream.cli.reassign import elect, reassign
from millstream.errors import MillstreamError

COMPLETION_TIMEOUT_S = 1.0

app = typer.Typer(
    help="Create, list, describe, alter, move and delete topics.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell; silent when the cluster does not answer at once."""
    address = ctx.params.get("bootstrap_server") or os.environ.get(BOOTSTRAP_VARIABLE)
    config = ctx.params.get("client_config") or os.environ.get(CLIENT_CONFIG_VARIABLE)
    try:
        cluster = Cluster.configured(address or BOOTSTRAP_DEFAULT, Path(config) if config else None)
        topics = cluster.metadata(COMPLETION_TIMEOUT_S).topics
    except MillstreamError:
        return []
    return [name for name in topics if name.startswith(incomplete)]


Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic setting; repeatable."),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]


@app.command()
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", help="Partitions. Default: the broker's num.partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Default: the broker's.")
    ] = None,
    config: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Skip topics that exist.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate only; change nothing.")
    ] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Create topics.

    [bold]Examples[/bold]

    \b
      millstream topic create orders --partitions 3
      millstream topic create audit -c retention.ms=-1 -c cleanup.policy=compact
    """
    settings = parse_assignments(config or [], "--config")
    cluster = Cluster.connect(bootstrap_server, client_config)
    if if_not_exists:
        known = cluster.metadata().topics
        topics = [topic for topic in topics if topic not in known]
    if not topics:
        return
    requested = [
        NewTopic(
            topic,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=settings,
        )
        for topic in topics
    ]
    futures = cluster.admin.create_topics(
        requested, validate_only=dry_run, request_timeout=REQUEST_TIMEOUT_S
    )
    wait_each(futures, "creating")
    for topic in topics:
        console().print(f"{'would create' if dry_run else 'created'} {topic}", markup=False)


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Include internal topics (__consumer_offsets).")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List topics.

    [bold]Examples[/bold]

    \b
      millstream topic list
      millstream topic list --json | jq -r '.[].topic'
    """
    topics = Cluster.connect(bootstrap_server, client_config).metadata().topics
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(p.replicas) for p in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(topics.items())
        if internal or not name.startswith("__")
    ]
    if as_json:
        print_json(rows)
        return
    columns = {"topic": "TOPIC", "partitions": "PARTITIONS", "replicas": "REPLICAS"}
    print_rows(rows, columns, empty="no topics yet; create one with `millstream topic create NAME`")


@app.command()
def describe(
    topics: TopicNames,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Include settings with default values.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show partitions, offsets and settings of topics; with a backlog policy, what groups have
    not read and whether the policy applies.

    [bold]Examples[/bold]

    \b
      millstream topic describe orders
      millstream topic describe orders --all-settings --json
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    descriptions = [describe_topic(cluster, topic, all_settings) for topic in topics]
    if as_json:
        print_json(descriptions)
        return
    for description in descriptions:
        show_topic(description)


def describe_topic(cluster: Cluster, topic: str, all_settings: bool) -> dict[str, Any]:
    """Everything `topic describe` shows about one topic, ready for JSON."""
    indexes = [(topic, index) for index in cluster.partitions_of(topic)]
    starts = cluster.start_offsets(indexes)
    ends = cluster.end_offsets(indexes)
    metadata = cluster.metadata().topics[topic]
    partitions = [
        {
            "partition": index,
            "leader": metadata.partitions[index].leader,
            "replicas": list(metadata.partitions[index].replicas),
            "in_sync": list(metadata.partitions[index].isrs),
            "start": starts[topic, index],
            "end": ends[topic, index],
            "records": ends[topic, index] - starts[topic, index],
        }
        for _, index in indexes
    ]
    every = cluster.settings_of(topic)
    settings = {
        name: entry.value
        for name, entry in sorted(every.items())
        if all_settings or entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    values = {name: entry.value for name, entry in every.items()}
    return {
        "topic": topic,
        "partitions": partitions,
        "settings": settings,
        "backlog": describe_backlog(cluster, topic, values, partitions),
    }


def show_topic(description: dict[str, Any]) -> None:
    columns = {
        "partition": "PARTITION",
        "leader": "LEADER",
        "replicas": "REPLICAS",
        "in_sync": "IN SYNC",
        "start": "START",
        "end": "END",
        "records": "RECORDS",
    }
    print_rows(description["partitions"], columns, empty="", title=description["topic"])
    if description["settings"]:
        print_pairs(description["settings"].items())
    if description["backlog"] is not None:
        show_backlog(description["backlog"])


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="New number of partitions; cannot decrease."),
    ] = None,
    config: Settings = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Reset to the default; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate only; change nothing.")
    ] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Change a topic's settings or add partitions.

    [bold]Examples[/bold]

    \b
      millstream topic alter orders --config retention.ms=86400000
      millstream topic alter orders --delete-config retention.ms
      millstream topic alter orders --partitions 6
    """
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in parse_assignments(config or [], "--config").items()
    ] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in delete_config or []
    ]
    if not changes and partitions is None:
        raise usage_error("nothing to change; give --config, --delete-config or --partitions")
    cluster = Cluster.connect(bootstrap_server, client_config)
    cluster.partitions_of(topic)
    options = {"validate_only": dry_run, "request_timeout": REQUEST_TIMEOUT_S}
    if changes:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        wait_each(cluster.admin.incremental_alter_configs([resource], **options), "altering")
    if partitions is not None:
        grown = [NewPartitions(topic, partitions)]
        wait_each(cluster.admin.create_partitions(grown, **options), "adding partitions")
    console().print(f"{'would alter' if dry_run else 'altered'} {topic}", markup=False)


@app.command()
def delete(
    topics: TopicNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Skip topics that do not exist.")
    ] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Delete topics with all their records. Asks first when it runs in a terminal.

    [bold]Examples[/bold]

    \b
      millstream topic delete orders
      millstream topic delete scratch-1 scratch-2 --yes
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    if if_exists:
        known = cluster.metadata().topics
        topics = [topic for topic in topics if topic in known]
    for topic in topics:
        cluster.partitions_of(topic)
    if not topics:
        return
    if not yes and sys.stdin.isatty():
        typer.confirm(f"delete {', '.join(topics)} with all records?", abort=True)
    futures = cluster.admin.delete_topics(topics, request_timeout=REQUEST_TIMEOUT_S)
    wait_each(futures, "deleting")
    for topic in topics:
        console().print(f"deleted {topic}", markup=False)


app.command(name="log-dirs")(log_dirs)
app.command()(reassign)
app.command()(elect)
