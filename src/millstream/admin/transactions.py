"""Transactions of any Kafka cluster: open ones, what they hold back, and their end.

The last stable offset of a partition is where its oldest open transaction begins: read_committed
consumers wait there. A transaction hangs when a partition has it open and no coordinator will ever
end it. Normally the coordinator aborts an abandoned transaction after its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from millstream.admin.errors import InvalidArgument, NotFound, OperationFailed
from millstream.admin.numbers import decimal
from millstream.admin.offsets import LATEST, READ_COMMITTED, find_offsets, partitions_by_leader
from millstream.admin.settings import Resource, settings_of
from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
from millstream.partitions import TopicPartition

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
TRANSACTION_TIMEOUT_MAX_MS = 15 * 60_000  # by default
TIMEOUT_MAX_SETTING = "transaction.max.timeout.ms"
IDS_AT_ONCE = 200
PARTITIONS_AT_ONCE = 500


@dataclass(frozen=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True)
class TransactionDescription:
    """A transactional id and its last transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_written_ms: int
    transactional_id: str | None = None
    is_hanging: bool = False


@dataclass(frozen=True)
class HeldPartition:
    """A partition whose readers wait for the end of a transaction."""

    topic: str
    partition: int
    stable: int  # the last stable offset
    end: int
    transactions: tuple[OpenTransaction, ...] = ()  # the oldest first: it holds the offset

    @property
    def waiting(self) -> int:
        """Offsets that read_committed consumers do not get yet."""
        return self.end - self.stable


# Transactional ids


def list_transactions(
    cluster: Cluster, *, states: Sequence[str] = (), producer_ids: Sequence[int] = ()
) -> list[TransactionListing]:
    """The transactional ids of all coordinators that the user may see, by name."""
    filters = {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1,
    }
    rows = []
    for broker_id in cluster.broker_ids():
        answer = cluster.ask_broker(broker_id, "list_transactions", filters)
        what = f"broker {broker_id} does not list its transactions"
        check(answer.error_code, what, "list_transactions")
        if answer.unknown_state_filters:
            unknown = answer.unknown_state_filters[0]
            raise InvalidArgument(f"there is no state {unknown!r}; known are {', '.join(STATES)}")
        rows += [
            TransactionListing(
                str(it.transactional_id), it.transaction_state, int(it.producer_id), broker_id
            )
            for it in answer.transaction_states
        ]
    return sorted(rows, key=lambda row: row.transactional_id)


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """The coordinator's description; raises `NotFound` for an unknown id."""
    answer = cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        "describe_transactions",
        {"transactional_ids": [transactional_id]},
        error_of=lambda answer: answer.transaction_states[0].error_code,
    )
    found = answer.transaction_states[0]
    if found.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        known = [row.transactional_id for row in list_transactions(cluster)]
        close = get_close_matches(transactional_id, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise NotFound(f"there is no transactional id {transactional_id!r}{hint}")
    check(found.error_code, f"{transactional_id!r} cannot be described", "describe_transactions")
    return _description(found, cluster.coordinator(CoordinatorKind.TRANSACTION, transactional_id))


def describe_transactions(
    cluster: Cluster, listed: Iterable[TransactionListing]
) -> list[TransactionDescription]:
    """Many at once; those that have ended or moved meanwhile are left out."""
    by_broker: dict[int, list[str]] = {}
    for row in listed:
        by_broker.setdefault(row.coordinator, []).append(row.transactional_id)
    found = []
    for broker_id, ids in by_broker.items():
        for first in range(0, len(ids), IDS_AT_ONCE):
            asked = {"transactional_ids": ids[first : first + IDS_AT_ONCE]}
            answer = cluster.ask_broker(broker_id, "describe_transactions", asked)
            found += [
                _description(it, broker_id)
                for it in answer.transaction_states
                if it.error_code is ErrorCode.NONE
            ]
    return found


def _description(found: Any, coordinator: int) -> TransactionDescription:
    started = found.transaction_start_time
    started_ms = 0 if started is None else round(started.timestamp() * 1000)
    places = sorted((str(it.topic), int(p)) for it in found.topics for p in it.partitions)
    return TransactionDescription(
        str(found.transactional_id),
        found.transaction_state,
        int(found.producer_id),
        int(found.producer_epoch),
        coordinator,
        round(found.transaction_timeout.total_seconds() * 1000),
        started_ms if started_ms > 0 else None,
        tuple(places),
    )


# Partitions


def held_partitions(cluster: Cluster, places: Iterable[TopicPartition]) -> list[HeldPartition]:
    """Those of the partitions whose last stable offset is not at their end."""
    wanted = dict.fromkeys(places, LATEST)
    stable = find_offsets(cluster, wanted, isolation_level=READ_COMMITTED).found
    ends = find_offsets(cluster, wanted).found
    return [
        HeldPartition(*place, stable[place], ends[place])
        for place in sorted(wanted)
        if place in stable and place in ends and stable[place] < ends[place]
    ]


def with_transactions(
    cluster: Cluster, held: Iterable[HeldPartition], *, now_ms: int | None = None
) -> list[HeldPartition]:
    """The partitions with the transactions that hold them back, and what became of those."""
    held = list(held)
    places = [(it.topic, it.partition) for it in held]
    found = named(cluster, open_transactions(cluster, places), now_ms=now_ms)
    by_place: dict[TopicPartition, list[OpenTransaction]] = {}
    for it in found:
        by_place.setdefault((it.topic, it.partition), []).append(it)
    return [
        replace(
            it,
            transactions=tuple(
                sorted(by_place.get((it.topic, it.partition), ()), key=lambda one: one.start_offset)
            ),
        )
        for it in held
    ]


def open_transactions(
    cluster: Cluster, places: Iterable[TopicPartition], *, strict: bool = False
) -> list[OpenTransaction]:
    """The transactions that are open in the partitions, one request per leader.

    Partitions that do not answer, or whose producers the user may not see, are left out, unless
    `strict`.
    """
    by_leader, missing = partitions_by_leader(cluster, places)
    if strict:
        for (topic, index), code in missing.items():
            check(code, f"{topic}[{index}]", "describe_producers")
    found = []
    for leader, led in by_leader.items():
        for first in range(0, len(led), PARTITIONS_AT_ONCE):
            topics: dict[str, list[int]] = {}
            for topic, index in led[first : first + PARTITIONS_AT_ONCE]:
                topics.setdefault(topic, []).append(index)
            asked = [{"name": name, "partition_indexes": it} for name, it in topics.items()]
            answer = cluster.ask_broker(leader, "describe_producers", {"topics": asked})
            found += _open_in(answer, strict)
    return found


def _open_in(answer: Any, strict: bool) -> list[OpenTransaction]:
    found = []
    for topic in answer.topics:
        for partition in topic.partitions:
            if strict:
                what = partition.error_message or f"{topic.name}[{partition.partition_index}]"
                check(partition.error_code, what, "describe_producers")
            found += [
                OpenTransaction(
                    str(topic.name),
                    int(partition.partition_index),
                    int(it.current_txn_start_offset),
                    int(it.producer_id),
                    int(it.producer_epoch),
                    int(it.coordinator_epoch),
                    int(it.last_timestamp),
                )
                for it in partition.active_producers
                if it.current_txn_start_offset >= 0
            ]
    return found


def named(
    cluster: Cluster,
    transactions: Sequence[OpenTransaction],
    *,
    silent_ms_min: int = TRANSACTION_TIMEOUT_MAX_MS,
    now_ms: int | None = None,
) -> list[OpenTransaction]:
    """With their transactional ids, and whether they hang: silent for so long, while no
    coordinator is about to end them in this partition. Coordinators do not tell of transactional
    ids that the user may not describe: such transactions seem to hang."""
    if not transactions:
        return []
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    producer_ids = sorted({it.producer_id for it in transactions})
    listed = list_transactions(cluster, producer_ids=producer_ids)
    described = {it.producer_id: it for it in describe_transactions(cluster, listed)}
    found = []
    for it in transactions:
        known = described.get(it.producer_id)
        # The coordinator still has to write a marker to the partitions that it names.
        is_known = known is not None and (it.topic, it.partition) in known.partitions
        is_silent = now_ms - it.last_written_ms >= silent_ms_min
        found.append(
            replace(
                it,
                transactional_id=known.transactional_id if known else None,
                is_hanging=not is_known and is_silent,
            )
        )
    return found


def find_hanging(
    cluster: Cluster, topics: Iterable[str], silent_ms_min: int
) -> list[OpenTransaction]:
    """Open transactions of the topics that no coordinator is about to end."""
    known = cluster.retrying(lambda: cluster.refresh(None))
    places = [
        (name, it.number) for name in topics if name in known for it in known[name].partitions
    ]
    found = open_transactions(cluster, places, strict=True)
    return [it for it in named(cluster, found, silent_ms_min=silent_ms_min) if it.is_hanging]


# Ends


def abort_transaction(cluster: Cluster, transactional_id: str) -> bool:
    """Fence the producer, as if a new one had started, so that the coordinator aborts what it has
    open. Returns whether anything was open."""
    found = describe_transaction(cluster, transactional_id)
    answer = cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        "init_producer_id",
        {
            "transactional_id": transactional_id,
            "transaction_timeout": found.timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )
    check(answer.error_code, f"{transactional_id!r} cannot be aborted", "init_producer_id")
    return found.state == "Ongoing"


def find_open(cluster: Cluster, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    """The open transaction that begins there; raises `OperationFailed` if there is none."""
    place = f"{topic}[{partition}]"
    here = open_transactions(cluster, [(topic, partition)], strict=True)
    for it in here:
        if it.start_offset == start_offset:
            return it
    begins = ", ".join(str(it.start_offset) for it in here)
    known = f"; open ones begin at {begins}" if here else "; none is open there"
    raise OperationFailed(f"no transaction of {place} begins at offset {start_offset}{known}")


def check_hangs(
    cluster: Cluster, found: OpenTransaction, *, silent_ms_min: int | None = None
) -> None:
    """Raises `OperationFailed` for a transaction that its coordinator may still end: an abort in
    one partition would tear it apart. Silent for how long: by default for as long as the brokers
    let a transaction be open."""
    place = f"{found.topic}[{found.partition}]"
    silent_ms_min = longest_timeout_ms(cluster) if silent_ms_min is None else silent_ms_min
    [it] = named(cluster, [found], silent_ms_min=silent_ms_min)
    if it.is_hanging:
        return
    if it.transactional_id is not None:
        raise OperationFailed(
            f"the transaction in {place} does not hang: its coordinator knows it; abort it by its "
            f"transactional id, {it.transactional_id!r}"
        )
    raise OperationFailed(
        f"the transaction in {place} does not hang yet: it has written within the last "
        f"{silent_ms_min // 1000} seconds ({TIMEOUT_MAX_SETTING})"
    )


def longest_timeout_ms(cluster: Cluster) -> int:
    """How long a transaction may be open, or Kafka's default if the user may not know."""
    try:
        settings = settings_of(cluster, Resource.BROKER, str(cluster.broker_ids()[0]))
    except ApiError:
        return TRANSACTION_TIMEOUT_MAX_MS
    given = [decimal(it.value) for it in settings if it.name == TIMEOUT_MAX_SETTING]
    return next((it for it in given if it is not None), TRANSACTION_TIMEOUT_MAX_MS)


def abort_in_partition(cluster: Cluster, found: OpenTransaction) -> None:
    """Write the abort marker to this partition alone, without the coordinator: only for hanging
    transactions."""
    marker = {
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator_epoch": max(found.coordinator_epoch, 0),
        "transaction_result": False,
        "topics": [{"name": found.topic, "partition_indexes": [found.partition]}],
    }
    answer = cluster.ask_leader(
        found.topic,
        found.partition,
        "write_txn_markers",
        {"markers": [marker]},
        error_of=lambda answer: answer.markers[0].topics[0].partitions[0].error_code,
    )
    code = answer.markers[0].topics[0].partitions[0].error_code
    place = f"{found.topic}[{found.partition}]"
    check(code, f"the transaction in {place} cannot be aborted", "write_txn_markers")
