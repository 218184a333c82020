"""`/transactions`: open transactions, their age, what holds the last stable offsets; abort."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.transactions import (
    OPEN_STATES,
    HeldPartition,
    TransactionDescription,
    TransactionListing,
    abort_in_partition,
    abort_transaction,
    check_hangs,
    describe_transaction,
    describe_transactions,
    find_open,
    held_partitions,
    list_transactions,
    with_transactions,
)
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.models import dataclass
from millstream.partitions import TopicPartition

LIVE_SECONDS = 3.0
SCAN_MAX = 2000  # partitions that are looked at without being asked
DESCRIBED_MAX = 500


@dataclass(frozen=True)
class TransactionRow:
    """A transactional id in the list; the rest is known of open transactions."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    age_ms: int | None = None
    left_ms: int | None = None  # until its coordinator aborts it
    partitions: int | None = None
    waiting: int | None = None  # records that others wait for because of it


@dataclass(frozen=True)
class Transactions:
    transactions: Listed[TransactionRow]
    open: int
    oldest_ms: int | None
    held: tuple[HeldPartition, ...]
    waiting: int
    hanging: int
    scanned: int  # partitions
    is_partial: bool  # only partitions of open transactions were looked at


@dataclass(frozen=True)
class TransactionPage:
    """One transactional id."""

    description: TransactionDescription
    age_ms: int | None
    left_ms: int | None
    held: tuple[HeldPartition, ...]
    abort_command: str


def all_partitions(cluster: Cluster) -> list[TopicPartition]:
    topics = cluster.retrying(lambda: cluster.refresh(None))
    return [(name, it.number) for name, info in topics.items() for it in info.partitions]


def load_list(cluster: Cluster, wanted: Wanted, scan: bool) -> Transactions:
    now_ms = round(time.time() * 1000)
    known = list_transactions(cluster)
    busy = [it for it in known if it.state in OPEN_STATES]
    described = {
        it.transactional_id: it for it in describe_transactions(cluster, busy[:DESCRIBED_MAX])
    }
    places = all_partitions(cluster)
    is_partial = len(places) > SCAN_MAX and not scan
    if is_partial:
        places = sorted({place for it in described.values() for place in it.partitions})
    held = with_transactions(cluster, held_partitions(cluster, places), now_ms=now_ms)
    rows = [_row(it, described.get(it.transactional_id), held, now_ms) for it in known]
    found = listed(
        rows,
        wanted,
        text=lambda row: f"{row.transactional_id} {row.state} {row.producer_id}",
        keys={
            "id": lambda row: row.transactional_id,
            "state": lambda row: (row.state not in OPEN_STATES, row.state),
            "age": lambda row: row.age_ms,
            "waiting": lambda row: row.waiting,
        },
        default="-age",
    )
    return Transactions(
        found,
        len(busy),
        max((it.age_ms for it in rows if it.age_ms is not None), default=None),
        tuple(sorted(held, key=lambda it: -it.waiting)),
        sum(it.waiting for it in held),
        sum(1 for it in held for one in it.transactions if one.is_hanging),
        len(places),
        is_partial,
    )


def _row(
    it: TransactionListing,
    description: TransactionDescription | None,
    held: Sequence[HeldPartition],
    now_ms: int,
) -> TransactionRow:
    if description is None:
        return TransactionRow(it.transactional_id, it.state, it.producer_id, it.coordinator)
    age_ms, left_ms = times(description, now_ms)
    waiting = sum(
        partition.waiting
        for partition in held
        if partition.transactions
        and partition.transactions[0].transactional_id == it.transactional_id
    )
    return TransactionRow(
        it.transactional_id,
        description.state,
        it.producer_id,
        it.coordinator,
        age_ms,
        left_ms,
        len(description.partitions),
        waiting,
    )


def times(description: TransactionDescription, now_ms: int) -> tuple[int | None, int | None]:
    """The age of an open transaction, and the time until its coordinator aborts it."""
    if description.started_ms is None or not description.is_open:
        return None, None
    age_ms = max(0, now_ms - description.started_ms)
    left_ms = max(0, description.timeout_ms - age_ms) if description.state == "Ongoing" else None
    return age_ms, left_ms


async def show(request: Request) -> Response:
    wanted, scan = Wanted.of(request.query_params), request.query_params.get("scan") == "1"
    return await page(
        request,
        "transactions.html",
        lambda cluster: load_list(cluster, wanted, scan),
        live={} if scan else {"summary": LIVE_SECONDS, "held": LIVE_SECONDS, "rows": LIVE_SECONDS},
    )


# One transaction


def load_one(cluster: Cluster, transactional_id: str, request: Request) -> TransactionPage:
    found = describe_transaction(cluster, transactional_id)
    now_ms = round(time.time() * 1000)
    held = with_transactions(cluster, held_partitions(cluster, found.partitions), now_ms=now_ms)
    return TransactionPage(
        found,
        *times(found, now_ms),
        tuple(held),
        command(request, "transaction", "abort", transactional_id, "--yes"),
    )


async def one(request: Request) -> Response:
    transactional_id = request.path_params["name"]
    return await page(
        request,
        "transaction.html",
        lambda cluster: load_one(cluster, transactional_id, request),
        live={"facts": LIVE_SECONDS, "partitions": LIVE_SECONDS},
    )


async def abort(request: Request, form: Form) -> Response:
    transactional_id = request.path_params["name"]
    check_typed(form, transactional_id)
    return await act(
        request,
        abort_transaction,
        transactional_id,
        done=lambda was_open: (
            f"The transaction of {transactional_id} is aborted, and its producer shut out."
            if was_open
            else f"Nothing was open. The producer of {transactional_id} is shut out."
        ),
        command=command(request, "transaction", "abort", transactional_id, "--yes"),
        back=link("transactions", transactional_id),
    )


def end_in_partition(cluster: Cluster, topic: str, partition: int, start_offset: int) -> None:
    found = find_open(cluster, topic, partition, start_offset)
    check_hangs(cluster, found)
    abort_in_partition(cluster, found)


async def abort_hanging(request: Request, form: Form) -> Response:
    topic = form.need("topic", "the topic")
    partition = form.integer("partition", "the partition")
    start_offset = form.integer("start_offset", "the start offset")
    check_typed(form, f"{topic}[{partition}]")
    return await act(
        request,
        end_in_partition,
        topic,
        partition,
        start_offset,
        done=f"The transaction at offset {start_offset} of {topic}[{partition}] is aborted.",
        command=command(request, *hanging_arguments(topic, partition, start_offset)),
        back=link("transactions"),
    )


def hanging_arguments(topic: str, partition: int, start_offset: int) -> list[str]:
    return [
        *("transaction", "abort", "--topic", topic, "--partition", str(partition)),
        *("--start-offset", str(start_offset), "--yes"),
    ]


async def ask_abort_hanging(request: Request) -> Response:
    """A page to confirm the end of a hanging transaction."""
    query = Form(list(request.query_params.multi_items()))
    topic = query.need("topic", "the topic")
    partition = query.integer("partition", "the partition")
    start_offset = query.integer("start_offset", "the start offset")

    def load(cluster: Cluster) -> HangingPage:
        check_hangs(cluster, find_open(cluster, topic, partition, start_offset))
        held = with_transactions(cluster, held_partitions(cluster, [(topic, partition)]))
        arguments = hanging_arguments(topic, partition, start_offset)
        return HangingPage(
            topic, partition, start_offset, tuple(held), command(request, *arguments)
        )

    return await page(request, "transaction_hanging.html", load)


@dataclass(frozen=True)
class HangingPage:
    topic: str
    partition: int
    start_offset: int
    held: tuple[HeldPartition, ...]
    command: str


ROUTES = [
    Route("/transactions", show),
    Route("/transactions-in-partition", ask_abort_hanging),
    post("/transactions-in-partition", abort_hanging),
    Route("/transactions/{name:name}", one),
    post("/transactions/{name:name}/abort", abort),
]
