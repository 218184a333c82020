"""Rows are left out as a read-committed consumer leaves them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.archive.manifest import ArchiveError
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.rows import SCHEMA
from millstream.archive.service import ArchiveService, Source
from tests.archive.scenes import all_kinds, archived, new_manifest


def test_aborted_and_control_records_are_left_out(tmp_path: Path) -> None:
    data, end, (aborted,) = all_kinds()
    place = open_place(str(tmp_path))
    ArchiveService(place).write(new_manifest(), end, (aborted,), Source(0, [data]))
    part = open_archive(str(tmp_path)).topic("orders").partitions[0]
    (everything,) = part.read(committed=False)
    assert everything.schema.names == SCHEMA.names
    (committed,) = part.read(columns=["value", "offset"])
    assert committed.schema.names == ["value", "offset"]
    hidden = set(everything.column("offset").to_pylist()) - set(
        committed.column("offset").to_pylist()
    )
    first, last = aborted.first_offset, aborted.last_offset
    assert hidden == {first - 1, *range(first, last + 1)}


def test_unknown_column_is_named(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    part = open_archive(str(tmp_path)).topic("orders").partitions[0]
    with pytest.raises(ArchiveError, match="no column price"):
        list(part.read(columns=["price"]))
