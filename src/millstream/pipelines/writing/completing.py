"""Completes a decision: commits all of its transactions, and aborts all others of the query.

Each step can be repeated, by any driver, in any state that another driver has left:

    complete       commits the transactions of a decision. If one can no longer be committed, its
                   marker in the log shows how it ended. If it was aborted (it timed out between
                   decision and commit), its records are still in the log: they are read from there
                   and written again, in a transaction of the driver that also replaces the
                   decision, so that this happens once.
    sweep          aborts open transactions of task attempts that no decision names.

Records that were aborted, and deleted by retention or compaction before they could be written
again, are lost: `RecordsLost`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import Enum

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import Fetched, fetch_batches, log_start_offset
from millstream.client.producing import RawProducer, WrittenRange
from millstream.client.transactions import (
    Transaction,
    begin_transaction,
    end_transactions,
    open_transactions,
)
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.pipelines.writing.decisions import Decision, DecisionLog, TaskTransaction
from millstream.records.batch import (
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    iterate_headers,
)
from millstream.records.record import ControlType, assemble_batch, decode_batch

logger = logging.getLogger(__name__)

# Errors for a transaction that is no longer open.
_NO_LONGER_OPEN = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)
MARKER_WAIT_MS = 500
SWEPT_TIMEOUT_MS = 10_000  # nothing will be written under this epoch
# Transactions on a newer broker are swept by a later batch; until then they delay readers.
BROKERS_SECONDS_OLD_MAX = 30.0


class RecordsLost(MillstreamError):
    """Records of a decided batch are lost."""


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the log no longer has the marker


class Completer:
    """For one query. Begins a transaction of the driver if it must write."""

    def __init__(
        self,
        cluster: Cluster,
        log: DecisionLog,
        *,
        timeout_ms: int,
        fail_on_loss: bool = True,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._timeout_ms = timeout_ms
        self._fail_on_loss = fail_on_loss

    def complete(self, driver: Transaction, decision: Decision) -> Transaction:
        """Complete a decision; returns the driver's transaction, a new one if it had to write."""
        aborted = self._commit(decision)
        if aborted:
            driver = self._publish_again(driver, decision, aborted)
        self._log.write_completed(decision)
        return driver

    def _commit(self, decision: Decision) -> list[TaskTransaction]:
        """Commit all transactions; returns those that were aborted before."""
        transactions = [task.transaction for task in decision.tasks]
        codes = end_transactions(self._cluster, transactions, commit=True)
        aborted = []
        for task, code in zip(decision.tasks, codes, strict=True):
            if code is ErrorCode.NONE:
                continue
            if code not in _NO_LONGER_OPEN:
                check(code, f"committing {task.transaction.transactional_id}", "end_txn")
            match self._outcome(task):
                case Outcome.ABORTED:
                    aborted.append(task)
                case Outcome.UNKNOWN:
                    self._report_loss(decision, "the outcome of a transaction is unknown")
        return aborted

    def _outcome(self, task: TaskTransaction) -> Outcome:
        """The outcome of a transaction that is no longer open, from the first marker after it."""
        where = task.written[0]
        position = where.end_offset
        deadline = time.monotonic() + self._cluster.timeout_seconds
        while True:
            fetched = self._fetch(where, position, MARKER_WAIT_MS)
            for at, header in iterate_headers(fetched.records):
                position = header.next_offset
                if header.is_control and header.producer_id == task.transaction.producer_id:
                    found = decode_batch(fetched.records, at)
                    is_commit = ControlType.from_key(found[0].key) is ControlType.COMMIT
                    return Outcome.COMMITTED if is_commit else Outcome.ABORTED
            if position >= fetched.end_offset:
                was_deleted = fetched.log_start_offset > where.end_offset
                if was_deleted or time.monotonic() > deadline:
                    return Outcome.UNKNOWN

    def _fetch(self, where: WrittenRange, offset: int, wait_ms: int = 0) -> Fetched:
        """From the offset on, or from the start of the log."""
        try:
            return fetch_batches(
                self._cluster, where.topic, where.partition, offset, wait_ms=wait_ms
            )
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
        begin = log_start_offset(self._cluster, where.topic, where.partition)
        return fetch_batches(self._cluster, where.topic, where.partition, begin, wait_ms=wait_ms)

    # Records of transactions that were aborted after the decision

    def _publish_again(
        self, driver: Transaction, decision: Decision, aborted: list[TaskTransaction]
    ) -> Transaction:
        logger.warning(
            "batch %d: %d transactions timed out after the decision; their records are published "
            "again",
            decision.batch_id,
            len(aborted),
        )
        driver = self._begin_next(driver)
        producer = RawProducer(self._cluster)
        producer.resume(driver)
        for task in aborted:
            for written in task.written:
                self._copy(producer, decision, task.transaction, written)
        rest = tuple(task for task in decision.tasks if task not in aborted)
        self._log.send_decision(producer, replace(decision, tasks=rest))
        producer.end(commit=True)
        # Its sequence numbers are used: the next writes need a new transaction.
        return self._begin_next(driver)

    def _begin_next(self, driver: Transaction) -> Transaction:
        return begin_transaction(
            self._cluster, driver.transactional_id, self._timeout_ms, after=driver
        )

    def _copy(
        self,
        producer: RawProducer,
        decision: Decision,
        transaction: Transaction,
        written: WrittenRange,
    ) -> None:
        copied = 0
        for header, records in self._batches_of(transaction, written):
            identity = producer.identity(written.topic, written.partition)
            renamed = header._replace(
                base_offset=0,
                leader_epoch=-1,
                attributes=header.attributes & ~LOG_APPEND_TIME_FLAG,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=identity.base_sequence,
            )
            batch = assemble_batch(renamed, records)
            producer.send(written.topic, written.partition, batch, header.record_count)
            copied += header.record_count
        if copied != written.record_count:
            self._report_loss(
                decision,
                f"{written.record_count - copied} of {written.record_count} records of "
                f"{written.topic}-{written.partition} were aborted by the broker and deleted",
            )

    def _batches_of(
        self, transaction: Transaction, written: WrittenRange
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of the transaction, without those of others."""
        position = written.first_offset
        while position < written.end_offset:
            view = memoryview(self._fetch(written, position).records)
            before = position
            for at, header in iterate_headers(view):
                position = header.next_offset
                is_own = (header.producer_id, header.producer_epoch) == transaction[1:]
                if is_own and not header.is_control:
                    yield header, view[at + HEADER_SIZE_BYTES : at + header.size_bytes]
            if position == before:
                return

    def _report_loss(self, decision: Decision, what: str) -> None:
        message = f"batch {decision.batch_id}: {what}"
        if self._fail_on_loss:
            raise RecordsLost(f"{message}; set failOnDataLoss=false to continue without them")
        logger.error("%s", message)

    # Transactions of failed and superseded attempts

    def sweep(self, prefix: str, keep: Collection[TaskTransaction] = ()) -> int:
        """Abort the open transactions with this prefix, and fence their writers."""
        kept = {task.transaction.transactional_id for task in keep}
        swept = 0
        listed = open_transactions(self._cluster, prefix, seconds_old_max=BROKERS_SECONDS_OLD_MAX)
        for found in listed:
            if found.transactional_id not in kept:
                begin_transaction(self._cluster, found.transactional_id, SWEPT_TIMEOUT_MS)
                swept += 1
        return swept
