"""Leader epochs: assigned, cut at both ends, and asked where they ended."""

from __future__ import annotations

from millstream.storage.epochs import LeaderEpochs
from millstream.storage.filesystem import SyncBatch, read_file
from millstream.testing.filesystem import MemoryFileSystem


def make_epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs("/data/t-0")
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


def test_epochs_are_saved_in_kafkas_format_and_loaded() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/t-0")
    epochs = make_epochs((0, 0), (3, 120))
    batch = SyncBatch(fs, "/data")
    epochs.save(batch)
    batch.commit()
    assert read_file(fs, "/data/t-0/leader-epoch-checkpoint") == b"0\n2\n0 0\n3 120\n"
    loaded = LeaderEpochs("/data/t-0")
    loaded.load(fs)
    assert loaded.entries == ((0, 0), (3, 120))
    assert loaded.latest == 3


def test_assign_ignores_an_epoch_that_is_not_newer() -> None:
    epochs = make_epochs((2, 10), (2, 20), (1, 30))
    assert epochs.entries == ((2, 10),)


def test_assign_removes_epochs_that_began_later() -> None:
    assert make_epochs((0, 0), (1, 50), (2, 30)).entries == ((0, 0), (2, 30))


def test_end_offset_is_the_start_of_the_next_epoch() -> None:
    epochs = make_epochs((1, 10), (3, 50), (4, 80))
    log_end = 100
    assert epochs.end_offset_for(1, log_end) == (1, 50)
    assert epochs.end_offset_for(2, log_end) == (1, 50)
    assert epochs.end_offset_for(3, log_end) == (3, 80)
    assert epochs.end_offset_for(4, log_end) == (4, 100)


def test_end_offset_is_unknown_for_what_is_not_known() -> None:
    epochs = make_epochs((1, 10), (3, 50))
    assert epochs.end_offset_for(5, 100) == (-1, -1)
    assert epochs.end_offset_for(-1, 100) == (-1, -1)
    assert make_epochs().end_offset_for(0, 100) == (-1, -1)
    # Older than the earliest: nothing of it is left, its end is where the earliest begins.
    assert epochs.end_offset_for(0, 100) == (0, 10)


def test_truncation_from_the_end_forgets_epochs_that_began_there() -> None:
    epochs = make_epochs((0, 0), (1, 50), (2, 80))
    epochs.truncate_from_end(80)
    assert epochs.entries == ((0, 0), (1, 50))
    assert epochs.latest == 1


def test_truncation_from_the_start_moves_the_epoch_that_covers_it() -> None:
    epochs = make_epochs((0, 0), (1, 50), (2, 80))
    epochs.truncate_from_start(60)
    assert epochs.entries == ((1, 60), (2, 80))
    epochs.truncate_from_start(60)
    assert epochs.entries == ((1, 60), (2, 80))


def test_truncation_from_the_start_before_all_epochs_changes_nothing() -> None:
    epochs = make_epochs((1, 50))
    epochs.dirty = False
    epochs.truncate_from_start(20)
    assert epochs.entries == ((1, 50),)
    assert not epochs.dirty


def test_epoch_of_an_offset_is_the_last_that_began_before() -> None:
    epochs = make_epochs((0, 10), (2, 50))
    assert [epochs.epoch_of(offset) for offset in (5, 10, 49, 50, 99)] == [-1, 0, 0, 2, 2]
