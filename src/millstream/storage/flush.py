"""Makes appends to many logs durable at once.

A `GroupFlush` covers everything appended to its logs before `prepare`. It has three steps, so that
the slow one can run in any thread:

    flush = GroupFlush.prepare(logs)     on the owner's thread: collect the dirty bytes
    flush.execute()                      on any thread: blocks, without the interpreter's lock
    flush.complete(now_ms)               on the owner's thread: `flushed_offset` of each log moves

Each directory's part records an outcome in `execute`; without one, `complete` refuses.

Few dirty files are synced individually. For many, the bytes are also written to the directory's
journal (see `journal.py`), and only that is synced; see docs/decisions/0004-flush.md. A log's flush
always covers all of its earlier bytes: the durable bytes are a prefix.

A failed sync takes the log's directory offline; other directories continue. It is never retried:
the kernel would report success although the bytes are lost. Any other exception takes the directory
offline too, because nobody knows which bytes are durable. A log that was deleted meanwhile, or a
segment that retention removed, is not a failure: there is nothing to flush.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from enum import Enum
from typing import TypeAlias

from millstream.errors import FileGone, LogGone
from millstream.storage.directory import LogDirectory
from millstream.storage.filesystem import SYNCED_ONE_BY_ONE_MAX
from millstream.storage.journal import ENTRY_OVERHEAD_BYTES, DataEntry
from millstream.storage.log import Log
from millstream.storage.segment import Segment
from millstream.storage.steps import Steps

logger = logging.getLogger(__name__)

# Measured: docs/decisions/0004-flush.md. Up to this number, files are synced themselves;
UNJOURNALED_FILES_MAX = 2
# and so they are if there is more than this in each: writing it twice costs more than it saves.
JOURNALED_BYTES_PER_FILE_MAX = 32 * 1024
JOURNALED_BYTES_MAX = 16 * 1024 * 1024
SYNCS_OF_NEW_LOG = 2  # its directory and `partition.metadata`


# Plain tuples: a flush may span a thousand logs, and a named tuple takes ten times as long to make.

# Bytes of a segment's file to be flushed: the segment, their start and end, and the bytes
# themselves if they are in memory.
DirtyRange: TypeAlias = tuple[Segment, int, int, bytes | None]
# One log in a flush, as it was at `prepare`: the log, its generation and end offset, what is dirty,
# and `names_changed` if names in its directory are to be synced, else None.
FlushTarget: TypeAlias = tuple[Log, int, int, list[DirtyRange], int | None]


class Outcome(Enum):
    """What the execution of a flush came to, in one directory."""

    SYNCED = "all bytes are durable in their segments"
    JOURNALED = "all bytes are durable, in their segments or in the journal"
    FAILED = "nobody knows what is durable"


class GroupFlush:
    """See the module."""

    def __init__(self, parts: list[DirectoryFlush]) -> None:
        self._parts = parts

    @classmethod
    def prepare(cls, logs: Iterable[Log], *, to_segments: bool = False) -> GroupFlush:
        """All bytes appended so far that are not durable.

        With `to_segments`, bytes that only the journal has count as not durable, and the journal
        is not used: afterwards each log's recovery point is its end.
        """
        parts: dict[LogDirectory, DirectoryFlush] = {}
        for log in logs:
            directory = log.directory
            if log.is_deleted or directory.failure is not None:
                continue
            if not to_segments and log.flushed_offset == log.log_end_offset:
                continue
            part = parts.get(directory)
            if part is None:
                part = parts[directory] = DirectoryFlush(directory, to_segments=to_segments)
            part.add(log)
        return cls([part for part in parts.values() if part.targets])

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def size_bytes(self) -> int:
        """The bytes to write: an estimate of the duration."""
        return sum(part.size_bytes for part in self._parts)

    @property
    def sync_count(self) -> int:
        """How often the disk has to sync something, about: an estimate of the duration."""
        return sum(part.sync_count for part in self._parts)

    def execute(self) -> None:
        """Block until everything is durable, or has failed. Never raises: see `Outcome`."""
        for part in self._parts:
            part.execute()

    def complete(self, now_ms: int) -> list[Log]:
        """Update the logs. Returns those whose directory failed and is now offline.

        Raises `RuntimeError`, without any effect, if the flush was not executed.
        """
        if any(part.outcome is None for part in self._parts):
            raise RuntimeError("the flush was not executed")
        failed: list[Log] = []
        for part in self._parts:
            failed += part.complete(now_ms)
        return failed


class DirectoryFlush:
    """The part of a flush that concerns one log directory."""

    def __init__(self, directory: LogDirectory, *, to_segments: bool) -> None:
        self.directory = directory
        self.targets: list[FlushTarget] = []
        self._to_segments = to_segments
        self._range_count = 0
        self.size_bytes = 0
        self.outcome: Outcome | None = None
        self._error: Exception | None = None

    def add(self, log: Log) -> None:
        """Collect what is dirty in the log, if anything."""
        ranges: list[DirtyRange] = []
        for segment in reversed(log.segments):
            size = segment.size
            if segment.synced_bytes < size:
                start = segment.durable_bytes
                ranges.append((segment, start, size, segment.copies.take(start, size)))
                self.size_bytes += size - start
            elif size:
                break  # segments are synced in order: all before this one are
        names_changed = log.names_changed if log.names_unsynced else None
        if ranges or names_changed is not None:
            if len(ranges) > 1:
                ranges.reverse()
            self._range_count += len(ranges)
            self.targets.append((log, log.generation, log.log_end_offset, ranges, names_changed))

    @property
    def sync_count(self) -> int:
        new = SYNCS_OF_NEW_LOG * sum(log.is_new for log, *_ in self.targets)
        return new + (1 if self._is_for_journal() else len(self.targets))

    def execute(self) -> None:
        try:
            self._sync_new_logs()
            if self._is_for_journal() and self._write_journal():
                self.outcome = Outcome.JOURNALED
            else:
                self._sync_files()
                self.outcome = Outcome.SYNCED
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("a flush of %s ended unexpectedly", self.directory.path)
            self.outcome = Outcome.FAILED
            self._error = error

    def _is_for_journal(self) -> bool:
        if self._to_segments:
            return False
        count = self._range_count
        limit = min(count * JOURNALED_BYTES_PER_FILE_MAX, JOURNALED_BYTES_MAX)
        return count > UNJOURNALED_FILES_MAX and self.size_bytes <= limit

    def _write_journal(self) -> bool:
        journal = self.directory.journal
        void_count = journal.void_count  # read before the look at logs that a void may concern
        entries: list[DataEntry] = []
        for log, generation, _, ranges, _ in self.targets:
            log_id = log.log_id
            if log_id is None:
                return False
            if log.is_deleted or log.generation != generation:
                continue  # its bytes must not come back
            for segment, start, end, data in ranges:
                if data:
                    entries.append((log_id, segment.base_offset, start, data))
                elif start < end:  # otherwise in the journal already
                    with suppress(FileGone):
                        read = segment.read_at(end - start, start, may_block=True)
                        entries.append((log_id, segment.base_offset, start, read))
        size = self.size_bytes + ENTRY_OVERHEAD_BYTES * len(entries)
        return not entries or journal.append(entries, size, void_count=void_count)

    def _sync_new_logs(self) -> None:
        """Replay can create a segment, but not a log."""
        paths = [path for log, *_ in self.targets if log.is_new for path in log.unsynced_names()]
        if paths:  # those of a log deleted meanwhile are left out, or are its successor's: no harm
            self._sync(dict.fromkeys(paths))

    def _sync_files(self) -> None:
        fs, handles = self.directory.fs, self.directory.handles
        if self._to_segments and len(self.targets) > SYNCED_ONE_BY_ONE_MAX:
            self._sync(self._paths())
            return
        for log, _, _, ranges, names_changed in self.targets:
            for segment, *_ in ranges:
                with suppress(FileGone), handles.borrowed(segment.handle) as fd:
                    fs.fdatasync(fd)
            if names_changed is not None:
                with suppress(LogGone), log.held():
                    fs.sync_directory(log.path)

    def _sync(self, paths: Collection[str]) -> None:
        if self._to_segments:
            # In the background or at a stop, where it does no harm to sync what others wrote too.
            self.directory.fs.sync_all(self.directory.path, paths)
        else:
            self.directory.fs.sync_each(paths)

    def _paths(self) -> list[str]:
        paths = [segment.handle.path for *_, ranges, _ in self.targets for segment, *_ in ranges]
        return paths + [log.path for log, *_, changed in self.targets if changed is not None]

    def complete(self, now_ms: int) -> list[Log]:
        if self._error is not None:
            self.directory.fail(self._error)
        if self.directory.failure is not None:
            return [log for log, *_ in self.targets]
        synced = self.outcome is Outcome.SYNCED
        for log, generation, end_offset, ranges, names_changed in self.targets:
            if generation != log.generation or log.is_deleted:
                continue
            log.is_new = False
            for segment, _, end, _ in ranges:
                segment.note_durable(end, synced=synced)
            if synced and names_changed is not None:
                log.names_synced = max(log.names_synced, names_changed)
            log.note_flushed(end_offset, now_ms, synced=synced)
        return []


def sync_segments(log: Log, now_ms: int) -> Steps[None]:
    """Make all bytes of a log durable in its own files. Raises `LogGone`, or `ApiError` when the
    directory has failed."""
    flush = GroupFlush.prepare([log], to_segments=True)
    yield flush.execute
    flush.complete(now_ms)
    log.check()
