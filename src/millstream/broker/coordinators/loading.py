"""Selects the records of an internal topic's partition that a coordinator must replay.

A compacted topic (`LastRecords`): only the last record of each key counts, so only that is kept and
later decoded. Records of a transaction do not count until its commit marker does; then they count
from their own offset on, not from the marker's. So a plain record between the two wins, as it would
after compaction; and a later record of an aborted transaction hides nothing. Transactions still
open at the end stay pending until their marker.

A topic of snapshots and updates (`Histories`): an update contains the changes since the last
snapshot of the same key, so each update after it is replayed, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from millstream.broker.coordinators.superseded import as_it_is, without_superseded
from millstream.coordination.record_codec import RecordCodec
from millstream.records.batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER_SIZE_BYTES,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    Buffer,
    compute_crc,
    iterate_headers,
)
from millstream.records.record import ControlType, Record, decode_batch

_ATTRIBUTES_LOW_BYTE = ATTRIBUTES_OFFSET + 1
_CRC = struct.Struct(">I")


class LoadedRecord(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID  # whose open transaction it belongs to, if any


class LastRecords:
    """The last committed record of each key, and the records of transactions still open."""

    def __init__(self) -> None:
        self._committed: dict[bytes, LoadedRecord] = {}
        self._open: dict[int, list[_Batch]] = {}
        self._control_types: dict[bytes, ControlType] = {}
        self._newest_offset = -1
        self._is_in_log_order = True

    def collect(self, chunk: Buffer) -> int:
        """Add a chunk of whole batches; returns the offset after them."""
        batches, next_offset = without_superseded(chunk)
        if batches is chunk:  # there may be transactions in it
            batches, _ = without_superseded(self._committed_batches(chunk))
        for position, _ in iterate_headers(batches):
            for record in decode_batch(batches, position):
                self._add(record)
        return next_offset

    def _committed_batches(self, chunk: Buffer) -> bytes:
        """The committed batches, as non-transactional ones, in log order.

        Transactional batches are decoded only once they are committed.
        """
        committed: list[_Batch] = []
        for position, header in iterate_headers(chunk):
            batch = chunk[position : position + header.size_bytes]
            if header.is_control:
                pending = self._open.pop(header.producer_id, [])
                if self._control_type(batch) is ControlType.COMMIT:
                    committed += pending
            elif header.is_transactional:
                plain = _Batch(header.base_offset, _as_plain(batch))
                self._open.setdefault(header.producer_id, []).append(plain)
            else:
                committed.append(_Batch(header.base_offset, batch))
        return b"".join(batch.raw for batch in sorted(committed, key=_base_offset))

    def _control_type(self, batch: Buffer) -> ControlType:
        """The type of a control batch. Most are equal, so only the first is decoded."""
        records = bytes(batch[HEADER_SIZE_BYTES:])
        known = self._control_types.get(records)
        if known is None:
            decoded = decode_batch(batch)
            # Compaction empties markers whose time has come; none of their records are left then.
            known = ControlType.from_key(decoded[0].key) if decoded else ControlType.UNKNOWN
            self._control_types[records] = known
        return known

    def _add(self, record: Record) -> None:
        """A committed record. One that was committed late may be older than the current one."""
        key = record.key
        if key is None:
            return
        known = self._committed.pop(key, None)  # so that the newest are last
        if record.offset < self._newest_offset:
            self._is_in_log_order = False
        self._newest_offset = max(self._newest_offset, record.offset)
        if known is not None and known.offset > record.offset:
            self._committed[key] = known
        else:
            self._committed[key] = LoadedRecord(record.offset, key, record.value)

    def __iter__(self) -> Iterator[LoadedRecord]:
        """The records to replay, in log order, without tombstones."""
        committed = [record for record in self._committed.values() if record.value is not None]
        if self._is_in_log_order and not self._open:
            return iter(committed)
        return iter(sorted((*committed, *self._pending())))

    def _pending(self) -> Iterator[LoadedRecord]:
        """The last record of each key in each open transaction, unless it was deleted since."""
        for producer_id, batches in self._open.items():
            records = (record for batch in batches for record in decode_batch(batch.raw))
            last = {record.key: record for record in records if record.key is not None}
            for key, record in last.items():
                known = self._committed.get(key)
                if known is None or known.value is not None or known.offset < record.offset:
                    yield LoadedRecord(record.offset, key, record.value, producer_id)


class _Batch(NamedTuple):
    base_offset: int
    raw: Buffer


def _base_offset(batch: _Batch) -> int:
    return batch.base_offset


def _as_plain(batch: Buffer) -> bytearray:
    """A copy without the transactional flag. The log has already checked the CRC."""
    plain = bytearray(batch)
    plain[_ATTRIBUTES_LOW_BYTE] &= ~TRANSACTIONAL_FLAG & 0xFF
    _CRC.pack_into(plain, CRC_OFFSET, compute_crc(plain, 0, len(plain)))
    return plain


class Histories:
    """The last snapshot of each key, and the updates after it."""

    def __init__(self, codec: RecordCodec) -> None:
        self._codec = codec
        self._by_key: dict[bytes, list[LoadedRecord]] = {}

    def collect(self, chunk: Buffer) -> int:
        """Add a chunk of whole batches; returns the offset after them."""
        batches, next_offset = as_it_is(chunk)
        for position, header in iterate_headers(batches):
            if header.is_control:
                continue
            for record in decode_batch(batches, position):
                if record.key is not None:
                    self._add(LoadedRecord(record.offset, record.key, record.value))
        return next_offset

    def _add(self, record: LoadedRecord) -> None:
        subject = self._codec.subject(record.key)
        if self._codec.is_update(record.key):
            if subject in self._by_key:  # else its snapshot was pruned, because it was deleted
                self._by_key[subject].append(record)
        elif record.value is None:
            self._by_key.pop(subject, None)
        else:
            self._by_key[subject] = [record]

    def __iter__(self) -> Iterator[LoadedRecord]:
        return (record for history in self._by_key.values() for record in history)


class SnapshotOffsets:
    """Offset of the last snapshot of each key. Nothing before the first of them is needed."""

    def __init__(self, codec: RecordCodec) -> None:
        self._codec = codec
        self._offsets: dict[bytes, int] = {}

    def observe(self, key: bytes, value: bytes | None, offset: int) -> None:
        """A record is replayed."""
        if self._codec.is_update(key):
            return
        if value is None:
            self._offsets.pop(self._codec.subject(key), None)
        else:
            self._offsets[self._codec.subject(key)] = offset

    def first(self, otherwise: int) -> int:
        return min(self._offsets.values(), default=otherwise)
