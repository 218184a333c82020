"""What of an internal topic's partition a coordinator must replay to know what it knew.

A compacted topic (`LastRecords`): the last record of each key is the truth, so only that is kept
and later decoded. Records of a transaction do not count until its commit marker does; then they
count from their own offset on, not from the marker's. So a plain record between the two wins, as
it would after compaction; and a later record of an aborted transaction hides nothing. What is
still open at the end stays pending, for the marker that will come.

A topic of snapshots and updates (`Histories`): an update says what changed since the last snapshot
of the same key, so each update after it is replayed, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.broker.superseded import as_it_is, without_superseded
from millstream.coordination.record_codec import RecordCodec
from millstream.records.batch import NO_PRODUCER_ID, BatchHeader, Buffer, iterate_headers
from millstream.records.record import ControlType, Record, decode_batch


class LoadedRecord(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID  # whose open transaction it belongs to, if any


class LastRecords:
    """The last committed record of each key, and the records of transactions still open."""

    def __init__(self) -> None:
        self._committed: dict[bytes, LoadedRecord] = {}
        self._open: dict[int, dict[bytes, LoadedRecord]] = {}
        self._is_in_log_order = True

    def collect(self, chunk: Buffer) -> int:
        """Take in a chunk of whole batches; the offset after them."""
        batches, next_offset = without_superseded(chunk)
        for position, header in iterate_headers(batches):
            records = decode_batch(batches, position)
            if header.is_control:
                self._end_transaction(header, records)
            elif header.is_transactional:
                self._add_pending(header.producer_id, records)
            else:
                self._add_committed(records)
        return next_offset

    def _add_committed(self, records: list[Record]) -> None:
        for record in records:
            key = record.key
            if key is None:
                continue
            self._committed.pop(key, None)  # so that the dictionary is in the order of the log
            self._committed[key] = LoadedRecord(record.offset, key, record.value)
            if record.value is None:
                for pending in self._open.values():
                    pending.pop(key, None)

    def _add_pending(self, producer_id: int, records: list[Record]) -> None:
        pending = self._open.setdefault(producer_id, {})
        for record in records:
            if record.key is not None:
                pending[record.key] = LoadedRecord(
                    record.offset, record.key, record.value, producer_id
                )

    def _end_transaction(self, header: BatchHeader, records: list[Record]) -> None:
        # Compaction empties markers whose time has come; none of their records are left then.
        if not records:
            return
        pending = self._open.pop(header.producer_id, {})
        if ControlType.from_key(records[0].key) is not ControlType.COMMIT:
            return
        for key, record in pending.items():
            known = self._committed.get(key)
            if known is None or known.offset < record.offset:
                self._committed[key] = record._replace(producer_id=NO_PRODUCER_ID)
                self._is_in_log_order = False

    def __iter__(self) -> Iterator[LoadedRecord]:
        """What to replay, in the order of the log. Tombstones have done their work."""
        if self._is_in_log_order and not self._open:
            return (record for record in self._committed.values() if record.value is not None)
        pending = (record for records in self._open.values() for record in records.values())
        kept = [record for record in self._committed.values() if record.value is not None]
        return iter(sorted((*kept, *pending)))


class Histories:
    """The last snapshot of each key, and the updates after it."""

    def __init__(self, codec: RecordCodec) -> None:
        self._codec = codec
        self._by_key: dict[bytes, list[LoadedRecord]] = {}

    def collect(self, chunk: Buffer) -> int:
        """Take in a chunk of whole batches; the offset after them."""
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
    """Where the last snapshot of each key stands. Nothing before the first of them counts."""

    def __init__(self, codec: RecordCodec) -> None:
        self._codec = codec
        self._offsets: dict[bytes, int] = {}

    def note(self, key: bytes, value: bytes | None, offset: int) -> None:
        """A record is replayed."""
        if self._codec.is_update(key):
            return
        if value is None:
            self._offsets.pop(self._codec.subject(key), None)
        else:
            self._offsets[self._codec.subject(key)] = offset

    def first(self, otherwise: int) -> int:
        return min(self._offsets.values(), default=otherwise)
