"""Transactions, request by request, for callers that begin and end them in different processes.

All of it is protocol 1 (KIP-98), also on clusters that offer protocol 2: there every end bumps the
producer's epoch, and the answer with the new epoch may be lost with its process. In protocol 1 a
transaction is identified by `Transaction`, which does not change while it is open, and any process
that has it may end it: `end_transaction` can be repeated, by any process, until it is answered.

A process that ends another one's transaction must not look like the writer: use different client
ids (docs/decisions/0009-late-end-of-transaction.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition

ADD_PARTITIONS_VERSION_MAX = 3  # from 4 on it is for brokers
ADD_OFFSETS_VERSION_MAX = 3
OFFSET_COMMIT_VERSION_MAX = 4  # 5 is protocol 2's
END_VERSION_MAX = 4  # 5 is protocol 2's

# Answers to a superseded producer.
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)

# While markers are being written; that takes milliseconds.
CONCURRENT_BACKOFF_SECONDS = 0.001
CONCURRENT_BACKOFF_SECONDS_MAX = 0.05


class Transaction(NamedTuple):
    """Everything needed to write in a transaction and to end it."""

    transactional_id: str
    producer_id: int
    epoch: int


class OpenTransaction(NamedTuple):
    """A transaction as a broker lists it."""

    transactional_id: str
    producer_id: int
    state: str


def begin_transaction(
    cluster: Cluster,
    transactional_id: str,
    timeout_ms: int,
    *,
    after: Transaction | None = None,
) -> Transaction:
    """Become the producer of this id: fence the previous one and abort its open transaction.

    With `after`, only if no other producer has taken over since: otherwise PRODUCER_FENCED.
    """
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": -1 if after is None else after.producer_id,
        "producer_epoch": -1 if after is None else after.epoch,
    }
    answer = _ask(cluster, transactional_id, "init_producer_id", fields, version_max=4)
    if answer.error_code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        raise ApiError(
            answer.error_code,
            f"{timeout_ms} ms exceeds transaction.max.timeout.ms of the brokers: set a smaller "
            "transaction.timeout.ms, or raise the limit",
        )
    check(answer.error_code, f"beginning transactions of {transactional_id}", "init_producer_id")
    return Transaction(transactional_id, int(answer.producer_id), int(answer.producer_epoch))


def add_partitions(
    cluster: Cluster, transaction: Transaction, partitions: Iterable[TopicPartition]
) -> None:
    """Must be answered before the first record of the transaction is sent to a partition."""
    partitions = list(partitions)
    answer = _ask(
        cluster,
        transaction.transactional_id,
        "add_partitions_to_txn",
        _partitions_to_add(transaction, partitions),
        version_max=ADD_PARTITIONS_VERSION_MAX,
        error_of=_worst_of_partitions,
    )
    check(
        _worst_of_partitions(answer),
        f"adding {', '.join(sorted({topic for topic, _ in partitions}))} to a transaction of "
        f"{transaction.transactional_id}",
        "add_partitions_to_txn",
    )


def _partitions_to_add(
    transaction: Transaction, partitions: Iterable[TopicPartition]
) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return {
        "v3_and_below_transactional_id": transaction.transactional_id,
        "v3_and_below_producer_id": transaction.producer_id,
        "v3_and_below_producer_epoch": transaction.epoch,
        "v3_and_below_topics": [
            {"name": name, "partitions": numbers} for name, numbers in topics.items()
        ],
    }


def _worst_of_partitions(answer: Any) -> ErrorCode:
    """The most important error: a permanent one rather than a retriable one."""
    codes = [
        result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
        if result.partition_error_code is not ErrorCode.NONE
    ]
    # OPERATION_NOT_ATTEMPTED only means that another partition failed.
    telling = [code for code in codes if code is not ErrorCode.OPERATION_NOT_ATTEMPTED] or codes
    return min(telling, key=lambda code: code.retriable, default=ErrorCode.NONE)


def add_group(cluster: Cluster, transaction: Transaction, group_id: str) -> None:
    """Must be answered before `commit_offsets`."""
    answer = _ask(
        cluster,
        transaction.transactional_id,
        "add_offsets_to_txn",
        {**_identity(transaction), "group_id": group_id},
        version_max=ADD_OFFSETS_VERSION_MAX,
    )
    check(
        answer.error_code,
        f"adding offsets of group {group_id} to a transaction",
        "add_offsets_to_txn",
    )


def add_at_once(
    cluster: Cluster,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    group_id: str,
) -> None:
    """`add_partitions` and `add_group`, with both requests in flight at once."""
    partitions = list(partitions)
    adding = _Request(
        transaction.transactional_id,
        "add_partitions_to_txn",
        ADD_PARTITIONS_VERSION_MAX,
        _partitions_to_add(transaction, partitions),
    )
    adding_group = _Request(
        transaction.transactional_id,
        "add_offsets_to_txn",
        ADD_OFFSETS_VERSION_MAX,
        {**_identity(transaction), "group_id": group_id},
    )
    added, added_group = cluster.retrying(lambda: _ask_at_once(cluster, [adding, adding_group]))
    # Repeat refused requests individually: retry, or raise the error.
    if _worst_of_partitions(added) is not ErrorCode.NONE:
        add_partitions(cluster, transaction, partitions)
    if added_group.error_code is not ErrorCode.NONE:
        add_group(cluster, transaction, group_id)


def commit_offsets(
    cluster: Cluster,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> None:
    """Commit a group's offsets with the transaction. The group must have no members."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_metadata": metadata.get((topic, partition), ""),
            }
        )
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group_id,
        "txn_offset_commit",
        {
            **_identity(transaction),
            "group_id": group_id,
            "topics": [{"name": name, "partitions": its} for name, its in topics.items()],
        },
        version=_version(
            cluster,
            CoordinatorKind.GROUP,
            group_id,
            "txn_offset_commit",
            OFFSET_COMMIT_VERSION_MAX,
        ),
        error_of=_first_offset_error,
    )
    check(
        _first_offset_error(answer), f"committing offsets of group {group_id}", "txn_offset_commit"
    )


def _first_offset_error(answer: Any) -> ErrorCode:
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code is not ErrorCode.NONE:
                code: ErrorCode = partition.error_code
                return code
    return ErrorCode.NONE


def end_transaction(
    cluster: Cluster, transactional_id: str, producer_id: int, epoch: int, commit: bool
) -> None:
    """Commit or abort a transaction of any process; can be repeated.

    Raises INVALID_PRODUCER_EPOCH or PRODUCER_FENCED if the id has a newer producer or the
    transaction timed out; INVALID_TXN_STATE if it ended the other way, or never began.
    """
    transaction = Transaction(transactional_id, producer_id, epoch)
    answer = _ask(
        cluster,
        transactional_id,
        "end_txn",
        {**_identity(transaction), "committed": commit},
        version_max=END_VERSION_MAX,
    )
    check(
        answer.error_code, f"{'committing' if commit else 'aborting'} {transactional_id}", "end_txn"
    )


def end_transactions(
    cluster: Cluster, transactions: Sequence[Transaction], commit: bool
) -> list[ErrorCode]:
    """`end_transaction` for many, with all requests in flight at once; returns each answer."""
    codes = cluster.retrying(lambda: _end_at_once(cluster, transactions, commit))
    for number, transaction in enumerate(transactions):
        if codes[number].retriable:
            try:
                end_transaction(cluster, *transaction, commit=commit)
                codes[number] = ErrorCode.NONE
            except ApiError as error:
                codes[number] = error.code
    return codes


def _end_at_once(
    cluster: Cluster, transactions: Sequence[Transaction], commit: bool
) -> list[ErrorCode]:
    ends = [
        _Request(
            transaction.transactional_id,
            "end_txn",
            END_VERSION_MAX,
            {**_identity(transaction), "committed": commit},
        )
        for transaction in transactions
    ]
    return [answer.error_code for answer in _ask_at_once(cluster, ends)]


class _Request(NamedTuple):
    """For the coordinator of a transactional id."""

    transactional_id: str
    api: str
    version_max: int
    fields: Mapping[str, Any]


def _ask_at_once(cluster: Cluster, requests: Sequence[_Request]) -> list[Any]:
    """Each answer. Requests are in flight at once; those of one broker keep their order."""
    answers: list[Any] = [None] * len(requests)
    by_coordinator: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        broker_id = cluster.coordinator(CoordinatorKind.TRANSACTION, request.transactional_id)
        by_coordinator.setdefault(broker_id, []).append(number)
    for broker_id, numbers in by_coordinator.items():
        connection = cluster.connection(broker_id)
        for number in numbers:
            request = requests[number]
            version = connection.version_for(request.api, newest=request.version_max)
            connection.send_fields(request.api, version, request.fields)
    for broker_id, numbers in by_coordinator.items():
        for number in numbers:
            answers[number] = cluster.connection(broker_id).receive()
    return answers


def open_transactions(
    cluster: Cluster, prefix: str, *, seconds_old_max: float = 0.0
) -> list[OpenTransaction]:
    """Open transactions whose transactional id starts with `prefix`, on all brokers.

    `seconds_old_max`: the maximum age of the cached list of brokers.
    """

    def listed() -> list[OpenTransaction]:
        brokers = cluster.broker_ids(seconds_old_max=seconds_old_max)
        return [found for broker_id in brokers for found in _open_on(cluster, broker_id, prefix)]

    return cluster.retrying(listed)


def _open_on(cluster: Cluster, broker_id: int, prefix: str) -> list[OpenTransaction]:
    fields = {
        "state_filters": ["Ongoing"],
        "producer_id_filters": [],
        "transactional_id_pattern": f"{re.escape(prefix)}.*",
    }
    answer = cluster.connection(broker_id).call("list_transactions", fields)
    check(answer.error_code, f"listing the transactions of {prefix}", "list_transactions")
    return [
        OpenTransaction(state.transactional_id, int(state.producer_id), state.transaction_state)
        for state in answer.transaction_states
        if state.transactional_id.startswith(prefix)  # older brokers do not support patterns
    ]


def _identity(transaction: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
    }


def _ask(
    cluster: Cluster,
    transactional_id: str,
    api: str,
    fields: Mapping[str, Any],
    *,
    version_max: int,
    error_of: Callable[[Any], ErrorCode] | None = None,
) -> Any:
    """Ask the transaction's coordinator; retry quickly while an end is in progress there."""
    find_error = error_of or (lambda answer: answer.error_code)

    def other_than_concurrent(answer: Any) -> ErrorCode:
        code: ErrorCode = find_error(answer)
        return ErrorCode.NONE if code is ErrorCode.CONCURRENT_TRANSACTIONS else code

    deadline = time.monotonic() + cluster.timeout_seconds
    backoff = CONCURRENT_BACKOFF_SECONDS
    while True:
        version = _version(cluster, CoordinatorKind.TRANSACTION, transactional_id, api, version_max)
        answer = cluster.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            api,
            fields,
            version=version,
            error_of=other_than_concurrent,
        )
        if find_error(answer) is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return answer
        if time.monotonic() > deadline:
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"the last transaction of {transactional_id} is still being ended",
            )
        # The protocol has no notification that the coordinator has written all markers.
        time.sleep(backoff)
        backoff = min(2 * backoff, CONCURRENT_BACKOFF_SECONDS_MAX)


def _version(cluster: Cluster, kind: CoordinatorKind, key: str, api: str, version_max: int) -> int:
    return cluster.retrying(
        lambda: cluster.connection(cluster.coordinator(kind, key)).version_for(
            api, newest=version_max
        )
    )
