"""A producer of encoded batches, for callers that build many of them at once.

    producer = RawProducer(cluster)
    producer.begin("orders-7", timeout_ms=60_000)
    for batch, count in encode_batches(rows, ..., producer=producer.identity("orders", 0)):
        producer.send("orders", 0, batch, count)
    written = producer.flush()
    producer.end(commit=True)          # or not: see client/transactions.py

It is always idempotent, and transactional if `begin` was given a transactional id. Several requests
are in flight on each connection; a request that fails with a retriable error is sent again, in
order, with the same sequence numbers, so that the broker detects duplicates. Other errors raise
`ApiError`.

A partition's first batch is sent alone. A leader accepts any first sequence number of an unknown
producer: if the first batch were refused temporarily (the leader is not ready yet) and the second
one accepted, the first could never be sent again.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.client.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster, check
from millstream.client.connection import Connection
from millstream.client.rights import with_right
from millstream.client.transactions import (
    Transaction,
    add_at_once,
    add_partitions,
    begin_transaction,
    end_transaction,
)
from millstream.errors import ApiError, ErrorCode
from millstream.records.columns import ProducerIdentity

__all__ = ["BatchRefused", "RawProducer", "WrittenRange", "end_transaction"]

PRODUCE_VERSION = 9  # the first flexible one: Kafka 2.4; 12 would be protocol 2 of transactions
REQUESTS_IN_FLIGHT_MAX = 5  # the number of batches that a broker remembers per producer
REQUEST_BYTES_MAX = 4 * 1024 * 1024
ACKS_ALL = -1
PURPOSE = "produce"
SEQUENCE_MASK = 0x7FFFFFFF

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


class _Refused(ApiError):
    """A broker refused a batch; the batch has the error."""


class WrittenRange(NamedTuple):
    """The offsets of a producer's records; records of others may be in between."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    record_count: int


@dataclass(eq=False, slots=True)
class _Batch:
    topic: str
    partition: int
    content: bytes
    record_count: int
    error: ErrorCode | None = None
    is_acknowledged: bool = False


class BatchRefused(ApiError):
    """The broker refuses a batch, and would refuse it again."""

    def __init__(self, code: ErrorCode, message: str, topic: str, size_bytes: int) -> None:
        super().__init__(code, message)
        self.topic = topic
        self.size_bytes = size_bytes


class _Request(NamedTuple):
    connection: Connection
    batches: list[_Batch]


class RawProducer:
    """See the module. One thread at a time; call `begin` first."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        purpose: str = PURPOSE,
    ) -> None:
        self._cluster = cluster
        self._purpose = purpose  # has its own connection: requests may stay unanswered on it
        self._request_bytes_max = request_bytes_max
        self._timeout_ms = int(cluster.timeout_seconds * 1000)
        self._producer_id, self._epoch = -1, -1
        self.transaction: Transaction | None = None
        self._joined: set[tuple[str, int]] = set()
        self._sequences: dict[tuple[str, int], int] = {}
        self._written: dict[tuple[str, int], WrittenRange] = {}
        self._waiting: dict[tuple[str, int], _Batch] = {}  # for the next requests, one of each
        self._waiting_bytes = 0
        self._in_flight: dict[int, deque[_Request]] = {}
        self._introducing: set[tuple[str, int]] = set()  # their first is unanswered
        self._unacknowledged: deque[_Batch] = deque()  # sent, in order

    # Transactions

    def begin(
        self,
        transactional_id: str | None = None,
        timeout_ms: int = 60_000,
    ) -> ProducerIdentity:
        """Get a producer id; with a transactional id, the id's producer id with the next epoch."""
        if transactional_id is not None:
            self.resume(begin_transaction(self._cluster, transactional_id, timeout_ms))
        else:
            self._producer_id, self._epoch = self._cluster.retrying(self._ask_producer_id)
        return ProducerIdentity(self._producer_id, self._epoch, 0, transactional_id is not None)

    def resume(self, transaction: Transaction) -> None:
        """Write as a producer that another process has begun and not used."""
        self.transaction = transaction
        self._producer_id, self._epoch = transaction.producer_id, transaction.epoch

    def _ask_producer_id(self) -> tuple[int, int]:
        fields = {"transactional_id": None, "transaction_timeout": self._timeout_ms}
        answer = self._cluster.any_connection().call("init_producer_id", fields)
        check(answer.error_code, "getting a producer id", "init_producer_id")
        return int(answer.producer_id), int(answer.producer_epoch)

    def join(self, partitions: Iterable[tuple[str, int]], group_id: str | None = None) -> None:
        """Add partitions to the transaction, in one request instead of one per `send`, and
        optionally a group whose offsets will be committed with it."""
        new = [partition for partition in partitions if partition not in self._joined]
        if self.transaction is None or not new:
            return
        if group_id is None:
            add_partitions(self._cluster, self.transaction, new)
        else:
            add_at_once(self._cluster, self.transaction, new, group_id)
        self._joined.update(new)

    def end(self, commit: bool) -> None:
        """Commit or abort the transaction."""
        assert self.transaction is not None
        if commit:
            self.flush()
        else:
            self.discard()
        if self._joined:
            end_transaction(self._cluster, *self.transaction, commit=commit)
        self._joined.clear()

    # Records

    def identity(self, topic: str, partition: int) -> ProducerIdentity:
        """The producer fields for the header of the partition's next batch."""
        sequence = self._sequences.get((topic, partition), 0)
        return ProducerIdentity(
            self._producer_id, self._epoch, sequence, self.transaction is not None
        )

    def send(self, topic: str, partition: int, batch: bytes, record_count: int) -> None:
        """Send a batch soon; returns before it is answered."""
        key = (topic, partition)
        if key in self._waiting or self._waiting_bytes + len(batch) > self._request_bytes_max:
            self.start()
        self._sequences[key] = (self._sequences.get(key, 0) + record_count) & SEQUENCE_MASK
        self._waiting[key] = _Batch(topic, partition, batch, record_count)
        self._waiting_bytes += len(batch)

    def flush(self) -> list[WrittenRange]:
        """Wait for all answers; returns the records written so far, by partition."""
        self.start()
        self._drain()
        return sorted(self._written.values())

    def start(self) -> None:
        """Send queued batches now."""
        batches = list(self._waiting.values())
        self._waiting.clear()
        self._waiting_bytes = 0
        if not batches:
            return
        self.join((batch.topic, batch.partition) for batch in batches)
        if any((batch.topic, batch.partition) in self._introducing for batch in batches):
            self._drain()
        self._introducing.update(
            key for batch in batches if (key := (batch.topic, batch.partition)) not in self._written
        )
        self._unacknowledged += batches
        try:
            self._send_requests(batches)
        except (OSError, ApiError) as error:
            self._recover(error)

    def _send_requests(self, batches: list[_Batch]) -> None:
        by_leader: dict[int, list[_Batch]] = {}
        for batch in batches:
            by_leader.setdefault(self._cluster.leader(batch.topic, batch.partition), []).append(
                batch
            )
        for leader, its in by_leader.items():
            flying = self._in_flight.setdefault(leader, deque())
            while len(flying) >= REQUESTS_IN_FLIGHT_MAX:
                self._receive(flying)
            transactional_id = self.transaction.transactional_id if self.transaction else None
            body = _produce_body(transactional_id, self._timeout_ms, its)
            connection = self._cluster.connection(leader, self._purpose)
            connection.send("produce", PRODUCE_VERSION, body)
            flying.append(_Request(connection, its))

    def _drain(self) -> None:
        """Wait for all answers."""
        while self._unacknowledged:
            try:
                for flying in self._in_flight.values():
                    while flying:
                        self._receive(flying)
            except (OSError, ApiError) as error:
                self._recover(error)

    def _receive(self, flying: deque[_Request]) -> None:
        """Read the oldest answer of a broker; raises `_Refused` if it refused a batch."""
        answer = flying[0].connection.receive()
        batches = {(sent.topic, sent.partition): sent for sent in flying.popleft().batches}
        refused: _Batch | None = None
        for topic in answer.responses:
            for response in topic.partition_responses:
                batch = batches[topic.name, int(response.index)]
                if response.error_code is ErrorCode.NONE:
                    self._acknowledged(batch, int(response.base_offset))
                else:
                    batch.error = response.error_code
                    refused = refused or batch
        if refused is not None:
            assert refused.error is not None
            raise _Refused(refused.error, _advice(refused, refused.error))

    def _acknowledged(self, batch: _Batch, base_offset: int) -> None:
        batch.is_acknowledged = True
        while self._unacknowledged and self._unacknowledged[0].is_acknowledged:
            self._unacknowledged.popleft()
        key = (batch.topic, batch.partition)
        end = base_offset + batch.record_count
        self._introducing.discard(key)
        known = self._written.get(key)
        if known is None:
            known = WrittenRange(batch.topic, batch.partition, base_offset, end, 0)
        self._written[key] = known._replace(
            first_offset=min(known.first_offset, base_offset),
            end_offset=max(known.end_offset, end),
            record_count=known.record_count + batch.record_count,
        )

    def discard(self) -> None:
        """Stop sending, and read all outstanding answers."""
        self._take_remaining_answers()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._introducing.clear()
        self._unacknowledged.clear()

    # Error handling

    def _recover(self, error: OSError | ApiError) -> None:
        """Resend refused batches, in order, until all are accepted."""
        started = time.monotonic()
        backoff = BACKOFF_SECONDS
        while True:
            self._take_remaining_answers()
            self._raise_what_lasts(error)
            if time.monotonic() + backoff > started + self._cluster.retry_seconds(error):
                raise error
            time.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
            before = len(self._unacknowledged)
            try:
                self._send_again()
                return
            except (OSError, ApiError) as again:
                error = again
            if len(self._unacknowledged) < before:
                started = time.monotonic()

    def _take_remaining_answers(self) -> None:
        """Read the answers of all other requests in flight, unless their connection is lost."""
        for flying in self._in_flight.values():
            while flying:
                try:
                    self._receive(flying)
                except _Refused:
                    continue
                except OSError:
                    flying.clear()
        self._cluster.forget_all()

    def _raise_what_lasts(self, error: OSError | ApiError) -> None:
        """Raise errors that are not retriable."""
        passing = (_Refused, OSError)
        if not isinstance(error, passing) and not error.code.retriable:
            raise error
        missing: set[tuple[str, int]] = set()
        for batch in self._unacknowledged:
            code = batch.error
            follows_missing = (
                code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and (batch.topic, batch.partition) in missing
            )
            if code is not None and not code.retriable and not follows_missing:
                raise BatchRefused(code, _advice(batch, code), batch.topic, len(batch.content))
            if not batch.is_acknowledged:
                missing.add((batch.topic, batch.partition))

    def _send_again(self) -> None:
        """Resend in rounds of one batch per partition, each answered before the next."""
        while self._unacknowledged:
            wave: dict[tuple[str, int], _Batch] = {}
            size = 0
            for batch in self._unacknowledged:
                if batch.is_acknowledged or (batch.topic, batch.partition) in wave:
                    continue
                if wave and size + len(batch.content) > self._request_bytes_max:
                    break
                batch.error = None
                wave[batch.topic, batch.partition] = batch
                size += len(batch.content)
            self._send_requests(list(wave.values()))
            for flying in self._in_flight.values():
                while flying:
                    self._receive(flying)


def _advice(batch: _Batch, code: ErrorCode) -> str:
    where = f"writing to {batch.topic}-{batch.partition}"
    match code:
        case ErrorCode.MESSAGE_TOO_LARGE:
            return (
                f"{where}: a batch of {len(batch.content)} bytes is more than the topic's "
                "max.message.bytes; make batches smaller (batch.size), or raise the topic's limit"
            )
        case ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.PRODUCER_FENCED:
            return f"{where}: another producer has the same transactional id, or the time ran out"
        case _:
            return with_right(where, "produce", code)


def _produce_body(
    transactional_id: str | None, timeout_ms: int, batches: list[_Batch]
) -> list[Any]:
    """The request, in pieces, to avoid copying the batches."""
    by_topic: dict[str, list[_Batch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
    head = bytearray()
    head += b"\0" if transactional_id is None else _compact(transactional_id.encode())
    head += _ACKS_AND_TIMEOUT.pack(ACKS_ALL, timeout_ms)
    head += _varint(len(by_topic) + 1)
    pieces: list[Any] = []
    for topic, its in by_topic.items():
        head += _compact(topic.encode()) + _varint(len(its) + 1)
        for batch in its:
            head += _INDEX.pack(batch.partition) + _varint(len(batch.content) + 1)
            pieces += [bytes(head), batch.content]
            head = bytearray(b"\0")  # no tags of the partition
        head += b"\0"
    pieces.append(bytes(head + b"\0"))
    return pieces


def _compact(content: bytes) -> bytes:
    return _varint(len(content) + 1) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
