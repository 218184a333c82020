"""One transactional id: which requests it accepts, and the record that each leads to.

    Empty ----> Ongoing --+--> PrepareCommit --> CompleteCommit --+--> Ongoing, or
                          |                                       |    Empty by InitProducerId
                          +--> PrepareAbort ---> CompleteAbort ---+

Prepare is the decision: once it is durable the transaction ends that way, whatever happens. Markers
are then written to its partitions; Complete means that all are written. Requests in between get
CONCURRENT_TRANSACTIONS.

There are two protocols, determined by the version of each request:

    v1   the producer's epoch stays the same from transaction to transaction
    v2   (KIP-890) every end raises the epoch, so that a request of an earlier transaction, late or
         repeated, is known for what it is. Epoch 32767 is never given to a client: where the next
         one would be that, the end brings a new producer id, beginning with epoch 0

A method decides and changes nothing: it returns the next record's value, or raises `ApiError` with
the code that Kafka's coordinator answers. `replay` alone changes the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from millstream.coordination.transactions.marker import TransactionMarker
from millstream.coordination.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartitions,
    TransactionState,
    TransactionValue,
)
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition
from millstream.records.batch import NO_TIMESTAMP, PRODUCER_EPOCH_MAX

LAST_CLIENT_EPOCH: Final = PRODUCER_EPOCH_MAX - 1  # the last one is for fencing only
FIRST_VERSION_WITH_EPOCH_BUMP: Final = 2


_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class Producer(NamedTuple):
    """A producer id and epoch."""

    id: int
    epoch: int


class Transaction:
    """The state of one transactional id."""

    __slots__ = ("partitions", "state", "transactional_id", "value")

    def __init__(self, transactional_id: str, value: TransactionValue) -> None:
        self.transactional_id = transactional_id
        self.replay(value)

    def replay(self, value: TransactionValue) -> None:
        self.value = value
        self.state = value.state
        self.partitions: frozenset[TopicPartition] = frozenset(
            (topic.topic, partition)
            for topic in value.partitions or ()
            for partition in topic.partitions
        )

    # --- what it is

    @property
    def producer(self) -> Producer:
        return Producer(self.value.producer_id, self.value.producer_epoch)

    @property
    def is_ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def is_prepared(self) -> bool:
        """Whether its end is decided but not all markers are written."""
        return self.state in _PREPARED

    @property
    def is_idle(self) -> bool:
        """Whether it may expire."""
        return self.state is TransactionState.EMPTY or self.state in _COMPLETE

    def is_timed_out(self, now_ms: int) -> bool:
        value = self.value
        is_late = value.start_ms + value.timeout_ms < now_ms
        return self.is_ongoing and is_late

    def marker(self, coordinator_epoch: int) -> TransactionMarker:
        """The marker for its partitions; only in a Prepare state."""
        return TransactionMarker(
            producer_id=self.value.producer_id,
            producer_epoch=self.value.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            committed=self.state is TransactionState.PREPARE_COMMIT,
            transaction_version=self.value.client_version,
        )

    @property
    def producer_after_end(self) -> Producer:
        """The producer of a v2 client after the end of this transaction."""
        if self.value.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.value.next_producer_id, 0)
        return self.producer

    # --- InitProducerId

    def initialize(
        self,
        expected: Producer | None,
        timeout_ms: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> TransactionValue:
        """A producer starts, or `expected` continues after an error (KIP-360): the next epoch."""
        self._require_not_prepared()
        self.require_successor(expected)
        producer, last_epoch = self._next_producer(expected, new_producer_id)
        return self._next(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=None,
            start_ms=NO_TIMESTAMP,
        )

    def require_successor(self, expected: Producer | None) -> None:
        """Raise unless it is this id's producer, or was until its epochs were exhausted."""
        if expected is None or expected.id == self.value.producer_id:
            return
        was_used_up = expected.epoch >= LAST_CLIENT_EPOCH
        if expected.id != self.value.previous_producer_id or not was_used_up:
            raise self._fenced(expected.epoch)

    def _next_producer(
        self, expected: Producer | None, new_producer_id: Callable[[], int]
    ) -> tuple[Producer, int]:
        """The new producer, and the epoch that identifies a repeated request."""
        value = self.value
        epoch = value.producer_epoch
        if expected is None or expected.epoch == epoch:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else epoch
            if epoch >= LAST_CLIENT_EPOCH:
                return Producer(new_producer_id(), 0), last_epoch
            return Producer(value.producer_id, epoch + 1), last_epoch
        if expected.epoch == value.last_producer_epoch:  # the same request again
            return self.producer, value.last_producer_epoch
        raise self._fenced(expected.epoch)

    # --- partitions

    def add_partitions(
        self,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> TransactionValue | None:
        """Add partitions; the first begins the transaction. None if all were already added."""
        self._require_not_prepared()
        self._require_producer(producer)
        if self.is_ongoing and partitions <= self.partitions:
            return None
        return self._next(
            TransactionState.ONGOING,
            now_ms,
            partitions=_grouped(self.partitions | partitions),
            start_ms=self.value.start_ms if self.is_ongoing else now_ms,
            client_version=client_version,
        )

    def verify(self, producer: Producer, partition: TopicPartition) -> None:
        """Raise unless the partition is in the producer's ongoing transaction."""
        self._require_producer(producer)
        self._require_not_prepared()
        if not self.is_ongoing or partition not in self.partitions:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"{partition[0]}-{partition[1]} is not in an ongoing transaction of "
                f"{self.transactional_id}; add it first.",
            )

    # --- the end

    def end(
        self,
        producer: Producer,
        *,
        committed: bool,
        client_version: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> TransactionValue | None:
        """EndTxn: the decision; None for a repeated request."""
        if client_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
            return self._end_v2(producer, committed, new_producer_id, now_ms)
        return self._end_v1(producer, committed, now_ms)

    def _end_v1(self, producer: Producer, committed: bool, now_ms: int) -> TransactionValue | None:
        self._require_producer(producer)
        self._require_not_prepared()
        if self.is_ongoing:
            return self._next(_prepare(committed), now_ms, client_version=0)
        if self.state is _complete(committed):
            return None
        raise self._cannot_end(committed)

    def _end_v2(
        self, producer: Producer, committed: bool, new_producer_id: Callable[[], int], now_ms: int
    ) -> TransactionValue | None:
        self._require_not_prepared()
        is_repeated = self.state in _COMPLETE and self._ended_before(producer)
        if is_repeated:
            if self.state is _complete(committed):
                return None
            raise self._cannot_end(committed)
        self._require_producer(producer)
        if committed and not self.is_ongoing:
            raise self._cannot_end(committed)
        # An abort is always allowed: a client that does not know whether its first partition was
        # added must send one.
        return self._prepare_v2(committed, new_producer_id, now_ms)

    def _ended_before(self, producer: Producer) -> bool:
        """Whether the request is from before the end that bumped its epoch."""
        value = self.value
        if producer.id == value.producer_id:
            return value.producer_epoch == producer.epoch + 1
        return (
            producer == (value.previous_producer_id, LAST_CLIENT_EPOCH)
            and value.producer_epoch == 0
        )

    def _prepare_v2(
        self, committed: bool, new_producer_id: Callable[[], int], now_ms: int
    ) -> TransactionValue:
        value = self.value
        is_used_up = value.producer_epoch >= LAST_CLIENT_EPOCH
        return self._next(
            _prepare(committed),
            now_ms,
            producer_epoch=min(value.producer_epoch + 1, PRODUCER_EPOCH_MAX),
            last_producer_epoch=value.producer_epoch,
            next_producer_id=new_producer_id() if is_used_up else NO_PRODUCER_ID,
            partitions=_grouped(self.partitions),
            start_ms=value.start_ms if self.is_ongoing else now_ms,
            client_version=FIRST_VERSION_WITH_EPOCH_BUMP,
        )

    def abort_and_fence(
        self, *, server_version: int, new_producer_id: Callable[[], int], now_ms: int
    ) -> TransactionValue:
        """The coordinator aborts an ongoing transaction and fences its producer."""
        if server_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
            return self._prepare_v2(False, new_producer_id, now_ms)
        return self._next(
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=min(self.value.producer_epoch + 1, PRODUCER_EPOCH_MAX),
            last_producer_epoch=NO_PRODUCER_EPOCH,
            client_version=0,
        )

    def complete(self, now_ms: int) -> TransactionValue:
        """All partitions have their marker."""
        producer = self.producer_after_end
        return self._next(
            _complete(self.state is TransactionState.PREPARE_COMMIT),
            now_ms,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=(),
        )

    # --- helpers

    def _next(self, state: TransactionState, now_ms: int, **changes: object) -> TransactionValue:
        before = self.value
        return replace(
            before,
            state=state,
            last_update_ms=now_ms,
            previous_producer_id=before.producer_id,
            **changes,  # type: ignore[arg-type]
        )

    def _require_not_prepared(self) -> None:
        if self.state in _PREPARED:
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"The transaction of {self.transactional_id} is being ended; retry.",
            )

    def _require_producer(self, producer: Producer) -> None:
        if producer.id != self.value.producer_id:
            raise unknown_producer(self.transactional_id, producer.id)
        if producer.epoch != self.value.producer_epoch:
            raise self._fenced(producer.epoch)

    def _fenced(self, epoch: int) -> ApiError:
        return ApiError(
            ErrorCode.PRODUCER_FENCED,
            f"Producer epoch {epoch} of {self.transactional_id} is not the current "
            f"{self.value.producer_epoch}: another producer took over.",
        )

    def _cannot_end(self, committed: bool) -> ApiError:
        return ApiError(
            ErrorCode.INVALID_TXN_STATE,
            f"The transaction of {self.transactional_id} is {self.state.label}: it cannot be "
            f"{'committed' if committed else 'aborted'}.",
        )


def first_value(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionValue:
    """The initial value of a transactional id."""
    return TransactionValue(
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=None,
        last_update_ms=now_ms,
        previous_producer_id=producer_id,
    )


def unknown_producer(transactional_id: str, producer_id: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Producer id {producer_id} does not belong to {transactional_id}; call InitProducerId "
        "again.",
    )


def _prepare(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _complete(committed: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT


def _grouped(partitions: frozenset[TopicPartition]) -> tuple[TopicPartitions, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic, tuple(them)) for topic, them in by_topic.items())
