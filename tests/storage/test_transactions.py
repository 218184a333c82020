"""The index of aborted transactions."""

from __future__ import annotations

import pytest

from millstream.errors import CorruptIndex
from millstream.storage.filesystem import read_file, write_file
from millstream.storage.transactions import AbortedTransaction, TransactionIndex
from millstream.testing.filesystem import MemoryFileSystem

PATH = "/data/00000000000000000000.txnindex"
FIRST = AbortedTransaction(7, 10, 20, 10)
SECOND = AbortedTransaction(8, 15, 40, 30)


def make_index() -> tuple[MemoryFileSystem, TransactionIndex]:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    index = TransactionIndex(PATH)
    index.append(fs, FIRST)
    index.append(fs, SECOND)
    return fs, index


def test_index_is_written_in_kafkas_format() -> None:
    fs, _ = make_index()
    content = read_file(fs, PATH)
    assert len(content) == 68
    assert content[:34] == bytes(2) + b"".join(field.to_bytes(8) for field in FIRST)


def test_index_reads_back_what_was_aborted() -> None:
    fs, index = make_index()
    assert index.read(fs) == [FIRST, SECOND]


def test_overlapping_finds_what_concerns_a_read() -> None:
    fs, index = make_index()
    assert index.overlapping(fs, 0, 10) == []
    assert index.overlapping(fs, 0, 11) == [FIRST]
    assert index.overlapping(fs, 20, 21) == [FIRST, SECOND]
    assert index.overlapping(fs, 21, 100) == [SECOND]


def test_truncation_forgets_markers_from_the_offset_on() -> None:
    fs, index = make_index()
    index.truncate(fs, 40)
    assert index.read(fs) == [FIRST]


def test_missing_index_means_no_aborts() -> None:
    assert TransactionIndex(PATH).read(MemoryFileSystem()) == []


def test_index_of_odd_size_is_corrupt() -> None:
    fs, index = make_index()
    write_file(fs, PATH, read_file(fs, PATH)[:-1], sync=False)
    with pytest.raises(CorruptIndex, match="67 bytes"):
        index.read(fs)
