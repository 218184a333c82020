"""Moves a log to another log directory while it is in use (AlterReplicaLogDirs).

    <target>/<topic>-<partition>.<32 hex digits>-future/    the copy, as in Kafka

    move = LogMove(log, target)
    move.begin()                    any thread: from here on, the next start would move it, too
    while piece := move.next_piece():
        move.copied(piece, move.copy(piece))      `copy` on any thread
    outcome = yield from move.finish(...)         nobody appends to the log or reads from it

Sealed segments are copied whole, with their indexes; of the active one, what there is. When little
is missing, `finish` closes the log as a clean stop does, copies the rest, syncs the copy, leaves
`moved.json` in it, renames it to the log's name, and opens it. The log in the old place is deleted
then, like that of a deleted topic.

The old log is marked as deleted as soon as `finish` begins, so that flushes, checkpoints, the
cleaner and retention leave it alone. If `finish` fails, the log is opened again in its old place.

Crash rule. Up to the rename there is a log and a `-future` directory: after the next start, the
copy is made again there. From then on there are two logs of one name, until the old one is deleted.
`moved.json` says where its log comes from, and has the offsets for which the target has no
checkpoint yet: the next start keeps the copy, unless the other has more records, as after a rename
whose sync failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from millstream.errors import ApiError, LogGone, StorageError
from millstream.storage import names
from millstream.storage.checkpointing import write_for_clean_stop
from millstream.storage.checkpoints import encode_partition_metadata
from millstream.storage.creation import NewLog, new_log
from millstream.storage.filesystem import SyncBatch, replace_file
from millstream.storage.flush import sync_segments
from millstream.storage.log import Log
from millstream.storage.moved import Origin, write_origin
from millstream.storage.recovery import StartingPoint, load_log
from millstream.storage.steps import Steps

if TYPE_CHECKING:
    from millstream.storage.deletion import Deletion
    from millstream.storage.directories import LogDirectories
    from millstream.storage.directory import LogDirectory
    from millstream.storage.segment import Segment

PIECE_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
LEFT_TO_THE_END_BYTES = 4 * 1024 * 1024  # copied while nobody can use the log


class Piece(NamedTuple):
    """A part of a segment."""

    segment: Segment
    start: int
    end: int
    is_last: bool  # and the segment is sealed


class Outcome(NamedTuple):
    log: Log | None  # in its new place, or in the old one; None if it was deleted meanwhile
    deletion: Deletion | None  # of the files that do not count any more: run its steps
    error: Exception | None  # why the log is in its old place


class LogMove:
    """See the module. All calls on the owner's thread, but `begin`, `copy` and `clean_up`."""

    def __init__(self, log: Log, target: LogDirectory, path: str | None = None) -> None:
        """`path` is that of the copy, if the move was begun before the last stop."""
        self.log = log
        self.target = target
        name = names.future_directory(log.topic, log.partition, uuid4().hex)
        self.path = path or f"{target.path}/{name}"
        self._fs = target.fs
        self._generation = log.generation
        self._copied: dict[Segment, int] = {}  # how many bytes
        self._complete: set[Segment] = set()  # with their indexes

    @property
    def copied_bytes(self) -> int:
        return sum(self._copied.values())

    @property
    def missing_records(self) -> int:
        """About how many records are not copied yet: in a segment, by its bytes."""
        log, missing = self.log, 0
        ends = [it.base_offset for it in log.segments[1:]] + [log.log_end_offset]
        for segment, end in zip(log.segments, ends, strict=True):
            if segment.size:
                left = segment.size - self._copied.get(segment, 0)
                missing += (end - segment.base_offset) * left // segment.size
        return missing

    def begin(self) -> None:
        """Durably. Blocks."""
        self._fs.make_directory(self.path)
        if self.log.topic_id is not None:
            content = encode_partition_metadata(self.log.topic_id)
            replace_file(self._fs, f"{self.path}/{names.PARTITION_METADATA}", content)
        self._fs.sync_directory(self.target.path)

    def clean_up(self) -> None:
        """It has ended, or is not wanted any more: remove the copy if it was not put to use,
        durably. Blocks."""
        remove_copy(self.target, self.path)

    # While the log is in use

    def next_piece(self) -> Piece | None:
        """What to copy next; None if the rest can be left to `finish`. Raises `ApiError`."""
        log = self.log
        log.check()
        self._forget_truncated()
        for segment in log.segments:
            if segment in self._complete:
                continue
            start = self._copied.get(segment, 0)
            is_active = segment is log.active_segment
            if is_active and segment.size - start <= LEFT_TO_THE_END_BYTES:
                return None
            end = min(segment.size, start + PIECE_BYTES)
            return Piece(segment, start, end, not is_active and end == segment.size)
        return None

    def _forget_truncated(self) -> None:
        """After a truncation, the same places may have other bytes."""
        if self.log.generation != self._generation:
            self._generation = self.log.generation
            self._copied.clear()
            self._complete.clear()

    def copy(self, piece: Piece) -> bool:
        """Copy it, or return false: compaction or retention has taken the segment. Blocks.

        Raises `OSError`.
        """
        segment = piece.segment
        paths = [segment.handle.path]
        if piece.is_last:
            paths += segment.index_files()
        fs, opened = self._fs, []
        try:
            with self.log.held():  # not while it is copied: an open file stays what it is
                opened += [fs.open(path) for path in paths]
        except (LogGone, FileNotFoundError):
            for fd in opened:
                fs.close(fd)
            return False
        try:
            self._copy_file(opened[0], paths[0], piece.start, piece.end)
            for fd, path in zip(opened[1:], paths[1:], strict=True):
                self._copy_file(fd, path, 0, fs.size(fd))
        finally:
            for fd in opened:
                fs.close(fd)
        return True

    def copied(self, piece: Piece, was_there: bool) -> None:
        """`copy` has returned that."""
        log, segment = self.log, piece.segment
        if was_there and log.generation == self._generation and segment in log.segments:
            self._copied[segment] = piece.end
            if piece.is_last:
                self._complete.add(segment)

    def _copy_file(self, source: int, path: str, start: int, end: int) -> None:
        """Bytes of an open file, to the file of the same name."""
        fs = self._fs
        name = path.rpartition("/")[2].removesuffix(names.SWAP_SUFFIX)  # the cleaner drops it soon
        fd = fs.open(f"{self.path}/{name}", create=True)
        try:
            for position in range(start, end, CHUNK_BYTES):
                data = fs.pread(source, min(CHUNK_BYTES, end - position), position)
                written = 0
                while written < len(data):
                    rest = memoryview(data)[written:]
                    written += fs.pwritev(fd, (rest,), position + written)
            fs.truncate(fd, end)
            fs.fdatasync(fd)
        finally:
            fs.close(fd)

    # The end

    def finish(
        self, directories: LogDirectories, *, high_watermark: int, now_ms: int
    ) -> Steps[Outcome]:
        """The caller has seen to it that nobody uses the log, and takes the one in the outcome."""
        log = self.log
        log.check()
        self._forget_truncated()
        log.is_truncating = True  # refuses appends, and new roles
        if log.has_files:
            try:
                yield from self._close(now_ms)
            except LogGone:
                return Outcome(None, None, None)
            except (ApiError, OSError) as failure:
                log.is_truncating = False
                return Outcome(log, None, failure)
        with ExitStack() as hold:
            # A deletion of the log waits until it is clear which files there are.
            hold.enter_context(log.held())
            log.mark_deleted()
            moved, error = yield from self._open_copy(high_watermark, now_ms)
            if moved.config is not log.config:  # it was changed meanwhile
                moved.update_config(log.config)
            if directories.logs.get((log.topic, log.partition)) is log:
                return Outcome(moved, directories.replace(log, moved), error)
            if error is None:
                return Outcome(None, directories.discard(moved), None)
            moved.close()  # the deletion that goes on now takes its files
            return Outcome(None, None, error)

    def _close(self, now_ms: int) -> Steps[None]:
        """As a clean stop does, so that nothing has to be written to open it again."""
        log = self.log
        yield from sync_segments(log, now_ms)
        batch = SyncBatch(self._fs, log.directory.path)
        log.epochs.save(batch)
        write_for_clean_stop(log, batch)
        yield partial(_commit, log, batch)
        log.check()
        while any(it.handle.path.endswith(names.SWAP_SUFFIX) for it in log.segments):
            yield partial(self._fs.sync_directory, log.path)  # the cleaner is about to rename it
            log.check()

    def _open_copy(self, high_watermark: int, now_ms: int) -> Steps[tuple[Log, Exception | None]]:
        """In its new place; or else in the old one, with the reason."""
        log = self.log
        if not log.has_files:
            assert log.topic_id is not None
            new = NewLog(log.topic, log.partition, log.topic_id, log.config)
            return new_log(self.target, new, now_ms=now_ms), None
        origin = Origin(
            log.directory.directory_id, log.log_end_offset, log.log_start_offset, high_watermark
        )
        try:
            moved = yield partial(self._finish_copy, origin, now_ms)
        except (OSError, StorageError) as error:
            return (yield partial(self._reopen, now_ms)), error
        return moved, None

    def _finish_copy(self, origin: Origin, now_ms: int) -> Log:
        log, fs = self.log, self._fs
        log.wait_until_unused(but_for=1)
        wanted = self._copy_rest()
        for name in set(fs.listdir(self.path)) - wanted:
            fs.unlink(f"{self.path}/{name}")
        self._check_copy(wanted)
        write_origin(fs, self.path, origin)
        path = self.target.log_path(log.topic, log.partition)
        fs.rename(self.path, path)
        try:
            fs.sync_directory(self.target.path)
            return self._load(self.target, now_ms)
        except (OSError, StorageError):
            fs.rename(path, self.path)  # it does not count: the log goes on in its old place
            raise

    def _check_copy(self, wanted: set[str]) -> None:
        """The original is about to be deleted."""
        fs = self._fs
        missing = sorted(wanted - set(fs.listdir(self.path)))
        short = [
            name
            for it in self.log.segments
            if (name := it.handle.path.rpartition("/")[2]) not in missing
            and fs.file_size(f"{self.path}/{name}") != it.size
        ]
        if missing or short:
            raise StorageError(f"the copy in {self.path} is incomplete: {(missing + short)[0]}")

    def _copy_rest(self) -> set[str]:
        """Returns the names of all files of the copy."""
        log, fs = self.log, self._fs
        wanted: set[str] = set()
        for segment in log.segments:
            path = segment.handle.path
            indexes = segment.index_files()
            wanted |= {it.rpartition("/")[2] for it in (path, *indexes)}
            if segment not in self._complete:
                self._copy_paths([path], self._copied.get(segment, 0))
                self._copy_paths(indexes)
        others = [name for name in fs.listdir(log.path) if _is_beside_segments(name)]
        self._copy_paths(f"{log.path}/{name}" for name in others)
        return wanted.union(others)

    def _copy_paths(self, paths: Iterable[str], start: int = 0) -> None:
        for path in paths:
            fd = self._fs.open(path)
            try:
                self._copy_file(fd, path, start, self._fs.size(fd))
            finally:
                self._fs.close(fd)

    def _load(self, directory: LogDirectory, now_ms: int) -> Log:
        log = self.log
        moved = Log(directory, log.topic, log.partition, log.topic_id, log.config)
        start = StartingPoint(clean=True, log_start_offset=log.log_start_offset)
        load_log(moved, start, now_ms=now_ms)
        return moved

    def _reopen(self, now_ms: int) -> Log:
        """In the old place."""
        directory = self.log.directory
        try:
            return self._load(directory, now_ms)
        except OSError as error:
            directory.fail(error)
            raise


def remove_copy(target: LogDirectory, path: str) -> None:
    """Remove a `-future` directory, if there is one, durably. Blocks."""
    if target.fs.exists(path):
        doomed = path.removesuffix(names.FUTURE_DIRECTORY_SUFFIX) + names.DELETE_DIRECTORY_SUFFIX
        target.fs.rename(path, doomed)
        target.fs.sync_directory(target.path)
        target.add_garbage(doomed)


def _commit(log: Log, batch: SyncBatch) -> None:
    with log.held():
        batch.commit()


def _is_beside_segments(name: str) -> bool:
    """Whether a file of a log belongs to no segment, and to the log as it is."""
    if name in (names.PARTITION_METADATA, names.LEADER_EPOCHS):
        return True
    parsed = names.parse_offset_file(name)
    return parsed is not None and parsed[1] in (names.SNAPSHOT_SUFFIX, names.VERSIONS_SUFFIX)
