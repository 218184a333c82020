"""The journal file: what it holds after a crash, and how the two files take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.storage._core import ENTRY_OVERHEAD_BYTES
from millstream.storage.filesystem import read_file, write_file
from millstream.storage.journal import (
    ALLOCATED_BYTES,
    HEADER,
    DataEntry,
    Journal,
    LogId,
    read_journals,
)
from millstream.testing.filesystem import MemoryFileSystem

A = (bytes(15) + b"A", 0)
B = (bytes(15) + b"B", 3)
FIRST, SECOND = "/data/millstream-journal-0", "/data/millstream-journal-1"
ENTRY_BYTES = ENTRY_OVERHEAD_BYTES + len(b"batch")


def make_journal(bytes_max: int = 10_000) -> tuple[MemoryFileSystem, Journal]:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    journal = Journal(fs, "/data", bytes_max=bytes_max)
    journal.start()
    return fs, journal


def entry(log_id: LogId, position: int, data: bytes = b"batch") -> DataEntry:
    return log_id, 7, position, data


def found(fs: MemoryFileSystem) -> list[tuple[tuple[bytes, int], int, int, bytes]]:
    return [
        (each.log_id, each.base_offset, each.position, bytes(each.data or b""))
        for each in read_journals(fs, "/data")
    ]


def test_entries_are_durable_when_append_returns() -> None:
    fs, journal = make_journal()
    assert journal.append([entry(A, 0), entry(B, 5)], 200)
    fs.crash()
    assert found(fs) == [(A, 7, 0, b"batch"), (B, 7, 5, b"batch")]


def test_file_grows_ahead_of_its_entries() -> None:
    """A sync of bytes that are overwritten is cheaper than one of a file that grows."""
    fs, journal = make_journal()
    journal.append([entry(A, 0)], 100)
    length = fs.file_size(FIRST)
    assert length == HEADER.size + ENTRY_BYTES + ALLOCATED_BYTES
    for number in range(1, 100):
        journal.append([entry(A, number)], 100)
    assert fs.file_size(FIRST) == length
    fs.crash()
    assert len(found(fs)) == 100


def test_entries_are_durable_where_there_is_no_space_to_grow_ahead() -> None:
    fs, journal = make_journal()
    fs.fail_writes_after(HEADER.size + ENTRY_BYTES + 10)
    assert journal.append([entry(A, 0)], 100)
    fs.fail_writes_after(ENTRY_BYTES)
    assert journal.append([entry(A, 1)], 100)
    fs.crash()
    assert [position for _, _, position, _ in found(fs)] == [0, 1]


@given(st.integers(0, 300))
def test_torn_journal_gives_whole_entries_only(size: int) -> None:
    fs, journal = make_journal()
    for number in range(4):
        journal.append([entry(A, number)], 100)
    content = read_file(fs, FIRST)
    write_file(fs, FIRST, content[:size], sync=False)
    positions = [position for _, _, position, _ in found(fs)]
    assert positions == list(range(min(4, max(0, (size - HEADER.size) // ENTRY_BYTES))))


@given(st.data())
def test_flipped_byte_ends_the_journal_before_its_entry(data: st.DataObject) -> None:
    fs, journal = make_journal()
    for number in range(4):
        journal.append([entry(A, number)], 100)
    position = data.draw(st.integers(0, HEADER.size + 4 * ENTRY_BYTES - 1))
    fs.flip(FIRST, position)
    assert len(found(fs)) == max(0, (position - HEADER.size) // ENTRY_BYTES)


def test_void_entry_hides_what_came_before_it_for_its_log_only() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0), entry(B, 0)], 200)
    journal.void(A)
    journal.append([entry(A, 9)], 100)
    fs.crash()
    assert [(log_id, position) for log_id, _, position, _ in found(fs)] == [(B, 0), (A, 9)]


def test_void_of_a_log_that_is_not_mentioned_writes_nothing() -> None:
    fs, journal = make_journal()
    journal.append([entry(B, 0)], 100)
    fs.operations.clear()
    journal.void(A)
    assert fs.operations == []


def test_full_journal_turns_to_the_other_file_and_is_replayed_first() -> None:
    fs, journal = make_journal(bytes_max=300)
    journal.append([entry(A, 0)], 200)
    assert journal.full_log_ids() is None
    journal.append([entry(B, 1)], 290)
    assert journal.full_log_ids() == {A}
    assert [position for _, _, position, _ in found(fs)] == [0, 1]


def test_both_files_full_refuse_until_one_is_dropped() -> None:
    fs, journal = make_journal(bytes_max=300)
    journal.append([entry(A, 0)], 200)
    journal.append([entry(B, 1)], 290)
    assert not journal.append([entry(B, 2)], 290)
    journal.drop_full()
    assert journal.append([entry(B, 2)], 290)
    fs.crash()
    assert [position for _, _, position, _ in found(fs)] == [1, 2]


def test_entries_larger_than_a_journal_are_refused() -> None:
    _, journal = make_journal(bytes_max=300)
    assert not journal.append([entry(A, 0)], 301)


def test_full_disk_is_refused_and_the_journal_goes_on_afterwards() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0)], 100)
    fs.fail_writes_after(10)
    assert not journal.append([entry(A, 1)], 100)
    fs.heal()
    assert journal.append([entry(A, 2)], 100)
    assert [position for _, _, position, _ in found(fs)] == [0, 2]


def test_file_used_again_does_not_show_its_old_entries() -> None:
    """The file keeps its length: old entries lie beyond the new ones, with a CRC of their time."""
    fs, journal = make_journal(bytes_max=300)
    journal.append([entry(A, 0, b"x" * 100)], 200)
    journal.append([entry(B, 1)], 290)
    journal.drop_full()
    journal.append([entry(B, 2, b"y")], 290)  # back in the first file
    assert fs.file_size(FIRST) > 150
    assert [position for _, _, position, _ in found(fs)] == [1, 2]


def test_start_drops_what_was_replayed_and_generations_go_on() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0)], 100)
    again = Journal(fs, "/data")
    again.start()
    assert found(fs) == []
    again.append([entry(B, 1)], 100)
    fs.crash()
    assert [log_id for log_id, *_ in found(fs)] == [B]


def test_clean_stop_leaves_no_journal() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0)], 100)
    journal.remove()
    fs.crash()
    assert not fs.exists(FIRST)
    assert not fs.exists(SECOND)


def test_disk_that_is_full_at_the_switch_of_files_loses_no_entry() -> None:
    fs, journal = make_journal(bytes_max=1000)
    data = b"x" * 400
    assert journal.append([entry(A, 0, data)], 464)
    assert journal.append([entry(A, 1, data)], 464)
    fs.fail_writes_after(0)
    assert not journal.append([entry(A, 2, data)], 464)
    fs.fail_writes_after(None)
    journal.drop_full()
    for position in (3, 4, 5):
        assert journal.append([entry(A, position, data)], 464)
    fs.crash()
    assert [it.position for it in read_journals(fs, "/data")] == [3, 4, 5]


def test_entries_collected_before_a_void_are_refused_after_it() -> None:
    _, journal = make_journal()
    assert journal.append([entry(A, 0)], 100)
    void_count = journal.void_count
    journal.void(A)
    assert not journal.append([entry(A, 1)], 100, void_count=void_count)
    assert journal.append([entry(A, 1)], 100, void_count=journal.void_count)


def test_erased_journal_leaves_no_bytes_once_its_segments_are_synced() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0, b"secret")], 100)
    journal.erase()
    assert not journal.is_erased
    assert found(fs) == [(A, 7, 0, b"secret")]  # still needed after a crash
    journal.append([entry(B, 5)], 100)
    journal.drop_full()
    assert journal.is_erased
    assert all(b"secret" not in read_file(fs, path) for path in (FIRST, SECOND) if fs.exists(path))
    fs.crash()
    assert found(fs) == [(B, 7, 5, b"batch")]


def test_journal_whose_other_file_is_full_is_erased_in_turn() -> None:
    fs, journal = make_journal(HEADER.size + 2 * ENTRY_BYTES)
    for number in range(3):
        assert journal.append([entry(A, number)], ENTRY_BYTES)
    assert journal.full_log_ids() is not None
    journal.erase()
    journal.drop_full()
    assert not journal.is_erased
    journal.drop_full()
    assert journal.is_erased
    assert not fs.exists(FIRST)
    assert not fs.exists(SECOND)


def test_dropped_entries_are_erased_at_once() -> None:
    fs, journal = make_journal()
    journal.append([entry(A, 0, b"secret")], 100)
    restarted = Journal(fs, "/data")
    restarted.start()
    assert b"secret" in read_file(fs, FIRST)
    restarted.erase()
    assert restarted.is_erased
    assert not fs.exists(FIRST)
