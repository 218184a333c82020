"""The sparse indexes: their bytes, and searching in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.index import OffsetIndex, TimeIndex, search, search_count
from millstream.testing.filesystem import MemoryFileSystem

PATH = "/data/00000000000000000050.index"


def make_fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    return fs


def read(fs: MemoryFileSystem, path: str = PATH) -> bytes:
    fd = fs.open(path)
    return fs.pread(fd, fs.size(fd), 0)


def test_offset_index_is_saved_in_kafkas_format() -> None:
    """Base offset 50: a batch that ends with 55 and begins at byte 4200 is (5, 4200)."""
    fs = make_fs()
    index = OffsetIndex(PATH)
    index.append(5, 4200)
    index.save(fs)
    assert read(fs) == bytes.fromhex("00000005 00001068")


def test_time_index_is_saved_in_kafkas_format() -> None:
    fs = make_fs()
    index = TimeIndex(PATH)
    index.append(1_700_000_000_000, 5)
    index.save(fs)
    assert read(fs) == (1_700_000_000_000).to_bytes(8) + (5).to_bytes(4)


def test_index_saves_only_what_is_new() -> None:
    fs = make_fs()
    index = OffsetIndex(PATH)
    index.append(1, 100)
    index.save(fs)
    index.append(2, 200)
    fs.operations.clear()
    index.save(fs)
    assert [(op.name, op.position, op.size) for op in fs.operations] == [("write", 8, 8)]
    loaded = OffsetIndex(PATH)
    loaded.load(fs)
    assert [loaded[0], loaded[1]] == [(1, 100), (2, 200)]


def test_index_drops_odd_bytes_when_loaded_and_from_the_file_when_saved() -> None:
    fs = make_fs()
    fd = fs.open(PATH, create=True)
    fs.pwritev(fd, [bytes.fromhex("00000005 00001068 0000")], 0)
    index = OffsetIndex(PATH)
    index.load(fs)
    assert len(index) == 1
    index.save(fs)
    assert len(read(fs)) == 8


def test_index_truncates_memory_and_file() -> None:
    fs = make_fs()
    index = OffsetIndex(PATH)
    for number in range(5):
        index.append(number, number * 100)
    index.save(fs)
    index.truncate(2)
    index.append(9, 900)
    index.save(fs)
    assert read(fs) == bytes.fromhex("00000000 00000000 00000001 00000064 00000009 00000384")


def test_index_notices_entries_out_of_order() -> None:
    index = OffsetIndex(PATH)
    index.append(1, 100)
    index.append(2, 200)
    assert index.is_sorted()
    index.append(2, 300)
    assert not index.is_sorted()


def test_missing_index_loads_as_empty() -> None:
    index = OffsetIndex(PATH)
    index.load(make_fs())
    assert len(index) == 0
    assert index.last is None


@given(st.sets(st.integers(0, 1000), max_size=60), st.integers(-1, 1001))
def test_search_finds_the_last_entry_at_or_below(keys: set[int], target: int) -> None:
    index = OffsetIndex(PATH)
    for key in sorted(keys):
        index.append(key, key * 10)
    below = [key for key in sorted(keys) if key <= target]
    expected = (below[-1], below[-1] * 10) if below else None
    assert index.floor(target) == expected
    assert index.floor(target * 10, field=1) == expected
    assert search_count(index, target, 0) == len(below)
    assert search(index.entry, index.read_memory, len(index), target, 0) == len(below) - 1
