"""`millstream transaction`: open transactions of any Kafka cluster, and an end for those that hang.

A transaction hangs when a partition has it open and no coordinator will ever end it: the last
stable offset stops there, and read_committed consumers wait forever. Normally the
coordinator aborts an abandoned transaction after its timeout.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from millstream.admin.moments import show_moment, show_span
from millstream.admin.transactions import (
    TRANSACTION_TIMEOUT_MAX_MS,
    abort_in_partition,
    abort_transaction,
    check_hangs,
    describe_transaction,
    find_hanging,
    find_open,
    list_transactions,
)
from millstream.cli.cluster import Cluster
from millstream.cli.failures import usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_pairs, print_rows

app = typer.Typer(
    help="Show transactions, and abort hanging ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option("--state", help="Only in this state: Ongoing, CompleteCommit, ...")
    ] = None,
    hanging: Annotated[
        bool, typer.Option("--hanging", help="Only transactions that no coordinator will end.")
    ] = False,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="With --hanging: only on this broker.")
    ] = None,
    older_than: Annotated[
        int,
        typer.Option(
            "--older-than",
            metavar="MINUTES",
            min=0,
            help="With --hanging: idle for longer than this; at least transaction.max.timeout.ms.",
        ),
    ] = TRANSACTION_TIMEOUT_MAX_MS // 60_000,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List transactional ids and their states, or hanging transactions.

    [bold]Examples[/bold]

    \b
      millstream transaction list
      millstream transaction list --state Ongoing
      millstream transaction list --hanging
      millstream transaction list --hanging --topic orders --older-than 30
    """
    if topic is not None and not hanging:
        raise usage_error("--topic goes with --hanging")
    cluster = Cluster.connect(bootstrap_server, client_config)
    if hanging:
        list_hanging(cluster, topic, older_than, as_json)
        return
    states = [state] if state else []
    rows = [asdict(it) for it in list_transactions(cluster.protocol, states=states)]
    if as_json:
        print_json(rows)
        return
    columns = {
        "transactional_id": "TRANSACTIONAL ID",
        "state": "STATE",
        "producer_id": "PRODUCER ID",
        "coordinator": "COORDINATOR",
    }
    print_rows(rows, columns, empty="no transactions")


def list_hanging(cluster: Cluster, topic: str | None, older_than: int, as_json: bool) -> None:
    if topic is not None:
        cluster.partitions_of(topic)  # it must be there
    topics = [topic] if topic else sorted(cluster.metadata().topics)
    found = find_hanging(cluster.protocol, topics, older_than * 60_000)
    rows = [{name: it for name, it in asdict(row).items() if name != "is_hanging"} for row in found]
    if as_json:
        print_json(rows)
        return
    now_ms = round(time.time() * 1000)
    shown = [row | {"silent": show_span(now_ms - row["last_written_ms"])} for row in rows]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start_offset": "START OFFSET",
        "producer_id": "PRODUCER ID",
        "producer_epoch": "EPOCH",
        "transactional_id": "TRANSACTIONAL ID",
        "silent": "SILENT FOR",
    }
    print_rows(shown, columns, empty="no hanging transactions")
    if rows:
        note(
            "abort one with `millstream transaction abort --topic TOPIC --partition N "
            "--start-offset OFFSET`"
        )


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show a transaction: its state, producer, start time and partitions.

    [bold]Examples[/bold]

    \b
      millstream transaction describe billing-1
      millstream transaction describe billing-1 --json | jq .partitions
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    found = describe_transaction(cluster.protocol, transactional_id)
    facts: dict[str, Any] = asdict(found) | {
        "partitions": [f"{topic}[{index}]" for topic, index in found.partitions]
    }
    if as_json:
        print_json(facts)
        return
    facts["timeout_ms"] = show_span(facts["timeout_ms"])
    if found.started_ms is not None:
        ago = show_span(round(time.time() * 1000) - found.started_ms)
        facts["started_ms"] = f"{show_moment(found.started_ms)} ({ago} ago)"
    print_pairs((name.removesuffix("_ms").replace("_", " "), it) for name, it in facts.items())


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="[TRANSACTIONAL_ID]", help="Abort the open transaction of this id."),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="First offset of the transaction.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Abort a transaction. Asks first when it runs in a terminal.

    By id: fences the producer, as if a new one had started, and the coordinator aborts the open
    transaction. By partition and start offset, as shown by `list --hanging`: writes the abort
    marker to this partition only, without the coordinator. Use this only for hanging
    transactions; it tears a live one.

    [bold]Examples[/bold]

    \b
      millstream transaction abort billing-1
      millstream transaction abort --topic orders --partition 0 --start-offset 17
    """
    place = (topic, partition, start_offset)
    by_id = transactional_id is not None and place == (None, None, None)
    by_place = transactional_id is None and None not in place
    if not by_id and not by_place:
        raise usage_error(
            "give a transactional id, or --topic, --partition and --start-offset together"
        )
    cluster = Cluster.connect(bootstrap_server, client_config)
    if transactional_id is not None:
        describe_transaction(cluster.protocol, transactional_id)  # it must be there
        ask(f"shut out the producer of {transactional_id} and abort what it has open?", yes)
        was_open = abort_transaction(cluster.protocol, transactional_id)
        what = "aborted the transaction" if was_open else "nothing was open; shut out the producer"
        console().print(f"{what} of {transactional_id}", markup=False)
    elif topic is not None and partition is not None and start_offset is not None:
        cluster.partitions_of(topic)
        found = find_open(cluster.protocol, topic, partition, start_offset)
        check_hangs(cluster.protocol, found, silent_ms_min=0)
        where = f"{topic}[{partition}]"
        ask(f"abort the transaction of producer {found.producer_id} in {where}?", yes)
        abort_in_partition(cluster.protocol, found)
        what = f"aborted the transaction at offset {start_offset} of {where}"
        console().print(what, markup=False)


def ask(question: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True)
