"""Writes a data file of the archive again, without the records at given offsets.

Imports pyarrow.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from millstream.archive.files import DataFile, Range, write_file
from millstream.archive.manifest import ArchivedFile, Manifest, partition_path
from millstream.archive.places import Place
from millstream.archive.rows import rebuild
from millstream.archive.typed import extension_fields
from millstream.config.excised import ExcisedOffsets
from millstream.records.record import decode_batch, keep_records


def excise_file(
    place: Place, manifest: Manifest, file: ArchivedFile, offsets: ExcisedOffsets
) -> ArchivedFile | None:
    """The new file, which no manifest lists yet; None if the old one has no such records. Raises
    `ArchiveError`."""
    directory = partition_path(manifest.topic, manifest.topic_id, manifest.partition)
    old = DataFile(place, directory, file)
    try:
        if not _has_any(old, offsets):
            return None
        wanted = Range(
            topic=manifest.topic,
            topic_id=manifest.topic_id,
            partition=manifest.partition,
            first_offset=file.base_offset,
            end_offset=file.end_offset,
            leader_epoch=manifest.leader_epoch,
            aborted=old.aborted,
            version=f"x{secrets.token_hex(4)}",
            archived_ms=file.archived_ms,
            last_epoch=file.last_epoch,
        )
        carried = Carried(old) if file.columns or file.key_columns else None
        written = write_file(place, wanted, _batches(old, offsets), carried)
    finally:
        old.close()
    # What a file stands for in the log does not change with its records.
    return replace(written, segment_bytes=file.segment_bytes)


class Carried:
    """An `Extension`: what another file has for the same offsets. Whatever has decoded it need not
    be there any more."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self.text, self.key_text = file.entry.columns, file.entry.key_columns
        self._names = [it.name for it in extension_fields(self.text, self.key_text)]

    def arrays(self, rows: pa.RecordBatch) -> list[pa.Array]:
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[rows.num_rows - 1].as_py()
        groups = self._file.groups(first, last + 1, None, None)
        names = ["offset", *self._names]
        old = pa.Table.from_batches([self._file.read_group(each, names) for each in groups])
        places = pc.index_in(offsets, old.column("offset").combine_chunks())
        taken = old.take(places).combine_chunks()
        return [taken.column(name).combine_chunks() for name in self._names]


def _has_any(file: DataFile, offsets: ExcisedOffsets) -> bool:
    for number in range(file.group_count):
        columns = ["offset", "leader_epoch", "is_control"]
        rows = file.read_group(number, columns)
        values = (rows.column(name).to_pylist() for name in columns)
        for offset, epoch, is_control in zip(*values, strict=True):
            if not is_control and offsets.removes(offset, epoch):
                return True
    return False


def _batches(file: DataFile, offsets: ExcisedOffsets) -> Iterator[bytes]:
    """Those that have records left."""
    for number in range(file.group_count):
        for header, batch in rebuild(file.read_group(number), recompress=True):
            if header.is_control or not offsets.ranges.overlaps(
                header.base_offset, header.last_offset
            ):
                yield batch
                continue
            epoch = header.leader_epoch
            kept = [it for it in decode_batch(batch) if not offsets.removes(it.offset, epoch)]
            if kept:
                yield keep_records(header, kept)
