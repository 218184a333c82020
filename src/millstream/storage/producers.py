"""Producer state of a log: idempotence and open transactions.

For each producer id: its epoch and its last five batches. A duplicate batch is detected and
answered with the offsets of the original; a gap in the sequence is refused. The state depends only
on the log: it is rebuilt from a snapshot and the batches after it.

A transaction is open from its first batch to its end marker. The caller verifies with the
transaction's coordinator whether a batch may open one. Everything else is checked here, as in
Kafka: a producer with an open transaction must write within it; a marker must come from the newest
coordinator known, and with an epoch that ends this transaction and no later one. From transaction
version 2 on the marker's epoch is one higher than that of the records, and the producer goes on
with it.

`<offset, 20 digits>.snapshot` holds the state as of that offset (Kafka's version 1), big-endian:

     2  version            1
     4  CRC-32C            of everything after this field
     4  number of entries, then for each
     8  producer id
     2  producer epoch
     4  last sequence
     8  last offset        -1 if only a transaction's end marker was seen
     4  offset delta       last offset - first offset of the last batch
     8  timestamp
     4  coordinator epoch  of the last end marker, -1
     8  first offset of the open transaction, -1

Written when a segment is rolled (named after the new segment's base offset) and at a clean stop;
one whose CRC is wrong is deleted and the one before it used: the log is the truth.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    PRODUCER_EPOCH_MAX,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
)
from millstream.records.checksum import crc32c
from millstream.records.record import ControlType, decode_end_transaction
from millstream.storage.transactions import AbortedTransaction

BATCHES_KEPT = 5
SEQUENCE_MASK = 0x7FFFFFFF
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
FIRST_VERSION_WITH_EPOCH_BUMP = 2

_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_END = 6


class ProducedBatch(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MASK

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer id's state."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.transaction_first_offset = NO_OFFSET

    def find(self, header: BatchHeader) -> ProducedBatch | None:
        """The batch that this one duplicates, if it is remembered."""
        if header.producer_epoch != self.epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def check_sequence(self, header: BatchHeader) -> None:
        """Raises `ApiError` unless the batch continues the sequence."""
        if header.producer_epoch != self.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, "0 in a new epoch")
        elif self.batches:
            expected = (self.batches[-1].last_sequence + 1) & SEQUENCE_MASK
            if header.base_sequence != expected:
                raise _out_of_order(header, str(expected))
        elif header.base_sequence != 0:
            # Only a transaction marker of this epoch was seen.
            raise _out_of_order(header, "0")


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerStates:
    """All producers of one log."""

    __slots__ = ("_entries", "_open_transactions", "first_open_offset")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open_transactions: dict[int, int] = {}  # producer id -> first offset, ascending
        # Start of the oldest open transaction: nothing from there on is stable.
        self.first_open_offset: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __getitem__(self, producer_id: int) -> ProducerEntry:
        return self._entries[producer_id]

    def clear(self) -> None:
        self._entries.clear()
        self._open_transactions.clear()
        self.first_open_offset = None

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer, in this epoch, has a transaction open here."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.epoch == epoch and entry.transaction_first_offset >= 0

    def open_transaction(self, producer_id: int) -> int | None:
        """Start of the producer's open transaction; None if it has none."""
        return self._open_transactions.get(producer_id)

    def check(self, header: BatchHeader, *, may_open: bool = True) -> ProducedBatch | None:
        """The original batch, if this is a duplicate; raises `ApiError` if it is invalid.

        `may_open`: whether the batch may begin a transaction, if it is transactional.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            if header.is_transactional and not may_open:
                raise _not_in_transaction(header)
            return None  # an unknown producer (new or expired) may start anywhere
        epoch, batches = header.producer_epoch, entry.batches
        if epoch < entry.epoch:
            raise _stale_epoch(header.producer_id, epoch, entry)
        # The usual case first: a batch that continues the sequence is not a duplicate.
        is_next = (
            epoch == entry.epoch
            and batches
            and header.base_sequence == (batches[-1].last_sequence + 1) & SEQUENCE_MASK
        )
        if not is_next:
            duplicate = entry.find(header)
            if duplicate is not None:
                return duplicate
        in_transaction = entry.transaction_first_offset >= 0
        if header.attributes & TRANSACTIONAL_FLAG:
            if not (may_open or (in_transaction and epoch == entry.epoch)):
                raise _not_in_transaction(header)
        elif in_transaction:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction in this partition: its "
                "batches must be transactional",
            )
        if not is_next:
            entry.check_sequence(header)
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse a producer that a newer instance has replaced."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _stale_epoch(producer_id, epoch, entry)

    def check_marker(
        self, producer_id: int, epoch: int, *, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Refuse a marker that is too late, or of a coordinator that has been replaced.

        From transaction version 2 on an epoch belongs to one transaction, so a marker with the
        producer's present epoch ends nothing; it is let in again where nothing is open, since a
        coordinator that crashed, or missed the answer, writes its markers again.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_retry = epoch == entry.epoch and (
            transaction_version < FIRST_VERSION_WITH_EPOCH_BUMP
            or entry.transaction_first_offset < 0
            or epoch == PRODUCER_EPOCH_MAX
        )
        if epoch <= entry.epoch and not is_retry:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker for producer {producer_id} has epoch {epoch}, but epoch {entry.epoch} "
                "was seen: its transaction has ended already",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker for producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, but epoch {entry.coordinator_epoch} was seen",
            )

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """A data batch was appended at `base_offset`. Nothing is checked: the log is right."""
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(header.producer_epoch)
        elif header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        delta = header.last_offset_delta
        entry.batches.append(
            ProducedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp)
        )
        entry.last_timestamp = header.max_timestamp
        if header.attributes & TRANSACTIONAL_FLAG and producer_id not in self._open_transactions:
            self._open_transactions[producer_id] = base_offset
            entry.transaction_first_offset = base_offset
            if self.first_open_offset is None:
                self.first_open_offset = base_offset

    def record_marker(
        self, header: BatchHeader, base_offset: int, *, coordinator_epoch: int, aborted: bool
    ) -> CompletedTransaction | None:
        """A control batch that ends the producer's transaction; None if it had none open."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_epoch)
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.transaction_first_offset = NO_OFFSET
        first_offset = self._open_transactions.pop(header.producer_id, None)
        if first_offset is None:
            return None
        self.first_open_offset = next(iter(self._open_transactions.values()), None)
        return CompletedTransaction(header.producer_id, first_offset, base_offset, aborted)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have written nothing for longer, unless a transaction is open."""
        silent = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]

    def encode_snapshot(self) -> bytes:
        parts = [_SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, 0, len(self._entries))]
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else None
            parts.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    last.last_sequence if last else NO_SEQUENCE,
                    last.last_offset if last else NO_OFFSET,
                    last.offset_delta if last else 0,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        content = bytearray().join(parts)
        struct.pack_into(">I", content, 2, crc32c(memoryview(content)[_CRC_END:]))
        return bytes(content)

    def load_snapshot(self, content: bytes) -> None:
        """Replace the state by a snapshot's; raises `StorageError` if it is damaged."""
        if len(content) < _SNAPSHOT_HEADER.size:
            raise StorageError(f"producer snapshot of {len(content)} bytes: wrong size")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
        if version != _SNAPSHOT_VERSION or crc != crc32c(content[_CRC_END:]):
            raise StorageError(f"producer snapshot of version {version} has a wrong CRC")
        if len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise StorageError(f"producer snapshot does not contain its {count} entries")
        self.clear()
        for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(content)[_SNAPSHOT_HEADER.size :]):
            self._load_entry(*fields)
        in_order = sorted(self._open_transactions.items(), key=lambda it: it[1])
        self._open_transactions = dict(in_order)
        self.first_open_offset = in_order[0][1] if in_order else None

    def _load_entry(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_first_offset: int,
    ) -> None:
        entry = self._entries[producer_id] = ProducerEntry(epoch)
        if last_offset >= 0:
            entry.batches.append(ProducedBatch(last_sequence, last_offset, offset_delta, timestamp))
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_first_offset = transaction_first_offset
        if transaction_first_offset >= 0:
            self._open_transactions[producer_id] = transaction_first_offset


def _stale_epoch(producer_id: int, epoch: int, entry: ProducerEntry) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {epoch}, but epoch {entry.epoch} was seen: a newer "
        "instance took over, or its transaction was ended",
    )


def _not_in_transaction(header: BatchHeader) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_TXN_STATE,
        f"a batch of producer {header.producer_id} (epoch {header.producer_epoch}) is not part of "
        "an ongoing transaction",
    )


def _out_of_order(header: BatchHeader, expected: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
        f"{header.base_sequence}, expected {expected}",
    )


def replay_marker(
    producers: ProducerStates, header: BatchHeader, batch: Buffer, offset: int
) -> AbortedTransaction | None:
    """A control batch at `offset` ends its producer's transaction; returns one that it aborts."""
    decoded = decode_end_transaction(batch)
    if decoded is None:
        return None
    kind, coordinator_epoch = decoded
    completed = producers.record_marker(
        header,
        offset,
        coordinator_epoch=coordinator_epoch,
        aborted=kind is ControlType.ABORT,
    )
    if completed is None or not completed.aborted:
        return None
    still_open = producers.first_open_offset
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        completed.last_offset + 1 if still_open is None else still_open,
    )
