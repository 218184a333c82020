"""Makes appends to many logs durable at once.

A `GroupFlush` covers everything appended to its logs before `prepare`. It has three steps, so that
the slow one can run in any thread:

    flush = GroupFlush.prepare(logs)     on the owner's thread: collect the dirty bytes
    flush.execute()                      on any thread: blocks, without the interpreter's lock
    flush.complete(now_ms)               on the owner's thread: `flushed_offset` of each log moves

Each directory's part records an outcome in `execute`; without one, `complete` refuses.

If there is little data per file, the bytes are also written to the directory's journal (see
`journal.py`), and only that is synced. Otherwise the files are synced, one by one; see
docs/decisions/0004-flush.md. A log's flush
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

from millstream.errors import FileGone, LogGone
from millstream.storage._core import (
    COPIES_BYTES_MAX,
    ENTRY_OVERHEAD_BYTES,
    DirtyLogs,
    collect_dirty,
    journal_entries,
    note_flushed,
)
from millstream.storage.filesystem import SYNCED_ONE_BY_ONE_MAX
from millstream.storage.log import Log
from millstream.storage.steps import Steps

logger = logging.getLogger(__name__)

# Measured: docs/decisions/0004-flush.md. Writing more than this twice costs more than it saves: on
# average per file, if there are many; of one or two files.
JOURNALED_BYTES_PER_FILE_MAX = 32 * 1024
JOURNALED_BYTES_OF_FEW_MAX = COPIES_BYTES_MAX
FEW_FILES_MAX = 2
JOURNALED_BYTES_MAX = 16 * 1024 * 1024
SYNCS_OF_NEW_LOG = 2  # its directory and `partition.metadata`


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
        dirty = collect_dirty(logs, to_segments)
        return cls([DirectoryFlush(part, to_segments=to_segments) for part in dirty])

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

    @property
    def has_new_logs(self) -> bool:
        """Whether names of new logs have to be synced, too: that takes much longer at times."""
        return any(part.has_new_logs for part in self._parts)

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

    def __init__(self, dirty: DirtyLogs, *, to_segments: bool) -> None:
        self.directory = dirty.directory
        self.size_bytes = dirty.size_bytes
        self.outcome: Outcome | None = None
        self.has_new_logs = dirty.new_count > 0
        self._dirty = dirty
        self._targets = dirty.targets
        self._to_segments = to_segments
        self._error: Exception | None = None

    @property
    def sync_count(self) -> int:
        new = SYNCS_OF_NEW_LOG * self._dirty.new_count
        return new + (1 if self._is_for_journal() else len(self._targets))

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
        count = self._dirty.range_count
        if count <= FEW_FILES_MAX:
            return 0 < self.size_bytes <= JOURNALED_BYTES_OF_FEW_MAX
        return self.size_bytes <= min(count * JOURNALED_BYTES_PER_FILE_MAX, JOURNALED_BYTES_MAX)

    def _write_journal(self) -> bool:
        journal = self.directory.journal
        void_count = journal.void_count  # read before the look at logs that a void may concern
        entries = journal_entries(self._targets)
        if entries is None:
            return False
        size = self.size_bytes + ENTRY_OVERHEAD_BYTES * len(entries)
        return not entries or journal.append(entries, size, void_count=void_count)

    def _sync_new_logs(self) -> None:
        """Replay can create a segment, but not a log."""
        if not self._dirty.new_count:
            return
        new = [target.log for target in self._targets if target.log.is_new]
        paths = [path for log in new for path in log.unsynced_names()]
        if paths:  # those of a log deleted meanwhile are left out, or are its successor's: no harm
            self._sync(dict.fromkeys(paths))

    def _sync_files(self) -> None:
        fs, handles = self.directory.fs, self.directory.handles
        if self._to_segments and len(self._targets) > SYNCED_ONE_BY_ONE_MAX:
            self._sync(self._paths())
            return
        for target in self._targets:
            for segment, *_ in target.ranges:
                with suppress(FileGone), handles.borrowed(segment.handle) as fd:
                    fs.fdatasync(fd)
            if target.names_changed is not None:
                with suppress(LogGone), target.log.held():
                    fs.sync_directory(target.log.path)

    def _sync(self, paths: Collection[str]) -> None:
        if self._to_segments:
            # In the background or at a stop, where it does no harm to sync what others wrote too.
            self.directory.fs.sync_all(self.directory.path, paths)
        else:
            self.directory.fs.sync_each(paths)

    def _paths(self) -> list[str]:
        paths = [range_[0].handle.path for target in self._targets for range_ in target.ranges]
        renamed = [target for target in self._targets if target.names_changed is not None]
        return paths + [target.log.path for target in renamed]

    def complete(self, now_ms: int) -> list[Log]:
        if self._error is not None:
            self.directory.fail(self._error)
        if self.directory.failure is not None:
            return [target.log for target in self._targets]
        note_flushed(self._targets, now_ms, self.outcome is Outcome.SYNCED)
        return []


def sync_segments(log: Log, now_ms: int) -> Steps[None]:
    """Make all bytes of a log durable in its own files. Raises `LogGone`, or `ApiError` when the
    directory has failed."""
    flush = GroupFlush.prepare([log], to_segments=True)
    yield flush.execute
    flush.complete(now_ms)
    log.check()
