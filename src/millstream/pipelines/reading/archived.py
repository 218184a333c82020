"""Ranges of offsets from an archive instead of from the brokers: the option `archive`.

Brokers serve archived offsets, so that a reader needs no archive. With the option, tasks read the
files themselves: from a bucket with all their bandwidth, and only the columns that are needed. The
rest of a range comes from the brokers, from the offset on at which the archive ends: each record
comes once, however the archive grows meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.archive.manifest import ArchiveError
from millstream.archive.reading import PartitionArchive, open_archive
from millstream.records.columns import BinaryBuffers, Columns, HeaderBuffers

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.pipelines.offsets import OffsetRange
    from millstream.pipelines.reading.options import ReadOptions

_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value")
_INT32_BYTES = 4


def archived_columns(
    options: ReadOptions, wanted: OffsetRange, topic_id: UUID
) -> Generator[Columns, None, int]:
    """The archived part of a range. Returns where to continue with the brokers: also if a file is
    gone, since they know the newest manifest."""
    position = wanted.start
    try:
        part = _find(options, wanted, topic_id)
        if part is None or not part.start_offset <= position < part.end_offset:
            return position
        end = min(part.end_offset, wanted.end)
        for columns in _read(options, part, position, end):
            yield columns
            position = columns.next_offset
    except ArchiveError:
        return position
    return end


def _find(options: ReadOptions, wanted: OffsetRange, topic_id: UUID) -> PartitionArchive | None:
    assert options.archive is not None
    topic = open_archive(options.archive).topic(wanted.topic, topic_id)
    return topic.partitions.get(wanted.partition)


def _read(options: ReadOptions, part: PartitionArchive, first: int, end: int) -> Iterator[Columns]:
    names = [*_COLUMNS, *(["headers"] if options.include_headers else [])]
    for rows in part.read(first, end, columns=names, committed=options.read_committed):
        if rows.num_rows:
            yield to_columns(rows)


def to_columns(rows: pa.RecordBatch) -> Columns:
    """Rows of an archive as fetched records are."""
    count = rows.num_rows
    headers = None
    if "headers" in rows.schema.names:
        lists = _whole(rows.column("headers"))
        pairs = lists.values
        headers = HeaderBuffers(
            _sliced(lists.buffers()[1], count + 1),
            binary_buffers(pairs.field("key")),
            binary_buffers(pairs.field("value")),
        )
    timestamps = rows.column("timestamp").cast(pa.int64())
    return Columns(
        count,
        _numbers(rows.column("offset")),
        _numbers(timestamps),
        _numbers(rows.column("timestamp_type")),
        binary_buffers(rows.column("key")),
        binary_buffers(rows.column("value")),
        headers,
        rows.column("offset")[count - 1].as_py() + 1,
    )


def _whole(array: pa.Array) -> pa.Array:
    """The same without an offset into its buffers."""
    return array if array.offset == 0 else pa.concat_arrays([array, array.slice(0, 0)])


def _numbers(array: pa.Array) -> Any:
    return _whole(array).buffers()[1]


def binary_buffers(array: pa.Array) -> BinaryBuffers:
    """A binary array as fetched records have it."""
    array = _whole(array)
    validity, offsets, data = array.buffers()
    return BinaryBuffers(
        array.null_count,
        validity if array.null_count else None,
        _sliced(offsets, len(array) + 1),
        b"" if data is None else data,  # type: ignore[arg-type]
    )


def _sliced(offsets: Any, count: int) -> Any:
    """Exactly so many int32."""
    return b"\0" * _INT32_BYTES if offsets is None else offsets.slice(0, _INT32_BYTES * count)
