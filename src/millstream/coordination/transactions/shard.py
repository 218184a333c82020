"""One shard of the transaction coordinator: one partition of `__transaction_state`.

Events come in as method calls with `now_ms`; every method returns a `Result`, or raises `ApiError`,
in which case nothing happened. Which request leads to which record is decided by `transaction.py`;
`replay` alone changes what is durable.

The shard decides that a transaction ends (`end`, `initialize`, `abort_timed_out`: the Prepare
record). Its runtime writes the markers once that record is durable, and then calls `complete`;
after a restart, `prepared` lists the remaining work.

An event may depend on a record that is not durable yet: its answer waits for that record, and if
the record fails, the shard is reloaded before any answer is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from millstream.config.transactions import TransactionSettings
from millstream.coordination.result import CoordinatorRecord, Result, SetTimer
from millstream.coordination.transactions.late_ends import ClientConnection, LateEndGuard
from millstream.coordination.transactions.records import TransactionKey, TransactionValue
from millstream.coordination.transactions.transaction import (
    FIRST_VERSION_WITH_EPOCH_BUMP,
    Producer,
    Transaction,
    first_value,
    unknown_producer,
)
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition

logger = logging.getLogger(__name__)

EXPIRY_TIMER = ("shard", "expire-transactional-ids")
EXPIRED_PER_BATCH_MAX = 1_000

Response = TypeVar("Response")


class InitRequest(NamedTuple):
    """InitProducerId; `expected` is the producer that the client believes to be (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None


class AddRequest(NamedTuple):
    """AddPartitionsToTxn and AddOffsetsToTxn, and partitions added by Produce in protocol v2."""

    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    client_version: int = 0
    connection: ClientConnection | None = None


class EndRequest(NamedTuple):
    """EndTxn."""

    transactional_id: str
    producer: Producer
    committed: bool
    client_version: int = 0
    connection: ClientConnection | None = None


class Initialized(NamedTuple):
    """The new producer; None while an open transaction is being aborted first."""

    producer: Producer | None


class Ended(NamedTuple):
    """The new producer of a v2 client, and whether this request ended the transaction."""

    producer: Producer
    is_new: bool


class TransactionShard:
    """The transactional ids of one partition of `__transaction_state`."""

    def __init__(
        self,
        settings: Callable[[], TransactionSettings],
        new_producer_id: Callable[[], int],
        transaction_version: Callable[[], int] = lambda: FIRST_VERSION_WITH_EPOCH_BUMP,
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._settings = settings
        self._new_producer_id = new_producer_id
        self._transaction_version = transaction_version
        self._guards: dict[str, LateEndGuard] = {}

    # --- records

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record: when it was appended, and again when the shard is loaded."""
        transactional_id, value = record.key.transactional_id, record.value
        transaction = self.transactions.get(transactional_id)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._guards.pop(transactional_id, None)
        elif transaction is None:
            self.transactions[transactional_id] = Transaction(transactional_id, value)
        else:
            before = transaction.producer
            transaction.replay(value)
            if transaction.producer != before:
                self._guards.pop(transactional_id, None)

    def loaded(self, now_ms: int) -> Result[None]:
        """Every record has been replayed: set the timer."""
        return Result(timers=(self._next_expiry(now_ms),))

    # --- producers

    def initialize(self, request: InitRequest, now_ms: int) -> Result[Initialized]:
        """InitProducerId: fences the previous producer of the transactional id."""
        self._require_timeout(request.timeout_ms)
        transactional_id = request.transactional_id
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            value = first_value(self._new_producer_id(), request.timeout_ms, now_ms)
        elif transaction.is_ongoing:
            transaction.require_successor(request.expected)  # another producer cannot end it
            return self._abort_and_fence(transaction, now_ms, Initialized(None))
        else:
            value = transaction.initialize(
                request.expected, request.timeout_ms, self._new_producer_id, now_ms
            )
        producer = Producer(value.producer_id, value.producer_epoch)
        return self._write(transactional_id, value, Initialized(producer))

    def _require_timeout(self, timeout_ms: int) -> None:
        timeout_ms_max = self._settings().transaction_max_timeout_ms
        if not 0 < timeout_ms <= timeout_ms_max:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"Transaction timeout {timeout_ms} ms is out of range: 1 to {timeout_ms_max} ms "
                "(transaction.max.timeout.ms).",
            )

    # --- partitions

    def add_partitions(self, request: AddRequest, now_ms: int) -> Result[frozenset[TopicPartition]]:
        """Partitions join the transaction; the response has those that were not in it before."""
        transaction = self._find(request.transactional_id, request.producer)
        before = transaction.partitions
        value = transaction.add_partitions(
            request.producer, request.partitions, request.client_version, now_ms
        )
        if request.connection is not None:
            guard = self._guards.setdefault(request.transactional_id, LateEndGuard())
            guard.joined(request.connection)
        if value is None:
            return Result(response=frozenset())
        return self._write(request.transactional_id, value, request.partitions - before)

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Raise unless the partition is in the producer's ongoing transaction."""
        self._find(transactional_id, producer).verify(producer, partition)

    # --- the end

    def end(self, request: EndRequest, now_ms: int) -> Result[Ended]:
        """EndTxn: the decision, or the same answer if it was already made."""
        transaction = self._find(request.transactional_id, request.producer)
        value = transaction.end(
            request.producer,
            committed=request.committed,
            client_version=request.client_version,
            new_producer_id=self._new_producer_id,
            now_ms=now_ms,
        )
        if value is None:
            return Result(response=Ended(transaction.producer, is_new=False))
        self._refuse_late_end(request)  # fenced producers were refused above
        after = Transaction(request.transactional_id, value).producer_after_end
        return self._write(request.transactional_id, value, Ended(after, is_new=True))

    def _refuse_late_end(self, request: EndRequest) -> None:
        guard = self._guards.get(request.transactional_id)
        if guard is None or request.connection is None or not guard.is_late(request.connection):
            return
        if request.client_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
            return
        reason = (
            f"An EndTxn for {request.transactional_id} came over a connection that its client "
            f"({request.connection.client_id} at {request.connection.host}) has since replaced."
        )
        logger.warning("refused: %s", reason)
        raise ApiError(ErrorCode.INVALID_TXN_STATE, reason)

    def complete(self, transactional_id: str, now_ms: int) -> Result[None]:
        """All partitions of a prepared transaction have their markers."""
        transaction = self.transactions[transactional_id]
        return self._write(transactional_id, transaction.complete(now_ms), None)

    def prepared(self) -> list[Transaction]:
        """Decided transactions whose markers are not all written."""
        return [
            transaction for transaction in self.transactions.values() if transaction.is_prepared
        ]

    def describe(self, transactional_id: str) -> TransactionValue | None:
        """DescribeTransactions, for one."""
        transaction = self.transactions.get(transactional_id)
        return transaction.value if transaction is not None else None

    def list_all(self) -> dict[str, TransactionValue]:
        """ListTransactions: all, as they are now."""
        return {
            transaction.transactional_id: transaction.value
            for transaction in self.transactions.values()
        }

    # --- time

    def timed_out(self, now_ms: int) -> list[str]:
        """The transactional ids whose transaction has been open for too long."""
        return [
            transaction.transactional_id
            for transaction in self.transactions.values()
            if transaction.is_timed_out(now_ms)
        ]

    def abort_timed_out(self, transactional_id: str, now_ms: int) -> Result[bool]:
        """Abort it and fence its producer, if it is still open; returns whether it was."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not transaction.is_timed_out(now_ms):
            return Result(response=False)
        return self._abort_and_fence(transaction, now_ms, True)

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[None]:
        """Expire unused transactional ids."""
        expiration_ms = self._settings().transactional_id_expiration_ms
        expired = [
            CoordinatorRecord(TransactionKey(transaction.transactional_id), None)
            for transaction in self.transactions.values()
            if transaction.is_idle and transaction.value.last_update_ms <= now_ms - expiration_ms
        ]
        if not expired:
            return Result(timers=(self._next_expiry(now_ms),))
        logger.info("%d transactional ids have expired", len(expired))
        batch = tuple(expired[:EXPIRED_PER_BATCH_MAX])
        rest = len(expired) > len(batch)
        timer = SetTimer(EXPIRY_TIMER, now_ms) if rest else self._next_expiry(now_ms)
        return Result(batch, timers=(timer,))

    def _next_expiry(self, now_ms: int) -> SetTimer:
        interval_ms = self._settings().transaction_remove_expired_transaction_cleanup_interval_ms
        return SetTimer(EXPIRY_TIMER, now_ms + interval_ms)

    # --- helpers

    def _find(self, transactional_id: str, producer: Producer) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise unknown_producer(transactional_id, producer.id)
        return transaction

    def _abort_and_fence(
        self, transaction: Transaction, now_ms: int, response: Response
    ) -> Result[Response]:
        value = transaction.abort_and_fence(
            server_version=self._transaction_version(),
            new_producer_id=self._new_producer_id,
            now_ms=now_ms,
        )
        return self._write(transaction.transactional_id, value, response)

    def _write(
        self, transactional_id: str, value: TransactionValue, response: Response | None
    ) -> Result[Response]:
        """Format 1 is needed from transaction.version 1 on, or for a v2 client."""
        is_old = self._transaction_version() < 1 and value.client_version == 0
        format_version = 0 if is_old else 1
        if value.format_version != format_version:
            value = replace(value, format_version=format_version)
        return Result((CoordinatorRecord(TransactionKey(transactional_id), value),), response)
