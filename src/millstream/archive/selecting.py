"""Rows of a data file by offset and time: whole row groups are skipped, the rest is filtered.

Imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.archive.files import DataFile
from millstream.archive.manifest import ArchivedFile, ArchiveError
from millstream.archive.places import Place
from millstream.archive.rows import SCHEMA
from millstream.archive.typed import extension_fields, fitted, union_fields


class Selection(NamedTuple):
    """Which rows; the ends are excluded."""

    first_offset: int
    end_offset: int
    from_ms: int | None
    until_ms: int | None
    committed: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """What is needed to select them."""
        return ("offset", "timestamp", *(("is_control", "is_aborted") if self.committed else ()))


def find_fields(files: Iterable[ArchivedFile], columns: Sequence[str] | None) -> list[pa.Field]:
    """The columns of that name in these files, or all. Raises `ArchiveError` for one that none of
    them has."""
    if columns is not None and all(name in SCHEMA.names for name in columns):
        return [SCHEMA.field(name) for name in columns]
    files = tuple(files)
    known = {it.name: it for it in (*SCHEMA, *union_fields(files, columns))}
    for name in columns or ():
        if name not in known:
            texts = dict.fromkeys((it.columns, it.key_columns) for it in files)
            typed = (it.name for each in texts for it in extension_fields(*each))
            names = dict.fromkeys((*SCHEMA.names, *typed))
            raise ArchiveError(f"the archive has no column {name}; there are {', '.join(names)}")
    return [known[name] for name in (known if columns is None else columns)]


def read_file(
    place: Place,
    directory: str,
    entry: ArchivedFile,
    selection: Selection,
    fields: Sequence[pa.Field],
) -> Iterator[pa.RecordBatch]:
    """The rows with these columns. Raises `ArchiveError`."""
    needed = list(dict.fromkeys((*(it.name for it in fields), *selection.columns)))
    file = DataFile(place, directory, entry)
    try:
        first, end, from_ms, until_ms, _ = selection
        for number in file.groups(first, end, from_ms, until_ms):
            rows = _filtered(file.read_group(number, needed), selection)
            if rows.num_rows:
                yield fitted(rows, fields)
    finally:
        file.close()


def _filtered(rows: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    offsets = rows.column("offset")
    moments = rows.column("timestamp").cast(pa.int64())
    fits = pc.and_(
        pc.greater_equal(offsets, selection.first_offset), pc.less(offsets, selection.end_offset)
    )
    if selection.from_ms is not None:
        fits = pc.and_(fits, pc.greater_equal(moments, selection.from_ms))
    if selection.until_ms is not None:
        fits = pc.and_(fits, pc.less(moments, selection.until_ms))
    if selection.committed:
        hidden = pc.or_(rows.column("is_control"), rows.column("is_aborted"))
        fits = pc.and_(fits, pc.invert(hidden))
    return rows if pc.all(fits).as_py() else rows.filter(fits)
