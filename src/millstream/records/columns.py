"""Codec between record batches and columns, for readers and writers of many records.

`decode_columns` turns fetched batches into the buffers of Arrow arrays, `encode_batches`
turns rows of such arrays into batches. Both go through compiled code (`_columns.pyx`); a record
never becomes a Python object. Nothing here imports pyarrow: buffers are passed as they are.

Reading skips control batches, records outside the requested range, and, for a read-committed
reader, aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.records._columns import (
    BinaryColumn,
    ColumnBuilder,
    HeaderColumn,
    Memory,
    RowEncoder,
    partitions_of,
    rows_by_partition,
)
from millstream.records.batch import (
    HEADER_SIZE_BYTES,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    iterate_headers,
    verify_crc,
)
from millstream.records.compression import Compression, compress, decompress
from millstream.records.record import ControlType, assemble_batch, decode_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

__all__ = [
    "AbortedRange",
    "BinaryBuffers",
    "BinaryColumn",
    "Columns",
    "HeaderBuffers",
    "HeaderColumn",
    "ProducerIdentity",
    "RowEncoder",
    "decode_columns",
    "encode_batches",
    "partitions_of",
    "rows_by_partition",
]

# What int32 offsets of one column can reach. A fetch is far smaller, but may be well compressed.
COLUMN_BYTES_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1


class BinaryBuffers(NamedTuple):
    """The buffers of an Arrow array of binary values."""

    null_count: int
    validity: Memory | None  # None where nothing is null
    offsets: Memory  # int32
    data: Memory


class HeaderBuffers(NamedTuple):
    """The buffers of an Arrow array of lists of (name, value)."""

    offsets: Memory  # int32
    names: BinaryBuffers
    values: BinaryBuffers


class Columns(NamedTuple):
    """Records as columns, and the offset at which to continue."""

    row_count: int
    offsets: Memory  # int64
    timestamps: Memory  # int64, milliseconds
    timestamp_types: Memory  # uint8: 0 create time, 1 log append time
    keys: BinaryBuffers
    values: BinaryBuffers
    headers: HeaderBuffers | None
    next_offset: int  # after the last whole batch that is in it


class AbortedRange(NamedTuple):
    """An aborted transaction, as a Fetch response names it: it ends with its producer's marker."""

    producer_id: int
    first_offset: int


class ProducerIdentity(NamedTuple):
    """The producer of a batch; the defaults are a producer that is not idempotent."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False


def decode_columns(
    fetched: Buffer,
    *,
    first_offset: int = 0,
    end_offset: int = OFFSET_MAX,
    aborted: Sequence[AbortedRange] = (),
    with_headers: bool = False,
) -> Columns:
    """The records of all whole batches in `fetched` whose offset is in the range; of as many as
    columns can hold, and the others from `next_offset` on.

    Raises `CorruptBatch` for damaged bytes: nothing of them is returned.
    """
    sections: list[tuple[Buffer, BatchHeader]] = []
    size = 0
    next_offset = first_offset
    view = memoryview(fetched)
    for position, header in _visible(view, end_offset, aborted):
        has_records = header.record_count > 0 and not header.is_control
        if has_records and header.next_offset > first_offset:
            compressed = view[position + HEADER_SIZE_BYTES : position + header.size_bytes]
            section = decompress(compressed, header.compression)
            if sections and size + len(section) > COLUMN_BYTES_MAX:
                break
            size += len(section)
            sections.append((section, header))
        next_offset = max(next_offset, header.next_offset)
    # A record has at least 7 bytes, which bounds the allocation for a wrong count.
    records_max = sum(min(header.record_count, len(section)) for section, header in sections)
    builder = ColumnBuilder(records_max, size, with_headers)
    for section, header in sections:
        builder.add(section, 0, len(section), header, first_offset, end_offset)
    count, offsets, timestamps, types, keys, values, headers = builder.take()
    return Columns(
        count,
        offsets,
        timestamps,
        types,
        BinaryBuffers(*keys),
        BinaryBuffers(*values),
        None if headers is None else _header_buffers(*headers),
        min(next_offset, end_offset),
    )


def _header_buffers(
    offsets: Memory,
    names: tuple[int, Memory | None, Memory, Memory],
    values: tuple[int, Memory | None, Memory, Memory],
) -> HeaderBuffers:
    return HeaderBuffers(offsets, BinaryBuffers(*names), BinaryBuffers(*values))


def _visible(
    view: memoryview, end_offset: int, aborted: Sequence[AbortedRange]
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches below `end_offset`, those of aborted transactions reported as empty.

    A transaction is aborted from its first offset on until its producer's abort marker.
    """
    to_come = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    open_aborts: set[int] = set()
    for position, header in iterate_headers(view):
        if header.base_offset >= end_offset:
            return
        verify_crc(view, position, header)
        while to_come and to_come[-1].first_offset <= header.last_offset:
            open_aborts.add(to_come.pop().producer_id)
        if header.is_control:
            if header.producer_id in open_aborts and _is_abort(view, position):
                open_aborts.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in open_aborts:
            header = header._replace(record_count=0)
        yield position, header


def _is_abort(view: memoryview, position: int) -> bool:
    records = decode_batch(view, position)  # none, if compaction has emptied it
    return bool(records) and ControlType.from_key(records[0].key) is ControlType.ABORT


def encode_batches(
    encoder: RowEncoder,
    rows: AnyBuffer,
    *,
    batch_bytes_max: int,
    compression: Compression = Compression.NONE,
    producer: ProducerIdentity | None = None,
) -> Iterator[tuple[bytes, int]]:
    """Batches of these rows (int64 numbers), in order, each with its number of records.

    The sequence continues from batch to batch; the broker sets base offsets.
    """
    identity = producer or ProducerIdentity()
    sequence = identity.base_sequence
    position, total = 0, len(memoryview(rows).cast("B")) // 8
    while position < total:
        records, count, first_timestamp, max_timestamp = encoder.encode(
            rows, position, batch_bytes_max
        )
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC_V2,
            crc=0,
            attributes=compression | (TRANSACTIONAL_FLAG if identity.is_transactional else 0),
            last_offset_delta=count - 1,
            base_timestamp=first_timestamp,
            max_timestamp=max_timestamp,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            record_count=count,
        )
        payload: Buffer = memoryview(records)
        if compression is not Compression.NONE:
            payload = compress(payload, compression)
        yield assemble_batch(header, payload), count
        position += count
        if sequence != NO_SEQUENCE:
            sequence = (sequence + count) & 0x7FFFFFFF
