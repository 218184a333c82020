"""Record batches as rows of Parquet, and back.

A row is a record, control records included; what belongs to its batch is repeated in every row of
it, which costs next to nothing in Parquet. From the rows, batches are rebuilt that give consumers
the same records: offsets, timestamps, keys, values, headers, producers, transactions and markers.
They are not compressed again, and batches that compaction emptied are not there.

Imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.records._columns import BinaryColumn, ColumnBuilder, HeaderColumn, RowEncoder
from millstream.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE_BYTES,
    MAGIC_V2,
    BatchHeader,
    Buffer,
    iterate_headers,
    verify_crc,
)
from millstream.records.compression import compress, decompress
from millstream.records.record import assemble_batch

_HEADER = pa.struct([pa.field("key", pa.binary(), nullable=False), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),  # 0 create time, 1 log append time
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS, nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("base_sequence", pa.int32(), nullable=False),
        pa.field("is_transactional", pa.bool_(), nullable=False),
        pa.field("is_control", pa.bool_(), nullable=False),
        pa.field("is_aborted", pa.bool_(), nullable=False),
        pa.field("batch_offset", pa.int64(), nullable=False),
        pa.field("batch_last_offset", pa.int64(), nullable=False),
        pa.field("batch_timestamp", pa.int64(), nullable=False),
        pa.field("batch_max_timestamp", pa.int64(), nullable=False),
        pa.field("attributes", pa.int16(), nullable=False),
    ]
)
# Of the batch, in the order of their columns.
_BATCH_FIELDS = tuple(SCHEMA.names[SCHEMA.names.index("leader_epoch") :])

# Of one row group. A consumer that reads old offsets has one of them in memory.
GROUP_BYTES_MAX = 16 * 1024 * 1024
GROUP_ROWS_MAX = 131_072


class Aborted(NamedTuple):
    """The records of `producer_id` in [first_offset, last_offset] were aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class _Section(NamedTuple):
    """A batch, with its records uncompressed."""

    header: BatchHeader
    records: Buffer


def row_groups(
    chunks: Iterable[Buffer], *, first_offset: int, end_offset: int, aborted: Sequence[Aborted]
) -> Iterator[pa.RecordBatch]:
    """The records of whole batches, in groups of rows. Raises `CorruptBatch`."""
    intervals = _intervals(aborted)
    sections: list[_Section] = []
    size = rows = 0
    for chunk in chunks:
        view = memoryview(chunk)
        for position, header in iterate_headers(view):
            if header.next_offset <= first_offset:
                continue
            if header.base_offset >= end_offset:
                break
            verify_crc(view, position, header)
            if not header.record_count:
                continue
            start, end = position + HEADER_SIZE_BYTES, position + header.size_bytes
            records = decompress(view[start:end], header.compression)
            full = size + len(records) > GROUP_BYTES_MAX
            if sections and (full or rows + header.record_count > GROUP_ROWS_MAX):
                yield _to_rows(sections, size, first_offset, end_offset, intervals)
                sections, size, rows = [], 0, 0
            sections.append(_Section(header, records))
            size += len(records)
            rows += header.record_count
    if sections:
        yield _to_rows(sections, size, first_offset, end_offset, intervals)


def _intervals(aborted: Sequence[Aborted]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        found.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    return found


def _to_rows(
    sections: list[_Section],
    size: int,
    first_offset: int,
    end_offset: int,
    aborted: dict[int, list[tuple[int, int]]],
) -> pa.RecordBatch:
    # A record has at least 7 bytes, which bounds the allocation for a wrong count.
    room = sum(min(header.record_count, len(records)) for header, records in sections)
    builder = ColumnBuilder(room, size, True)
    ends, batches = [], []
    for header, records in sections:
        before = len(builder)
        builder.add(records, 0, len(records), header, first_offset, end_offset)
        if len(builder) > before:
            ends.append(len(builder))
            batches.append(_batch_fields(header, aborted))
    count, offsets, timestamps, types, keys, values, headers = builder.take()
    assert headers is not None
    run_ends = pa.array(ends, pa.int32())
    columns = [
        pa.Array.from_buffers(SCHEMA.field("offset").type, count, [None, pa.py_buffer(offsets)]),
        pa.Array.from_buffers(
            SCHEMA.field("timestamp").type, count, [None, pa.py_buffer(timestamps)]
        ),
        pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(types)]),
        _binary(keys, count),
        _binary(values, count),
        _headers(headers, count),
    ]
    for number, name in enumerate(_BATCH_FIELDS):
        kind = SCHEMA.field(name).type
        each = pa.array([fields[number] for fields in batches], kind)
        columns.append(pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, each)))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _batch_fields(
    header: BatchHeader, aborted: dict[int, list[tuple[int, int]]]
) -> tuple[int | bool, ...]:
    is_aborted = False
    if aborted and header.is_transactional and not header.is_control:
        intervals = aborted.get(header.producer_id, ())
        is_aborted = any(first <= header.base_offset <= last for first, last in intervals)
    return (
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
        header.is_control,
        is_aborted,
        header.base_offset,
        header.last_offset,
        header.base_timestamp,
        header.max_timestamp,
        header.attributes,
    )


def _binary(taken: tuple[int, Any, Any, Any], count: int) -> pa.Array:
    null_count, validity, offsets, data = taken
    bits = None if validity is None else pa.py_buffer(validity)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count)


def _headers(taken: tuple[Any, Any, Any], count: int) -> pa.Array:
    lists, names, values = taken
    total = len(names[2]) // 4 - 1
    pairs = pa.StructArray.from_arrays(
        [_binary(names, total), _binary(values, total)], fields=list(_HEADER)
    )
    return pa.Array.from_buffers(_HEADERS, count, [None, pa.py_buffer(lists)], 0, children=[pairs])


# Back


def rebuild(
    rows: pa.RecordBatch, *, recompress: bool = False
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of which the rows are all rows, each with its header before it got its length
    and CRC; with `recompress`, in the compression that they had."""
    count = rows.num_rows
    if not count:
        return
    runs = pc.run_end_encode(rows.column("batch_offset"), run_end_type=pa.int64())
    starts = pa.concat_arrays([pa.array([0], pa.int64()), runs.run_ends])
    firsts = starts.slice(0, len(runs.run_ends))
    fields = {name: rows.column(name).take(firsts) for name in _BATCH_FIELDS}
    timestamps = rows.column("timestamp").cast(pa.int64())
    encoder = RowEncoder(
        _memory(timestamps),
        _binary_column(rows.column("key")),
        _binary_column(rows.column("value")),
        _header_column(rows.column("headers")),
    )
    records, ends = encoder.encode_stored(
        _memory(rows.column("offset")),
        _memory(starts),
        _memory(fields["batch_offset"]),
        _memory(fields["batch_timestamp"]),
    )
    counts = pc.subtract(starts.slice(1), firsts).to_pylist()
    lists = [fields[name].to_pylist() for name in _BATCH_FIELDS]
    view, start = memoryview(records), 0
    for record_count, end, *batch in zip(counts, memoryview(ends).cast("q"), *lists, strict=True):
        header = _header_of(record_count, batch, recompress=recompress)
        section: Buffer = view[start:end]
        if header.attributes & COMPRESSION_MASK:
            section = compress(section, header.compression)
        yield header, assemble_batch(header, section)
        start = end


def _header_of(record_count: int, batch: list[Any], *, recompress: bool) -> BatchHeader:
    leader_epoch, producer_id, producer_epoch, base_sequence, _, _, _, base, last = batch[:9]
    base_timestamp, max_timestamp, attributes = batch[9:]
    if not recompress:
        attributes &= ~COMPRESSION_MASK
    return BatchHeader(
        base_offset=base,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - base,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def _memory(array: pa.Array) -> memoryview:
    """The values of an array of int64 without nulls."""
    buffer = array.buffers()[1]
    if buffer is None:
        return memoryview(b"")
    return memoryview(buffer)[8 * array.offset : 8 * (array.offset + len(array))]


def _binary_column(array: pa.Array) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    if not array.null_count:
        validity = None
    return BinaryColumn(len(array), array.offset, validity, offsets, data)


def _header_column(array: pa.Array) -> HeaderColumn:
    pairs = array.values  # all of them, whatever the offset of the array
    names, values = pairs.field("key"), pairs.field("value")
    if not len(pairs):
        empty = BinaryColumn(0, 0, None, b"\0\0\0\0", None)
        return HeaderColumn(len(array), array.offset, array.buffers()[1], empty, empty)
    return HeaderColumn(
        len(array),
        array.offset,
        array.buffers()[1],
        _binary_column(names),
        _binary_column(values),
    )
