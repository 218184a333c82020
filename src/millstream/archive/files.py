"""Data files of the archive: written from batches, read back as rows or batches.

A file holds the rows of `rows.py`, sorted by offset, in row groups of at most 16 MB, compressed
with zstd. Its footer has the topic, its id, the partition, the range of offsets, the aborted
transactions in it and the SHA-256 of the batches that it was written from.

Imports pyarrow.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.archive.manifest import (
    NO_TIMESTAMP,
    ArchivedFile,
    ArchiveError,
    file_name,
    partition_path,
)
from millstream.archive.places import Output, Place
from millstream.archive.rows import SCHEMA, Aborted, row_groups
from millstream.archive.typed import Extension, extension_fields
from millstream.records.batch import Buffer

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

FOOTER = "millstream"
_PLAIN_COLUMNS = ("value",)  # large and seldom repeated: no dictionary
_DELTA_COLUMNS = ("offset", "timestamp", "batch_offset", "batch_last_offset")
_DICTIONARY_COLUMNS = [
    name for name in SCHEMA.names if name not in (*_PLAIN_COLUMNS, *_DELTA_COLUMNS, "headers")
] + ["headers.list.element.key"]


class Range(NamedTuple):
    """What a file is written from."""

    topic: str
    topic_id: UUID
    partition: int
    first_offset: int
    end_offset: int
    leader_epoch: int  # of the leader that writes it
    aborted: tuple[Aborted, ...] = ()
    version: str = ""  # of a file that is written again
    archived_ms: int = NO_TIMESTAMP
    last_epoch: int | None = None  # of the last offset; None: that of the last record


def write_file(
    place: Place,
    wanted: Range,
    chunks: Iterable[Buffer],
    extension: Extension | None = None,
    *,
    compression_level: int = 3,
) -> ArchivedFile:
    """Archive whole batches, with more columns by the extension. Raises `ArchiveError` and
    `CorruptBatch`; then there is no file, or one that no manifest lists."""
    name = file_name(wanted.first_offset, wanted.end_offset, wanted.leader_epoch, wanted.version)
    path = f"{partition_path(wanted.topic, wanted.topic_id, wanted.partition)}/{name}"
    source = _Source(chunks)
    with place.create(path) as output:
        hashing = _Hashing(output)
        totals = _write_rows(hashing, wanted, source, extension, compression_level)
    stored = place.size(path)
    if stored != hashing.size_bytes:
        raise ArchiveError(
            f"{place.path_of(path)} has {stored} bytes after {hashing.size_bytes} were written"
        )
    return ArchivedFile(
        name=name,
        base_offset=wanted.first_offset,
        end_offset=wanted.end_offset,
        records=totals.records,
        size_bytes=hashing.size_bytes,
        segment_bytes=source.size_bytes,
        min_timestamp=totals.min_timestamp,
        max_timestamp=totals.max_timestamp,
        last_epoch=totals.last_epoch if wanted.last_epoch is None else wanted.last_epoch,
        sha256=hashing.digest.hexdigest(),
        source_sha256=source.digest.hexdigest(),
        archived_ms=wanted.archived_ms,
        columns="" if extension is None else extension.text,
        key_columns="" if extension is None else extension.key_text,
    )


class _Totals:
    records = 0
    min_timestamp = NO_TIMESTAMP
    max_timestamp = NO_TIMESTAMP
    last_epoch = -1

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        moments = rows.column("timestamp").cast(pa.int64())
        extremes = pa.compute.min_max(moments).as_py()
        if self.records == 0 or extremes["min"] < self.min_timestamp:
            self.min_timestamp = extremes["min"]
        self.max_timestamp = max(self.max_timestamp, extremes["max"])
        self.records += rows.num_rows
        self.last_epoch = rows.column("leader_epoch")[rows.num_rows - 1].as_py()


def _write_rows(
    output: _Hashing,
    wanted: Range,
    source: _Source,
    extension: Extension | None,
    compression_level: int,
) -> _Totals:
    totals = _Totals()
    more = [] if extension is None else extension_fields(extension.text, extension.key_text)
    footer = {FOOTER: json.dumps(_footer(wanted))}
    schema = pa.schema([*SCHEMA, *more]).with_metadata(footer)
    flat = [it.name for it in more if not pa.types.is_nested(it.type)]
    writer = pq.ParquetWriter(
        pa.PythonFile(output, mode="w"),
        schema,
        compression="zstd",
        compression_level=compression_level,
        use_dictionary=[*_DICTIONARY_COLUMNS, *flat],
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        sorting_columns=[pq.SortingColumn(SCHEMA.names.index("offset"))],
        write_page_index=True,
        write_page_checksum=True,
    )
    groups = row_groups(
        source,
        first_offset=wanted.first_offset,
        end_offset=wanted.end_offset,
        aborted=wanted.aborted,
    )
    for rows in groups:
        if extension is not None:
            arrays = [*rows.columns, *extension.arrays(rows)]
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        writer.write_batch(rows, row_group_size=max(rows.num_rows, 1))
        totals.add(rows)
    writer.add_key_value_metadata({"millstream.source.sha256": source.digest.hexdigest()})
    writer.close()
    return totals


def _footer(wanted: Range) -> dict[str, Any]:
    return {
        "topic": wanted.topic,
        "topic_id": str(wanted.topic_id),
        "partition": wanted.partition,
        "base_offset": wanted.first_offset,
        "end_offset": wanted.end_offset,
        "aborted": [list(each) for each in wanted.aborted],
    }


class _Source:
    """Counts and hashes what is archived."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        for chunk in self._chunks:
            self.digest.update(chunk)
            self.size_bytes += len(chunk)
            yield chunk


class _Hashing:
    """A file that hashes what is written to it, for pyarrow."""

    closed = False

    def __init__(self, output: Output) -> None:
        self._output = output
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, content: AnyBuffer) -> int:
        view = memoryview(content)
        self._output.write(view)
        self.digest.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """`Place.create` syncs."""

    def tell(self) -> int:
        return self.size_bytes

    def close(self) -> None:
        """`Place.create` closes."""


# Reading


class DataFile:
    """An open data file. Safe in several threads."""

    def __init__(self, place: Place, directory: str, entry: ArchivedFile) -> None:
        """Raises `ArchiveError` if it is missing or is not the file that the manifest lists."""
        self.entry = entry
        # Two threads that read one `ParquetFile` at the same time can wait for ever.
        self._lock = threading.Lock()
        path = f"{directory}/{entry.name}"
        self.where = place.path_of(path)
        try:
            self._file = pq.ParquetFile(
                place.open(path), page_checksum_verification=True, pre_buffer=True
            )
            footer = json.loads(self._file.schema_arrow.metadata[FOOTER.encode()])
        except FileNotFoundError:
            raise ArchiveError(f"{self.where} is missing, and the manifest lists it") from None
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{self.where} is damaged: {error}") from error
        if (footer["base_offset"], footer["end_offset"]) != (entry.base_offset, entry.end_offset):
            raise ArchiveError(f"{self.where} has other offsets than the manifest")
        self.topic_id = UUID(footer["topic_id"])
        self.aborted = tuple(Aborted(*each) for each in footer["aborted"])
        metadata = self._file.metadata
        self._bounds = [_bounds_of(metadata, number) for number in range(metadata.num_row_groups)]

    def close(self) -> None:
        self._file.close()

    @property
    def group_count(self) -> int:
        return len(self._bounds)

    def group_for(self, offset: int) -> int | None:
        """The first row group with records from that offset on."""
        return next(
            (number for number, bounds in enumerate(self._bounds) if bounds.last_offset >= offset),
            None,
        )

    def groups(
        self, first_offset: int, end_offset: int, from_ms: int | None, until_ms: int | None
    ) -> list[int]:
        """The row groups that can have such records."""
        return [
            number
            for number, bounds in enumerate(self._bounds)
            if bounds.last_offset >= first_offset
            and bounds.first_offset < end_offset
            and (from_ms is None or bounds.last_ms >= from_ms)
            and (until_ms is None or bounds.first_ms < until_ms)
        ]

    def read_group(self, number: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Those of the columns that it has; by default, those that all files have. Raises
        `ArchiveError`."""
        has = self._file.schema_arrow.names
        wanted = SCHEMA.names if columns is None else [it for it in columns if it in has]
        try:
            with self._lock:
                table = self._file.read_row_group(number, columns=wanted)
            batches = table.combine_chunks().to_batches()
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"{self.where} is damaged or cannot be read: {error}") from error
        if len(batches) == 1:
            return batches[0]
        return pa.RecordBatch.from_pylist([], schema=table.schema)


class _Bounds(NamedTuple):
    first_offset: int
    last_offset: int
    first_ms: int
    last_ms: int


def _bounds_of(metadata: Any, number: int) -> _Bounds:
    group = metadata.row_group(number)
    columns = {group.column(i).path_in_schema: group.column(i) for i in (0, 1)}
    offsets = columns["offset"].statistics
    moments = columns["timestamp"].statistics
    return _Bounds(offsets.min_raw, offsets.max_raw, moments.min_raw, moments.max_raw)
