"""`millstream transaction`: open transactions of any Kafka cluster, and an end for those that hang.

A transaction hangs when a partition has it open and no coordinator will ever end it: the last
stable offset stops there, and read_committed consumers wait forever. Normally the
coordinator aborts an abandoned transaction after its timeout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from millstream.admin.moments import show_moment, show_span
from millstream.cli.cluster import Cluster, suggestion
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_pairs, print_rows
from millstream.client.cluster import CoordinatorKind, check
from millstream.errors import ErrorCode

app = typer.Typer(
    help="Show transactions, and abort hanging ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

TRANSACTION_TIMEOUT_MAX_MINUTES = 15  # transaction.max.timeout.ms by default


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int


@app.command("list")
def list_transactions(
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
    ] = TRANSACTION_TIMEOUT_MAX_MINUTES,
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
    rows = sorted(listed(cluster, state=state), key=lambda row: str(row["transactional_id"]))
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
    found = list(find_hanging(cluster, topic, older_than * 60_000))
    rows = [it._asdict() | {"transactional_id": name} for it, name in found]
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


def listed(
    cluster: Cluster, *, state: str | None = None, producer_ids: tuple[int, ...] = ()
) -> Iterator[dict[str, Any]]:
    """The transactional ids of all coordinators, optionally only those of some producers."""
    filters = {
        "state_filters": [state] if state else [],
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1,
    }
    for broker_id in cluster.protocol.broker_ids():
        answer = cluster.protocol.ask_broker(broker_id, "list_transactions", filters)
        check(
            answer.error_code,
            f"broker {broker_id} does not list its transactions",
            "list_transactions",
        )
        if answer.unknown_state_filters:
            raise usage_error(
                f"there is no state {state!r}; known are Empty, Ongoing, PrepareCommit, "
                "PrepareAbort, CompleteCommit, CompleteAbort"
            )
        for found in answer.transaction_states:
            yield {
                "transactional_id": found.transactional_id,
                "state": found.transaction_state,
                "producer_id": int(found.producer_id),
                "coordinator": broker_id,
            }


def find_hanging(
    cluster: Cluster, topic: str | None, silent_ms_min: int
) -> Iterator[tuple[OpenTransaction, str | None]]:
    """Open transactions that no coordinator is about to end, with their ids where known."""
    now_ms = round(time.time() * 1000)
    topics = [topic] if topic else sorted(cluster.metadata().topics)
    places = [(name, index) for name in topics for index in cluster.partitions_of(name)]
    open_here = [
        it
        for it in open_transactions(cluster, places)
        if now_ms - it.last_written_ms >= silent_ms_min
    ]
    producer_ids = tuple({it.producer_id for it in open_here})
    if not producer_ids:
        return
    names = {
        row["producer_id"]: row["transactional_id"]
        for row in listed(cluster, producer_ids=producer_ids)
    }
    writing: dict[str, set[tuple[str, int]]] = {}
    for transaction in open_here:
        name = names.get(transaction.producer_id)
        if name is not None and name not in writing:
            writing[name] = partitions_of(described(cluster, name))
        # The coordinator still has to write a marker to the partitions that it names.
        if name is None or (transaction.topic, transaction.partition) not in writing[name]:
            yield transaction, name


def open_transactions(cluster: Cluster, places: list[tuple[str, int]]) -> Iterator[OpenTransaction]:
    for topic, index in places:
        question = {"topics": [{"name": topic, "partition_indexes": [index]}]}
        answer = cluster.protocol.ask_leader(
            topic,
            index,
            "describe_producers",
            question,
            error_of=lambda answer: answer.topics[0].partitions[0].error_code,
        )
        partition = answer.topics[0].partitions[0]
        check(
            partition.error_code,
            partition.error_message or f"{topic}[{index}]",
            "describe_producers",
        )
        for producer in partition.active_producers:
            if producer.current_txn_start_offset >= 0:
                yield OpenTransaction(
                    topic,
                    index,
                    int(producer.current_txn_start_offset),
                    int(producer.producer_id),
                    int(producer.producer_epoch),
                    int(producer.coordinator_epoch),
                    int(producer.last_timestamp),
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
    found = described(cluster, transactional_id)
    started_ms = round(found.transaction_start_time.timestamp() * 1000)
    partitions = [f"{topic}[{index}]" for topic, index in sorted(partitions_of(found))]
    facts: dict[str, Any] = {
        "transactional_id": transactional_id,
        "state": found.transaction_state,
        "producer_id": int(found.producer_id),
        "producer_epoch": int(found.producer_epoch),
        "coordinator": cluster.protocol.coordinator(CoordinatorKind.TRANSACTION, transactional_id),
        "timeout_ms": round(found.transaction_timeout.total_seconds() * 1000),
        "started_ms": started_ms if started_ms > 0 else None,
        "partitions": partitions,
    }
    if as_json:
        print_json(facts)
        return
    facts["timeout_ms"] = show_span(facts["timeout_ms"])
    if started_ms > 0:
        ago = show_span(round(time.time() * 1000) - started_ms)
        facts["started_ms"] = f"{show_moment(started_ms)} ({ago} ago)"
    print_pairs((name.removesuffix("_ms").replace("_", " "), it) for name, it in facts.items())


def described(cluster: Cluster, transactional_id: str) -> Any:
    """The coordinator's description; raises `CommandFailed` for an unknown id."""
    answer = cluster.protocol.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        "describe_transactions",
        {"transactional_ids": [transactional_id]},
        error_of=lambda answer: answer.transaction_states[0].error_code,
    )
    found = answer.transaction_states[0]
    if found.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        known = [row["transactional_id"] for row in listed(cluster)]
        raise CommandFailed(
            f"there is no transactional id {transactional_id!r}"
            f"{suggestion(transactional_id, known)}"
        )
    check(found.error_code, f"{transactional_id!r} cannot be described", "describe_transactions")
    return found


def partitions_of(description: Any) -> set[tuple[str, int]]:
    return {(it.topic, int(index)) for it in description.topics for index in it.partitions}


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
        abort_by_id(cluster, transactional_id, yes)
    elif topic is not None and partition is not None and start_offset is not None:
        abort_in_partition(cluster, topic, partition, start_offset, yes)


def abort_by_id(cluster: Cluster, transactional_id: str, yes: bool) -> None:
    found = described(cluster, transactional_id)
    ask(f"shut out the producer of {transactional_id} and abort what it has open?", yes)
    answer = cluster.protocol.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        "init_producer_id",
        {
            "transactional_id": transactional_id,
            "transaction_timeout": found.transaction_timeout,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )
    check(answer.error_code, f"{transactional_id!r} cannot be aborted", "init_producer_id")
    was_open = found.transaction_state == "Ongoing"
    what = "aborted the transaction" if was_open else "nothing was open; shut out the producer"
    console().print(f"{what} of {transactional_id}", markup=False)


def abort_in_partition(
    cluster: Cluster, topic: str, partition: int, start_offset: int, yes: bool
) -> None:
    cluster.partitions_of(topic)
    place = f"{topic}[{partition}]"
    here = list(open_transactions(cluster, [(topic, partition)]))
    found = next((it for it in here if it.start_offset == start_offset), None)
    if found is None:
        begins = ", ".join(str(it.start_offset) for it in here)
        known = f"; open ones begin at {begins}" if here else "; none is open there"
        raise CommandFailed(f"no transaction of {place} begins at offset {start_offset}{known}")
    ask(f"abort the transaction of producer {found.producer_id} in {place}?", yes)
    marker = {
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator_epoch": max(found.coordinator_epoch, 0),
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
    }
    answer = cluster.protocol.ask_leader(
        topic,
        partition,
        "write_txn_markers",
        {"markers": [marker]},
        error_of=lambda answer: answer.markers[0].topics[0].partitions[0].error_code,
    )
    code = answer.markers[0].topics[0].partitions[0].error_code
    check(code, f"the transaction in {place} cannot be aborted", "write_txn_markers")
    console().print(f"aborted the transaction at offset {start_offset} of {place}", markup=False)


def ask(question: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True)
