"""What a log knows of its producers: idempotence, and the transactions that are open.

For each producer id: its epoch and its last five batches. A batch sent twice is recognised and
answered with the offsets of the first; a gap in the sequence is refused. The state follows from
the log alone: it is rebuilt from the newest snapshot and the batches after it.

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
from millstream.records.batch import BatchHeader
from millstream.records.checksum import crc32c

BATCHES_KEPT = 5
SEQUENCE_MASK = 0x7FFFFFFF
NO_OFFSET = -1
NO_EPOCH = -1
NO_SEQUENCE = -1

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

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1
        self.coordinator_epoch = NO_EPOCH
        self.transaction_first_offset = NO_OFFSET


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerStates:
    """All producers of one log."""

    __slots__ = ("_entries", "_open_transactions")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open_transactions: dict[int, int] = {}  # producer id -> first offset

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __getitem__(self, producer_id: int) -> ProducerEntry:
        return self._entries[producer_id]

    def clear(self) -> None:
        self._entries.clear()
        self._open_transactions.clear()

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins: nothing from there on is stable."""
        return min(self._open_transactions.values(), default=None)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """The batch of which this is a duplicate; raises `ApiError` if it may not be appended."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None  # one not known (new, or forgotten since) may begin anywhere
        epoch = header.producer_epoch
        if epoch < entry.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {epoch}, but epoch {entry.epoch} was "
                "seen: a newer instance took over",
            )
        if epoch > entry.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, "0 in a new epoch")
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        if entry.batches:
            expected = (entry.batches[-1].last_sequence + 1) & SEQUENCE_MASK
            if header.base_sequence != expected:
                raise _out_of_order(header, str(expected))
        elif header.base_sequence != 0:
            # Only a transaction marker of this epoch was seen.
            raise _out_of_order(header, "0")
        return None

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
        if header.is_transactional and producer_id not in self._open_transactions:
            self._open_transactions[producer_id] = base_offset
            entry.transaction_first_offset = base_offset

    def record_marker(
        self, header: BatchHeader, base_offset: int, *, coordinator_epoch: int, aborted: bool
    ) -> CompletedTransaction | None:
        """A control batch that ends the producer's transaction; None if it had none open."""
        entry = self._entries.setdefault(header.producer_id, ProducerEntry())
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.transaction_first_offset = NO_OFFSET
        first_offset = self._open_transactions.pop(header.producer_id, None)
        if first_offset is None:
            return None
        return CompletedTransaction(header.producer_id, first_offset, base_offset, aborted)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for longer, unless a transaction is open."""
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
            raise StorageError(f"a producer snapshot cannot have {len(content)} bytes")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
        if version != _SNAPSHOT_VERSION or crc != crc32c(content[_CRC_END:]):
            raise StorageError(f"producer snapshot of version {version} has a wrong CRC")
        if len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise StorageError(f"producer snapshot does not hold its {count} entries")
        self.clear()
        for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(content)[_SNAPSHOT_HEADER.size :]):
            self._load_entry(*fields)

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


def _out_of_order(header: BatchHeader, expected: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
        f"{header.base_sequence}, expected {expected}",
    )
