"""Logs that move to another log directory, while they are used, deleted, and cut off by crashes."""

from __future__ import annotations

from random import Random
from uuid import uuid4

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, LogGone, StorageError
from millstream.records.batch import parse_header
from millstream.storage import names
from millstream.storage.log import Log
from millstream.storage.moving import LogMove, Outcome
from millstream.storage.steps import run_here
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import TOPIC, Store, apply_retention, make_batch, read_all, truncate_to

OLD, NEW = "/old", "/new"
SMALL = TopicConfig(segment_bytes=700, index_interval_bytes=150)
NAME = (TOPIC, 0)


class PowerCut(BaseException):
    """The machine is gone."""


class CutOff(MemoryFileSystem):
    """A file system whose machine loses power before its `cut_before`th change."""

    cut_before: int | None = None
    changes = 0

    def _note(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        self.changes += 1
        if self.cut_before is not None and self.changes >= self.cut_before:
            raise PowerCut
        super()._note(name, path, position, size)


def two_disks(fs: MemoryFileSystem | None = None, config: TopicConfig = SMALL) -> Store:
    """The log with 30 records, of which 5 were deleted, in the first of two directories."""
    store = Store(config=config, paths=(OLD, NEW), fs=fs)
    for number in range(30):
        store.append(b"value-%d" % number)
    assert not store.flush(0)
    store.log(0).delete_records_before(5)
    store.directories.checkpoint()
    assert store.log(0).directory.path == OLD
    return store


def begin(store: Store, path: str = NEW) -> LogMove:
    target = store.directories.find_directory(path)
    assert target is not None
    move = LogMove(store.log(0), target)
    move.begin()
    return move


def copy(move: LogMove) -> int:
    """All that is copied while the log is in use; how many pieces."""
    pieces = 0
    while piece := move.next_piece():
        move.copied(piece, move.copy(piece))
        pieces += 1
    return pieces


def finish(store: Store, move: LogMove) -> Outcome:
    outcome = run_here(move.finish(store.directories, high_watermark=30, now_ms=0))
    if outcome.deletion is not None:
        run_here(outcome.deletion.steps())
    if outcome.error is None:
        move.clean_up()
    return outcome


def move_log(store: Store, path: str = NEW) -> Log:
    move = begin(store, path)
    copy(move)
    outcome = finish(store, move)
    assert outcome.error is None
    assert outcome.log is not None
    return outcome.log


def values(store: Store) -> list[bytes | None]:
    return [record.value for record in read_all(store.log(0))]


EXPECTED = [b"value-%d" % number for number in range(5, 30)]


def test_log_is_whole_in_its_new_place() -> None:
    store = two_disks()
    moved = move_log(store)
    assert moved is store.log(0)
    assert moved.directory.path == NEW
    assert (moved.log_start_offset, moved.log_end_offset, moved.flushed_offset) == (5, 30, 30)
    assert values(store) == EXPECTED
    assert not [path for path in store.files() if path.startswith(f"{OLD}/{TOPIC}-0/")]
    assert [it.log_count for it in store.directories.directories] == [0, 1]


@pytest.mark.parametrize("end", ["restart", "kill", "crash"])
def test_log_stays_in_its_new_place(end: str) -> None:
    store = two_disks()
    move_log(store)
    store.append(b"after")
    store.flush(0)
    getattr(store, end)()
    assert store.log(0).directory.path == NEW
    assert store.log(0).log_start_offset == 5
    assert values(store) == [*EXPECTED, b"after"]
    assert not store.files(names.MOVED)


def test_log_moves_back() -> None:
    store = two_disks()
    move_log(store)
    store.append(b"there")
    move_log(store, OLD)
    store.append(b"back")
    store.flush(0)
    store.crash()
    assert store.log(0).directory.path == OLD
    assert values(store) == [*EXPECTED, b"there", b"back"]


def test_appends_go_on_while_it_is_copied() -> None:
    store = two_disks()
    move = begin(store)
    more = []
    while piece := move.next_piece():
        move.copied(piece, move.copy(piece))
        if len(more) < 40:
            more.append(b"more-%d" % len(more))
            store.append(more[-1])
    finish(store, move)
    assert values(store) == [*EXPECTED, *more]


def test_truncated_log_is_copied_again() -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    truncate_to(store.log(0), 8)
    for number in range(30):
        store.append(b"other-%d" % number, epoch=1)
    finish(store, move)
    store.flush(0)
    store.kill()
    assert values(store) == EXPECTED[:3] + [b"other-%d" % number for number in range(30)]
    assert store.log(0).end_offset_for_epoch(0) == (0, 8)


def test_segments_that_retention_takes_are_not_in_the_copy() -> None:
    store = two_disks(config=TopicConfig(segment_bytes=700, retention_bytes=1400))
    move = begin(store)
    copy(move)
    apply_retention(store.log(0), store.clock.now_ms())
    first = store.log(0).segments[0].base_offset
    assert first > 5
    finish(store, move)
    assert store.log(0).segments[0].base_offset == first
    store.kill()
    assert values(store) == [b"value-%d" % number for number in range(first, 30)]


def test_segment_that_the_cleaner_is_renaming_is_in_the_copy() -> None:
    """Between two steps of the cleaner, the files of a live segment have another suffix."""
    store = two_disks()
    move = begin(store)
    segment = store.log(0).segments[1]
    segment.change_suffix(names.SWAP_SUFFIX)
    copy(move)
    segment.change_suffix("")
    outcome = finish(store, move)
    assert outcome.error is None
    store.kill()
    assert store.log(0).directory.path == NEW
    assert values(store) == EXPECTED


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_incomplete_copy_is_not_put_to_use(damage: str) -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    path = next(path for path in store.files(".log") if path.startswith(move.path))
    if damage == "missing":
        store.fs.unlink(path)
    else:
        fd = store.fs.open(path)
        store.fs.truncate(fd, 10)
        store.fs.close(fd)
    outcome = finish(store, move)
    assert isinstance(outcome.error, StorageError)
    assert "incomplete" in str(outcome.error)
    assert outcome.log is store.log(0)
    assert store.log(0).directory.path == OLD
    assert values(store) == EXPECTED


def test_setting_that_changes_meanwhile_holds_in_the_new_place() -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    steps = move.finish(store.directories, high_watermark=30, now_ms=0)
    changed = TopicConfig(segment_bytes=700, retention_bytes=5)
    result, outcome = next(steps)(), None
    while outcome is None:
        try:
            step = steps.send(result)
        except StopIteration as end:
            outcome = end.value
        else:
            result = step()
            store.log(0).config = changed
    assert outcome.log.config is changed


def test_old_log_on_a_failed_disk_is_still_known_as_the_old_one() -> None:
    """Its disk fails before it can be deleted, and works again after the next start."""
    store = two_disks()
    move = begin(store)
    copy(move)
    outcome = run_here(move.finish(store.directories, high_watermark=30, now_ms=0))
    assert outcome.deletion is not None
    outcome.deletion.directory.fail(OSError("broken"))
    run_here(outcome.deletion.steps())
    assert not outcome.deletion.is_durable
    store.append(b"after")
    store.flush(0)
    store.kill()
    assert store.log(0).directory.path == NEW
    assert values(store) == [*EXPECTED, b"after"]


def test_producers_are_known_in_the_new_place() -> None:
    store = two_disks()
    batch = make_batch(b"once", producer_id=9, producer_epoch=0, base_sequence=0)
    appended = store.append_batch(batch)
    moved = move_log(store)
    assert moved.check_producer(parse_header(batch)) == appended


def test_new_log_without_files_moves() -> None:
    store = Store(paths=(OLD, NEW))
    log = store.log(0)
    moved = move_log(store)
    assert moved is not log
    store.append(b"first")
    store.flush(0)
    store.crash()
    assert store.log(0).directory.path == NEW
    assert values(store) == [b"first"]


def test_old_log_is_gone_for_all_who_hold_it() -> None:
    store = two_disks()
    old = store.log(0)
    move_log(store)
    with pytest.raises(LogGone):
        old.read(5, max_bytes=100, end_offset=30)


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_log_deleted_while_it_moves_leaves_nothing(steps_before: int) -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    steps = move.finish(store.directories, high_watermark=30, now_ms=0)
    step = next(steps)
    for _ in range(steps_before):
        step = steps.send(step())
    result = step()  # in a thread, while the owner deletes the topic
    (deletion,) = store.directories.prepare_deletions([store.directories.logs[NAME]])
    with pytest.raises(StopIteration) as end:
        steps.send(result)
    outcome = end.value.value
    assert outcome.log is None
    run_here(deletion.steps())
    if outcome.deletion is not None:
        run_here(outcome.deletion.steps())
    assert (outcome.deletion is not None) == (steps_before == 2)
    assert store.directories.is_free(*NAME)
    store.directories.create(TOPIC, 0, uuid4(), SMALL)
    store.append(b"of another topic")
    store.flush(0)
    store.kill()
    assert values(store) == [b"of another topic"]


def test_full_disk_leaves_the_log_where_it_was() -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    for number in range(3):
        store.append(b"late-%d" % number)
    store.fs.fail_writes_after(0)
    outcome = finish(store, move)
    assert isinstance(outcome.error, OSError)
    assert outcome.log is store.log(0)
    assert store.log(0).directory.path == OLD
    store.fs.heal()
    move.clean_up()
    store.append(b"again")
    store.flush(0)
    store.crash()
    assert values(store) == [*EXPECTED, *(b"late-%d" % number for number in range(3)), b"again"]
    assert not store.directories.unfinished_moves


def test_failed_disk_leaves_the_log_where_it_was() -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    store.fs.fail_everything_under(NEW)
    outcome = finish(store, move)
    assert outcome.log is store.log(0)
    store.append(b"again")
    store.flush(0)
    store.fs.heal()
    store.kill()
    assert values(store) == [*EXPECTED, b"again"]


def test_rename_whose_sync_fails_does_not_hide_later_records() -> None:
    """The copy has the log's name and says that it counts, but the log went on elsewhere."""
    store = two_disks()
    move = begin(store)
    copy(move)
    original = store.fs.sync_directory

    def fail(path: str) -> None:
        if path == NEW:
            raise OSError(5, "the disk is broken")
        original(path)

    store.fs.sync_directory = fail  # type: ignore[method-assign]
    outcome = finish(store, move)
    store.fs.sync_directory = original  # type: ignore[method-assign]
    assert outcome.error is not None
    assert outcome.log is not None
    assert outcome.log.directory.path == OLD
    store.append(b"acknowledged")
    store.flush(0)
    store.kill()
    assert values(store) == [*EXPECTED, b"acknowledged"]
    assert store.log(0).directory.path == OLD
    store.kill()
    assert values(store) == [*EXPECTED, b"acknowledged"]


def test_next_start_moves_what_was_being_moved() -> None:
    store = two_disks()
    copy(begin(store))
    store.kill()
    (unfinished,) = store.directories.unfinished_moves
    assert (unfinished.key, unfinished.target.path) == (NAME, NEW)
    assert values(store) == EXPECTED
    for number in range(30):
        store.append(b"more-%d" % number)
    move = LogMove(store.log(0), unfinished.target, unfinished.path)
    move.begin()
    copy(move)
    finish(store, move)
    store.kill()
    assert not store.directories.unfinished_moves
    assert values(store) == [*EXPECTED, *(b"more-%d" % number for number in range(30))]


def test_cancelled_move_is_forgotten() -> None:
    store = two_disks()
    move = begin(store)
    copy(move)
    move.clean_up()
    store.kill()
    assert not store.directories.unfinished_moves
    assert values(store) == EXPECTED


def test_lag_becomes_small() -> None:
    store = two_disks()
    move = begin(store)
    assert move.missing_records == 30
    copy(move)
    assert 0 < move.missing_records < 10  # what is left to the end


def test_log_on_a_failed_disk_cannot_be_copied() -> None:
    store = two_disks()
    move = begin(store)
    store.directories.fail(store.log(0).directory, OSError("gone"))
    with pytest.raises(ApiError, match="is offline"):
        move.next_piece()


@pytest.mark.slow_with("None")
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_cut_before_any_change_loses_nothing(seed: int | None) -> None:
    """And there is one log of the name afterwards, which can be moved."""
    cuts = 0
    for cut_before in range(1, 1000):
        fs = CutOff()
        store = two_disks(fs)
        fs.changes = 0
        fs.cut_before = cut_before
        try:
            moved = move_log(store)
        except PowerCut:
            cuts += 1
        else:
            assert moved.directory.path == NEW
            break
        fs.cut_before = None
        fs.crash(None if seed is None else Random(seed * 1000 + cut_before))
        store.reopen()
        assert values(store) == EXPECTED, f"cut before change {cut_before}"
        assert store.log(0).log_start_offset == 5
        store.append(b"next")
        store.flush(0)
        target = OLD if store.log(0).directory.path == NEW else NEW
        move_log(store, target)
        store.crash()
        assert values(store) == [*EXPECTED, b"next"]
    assert cuts > 20
