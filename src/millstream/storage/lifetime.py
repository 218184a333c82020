"""The lifetime of a log: in use, then deleted. See docs/decisions/0018-lifetime-of-a-log.md.

Deletion (`deletion.py`) is a state, `is_deleted`, and not a disk error: all operations on the log
raise `LogGone` afterwards. Its directory is renamed, and its path may soon belong to another log.
So a thread that uses paths in the directory does so inside `held`; open files need no such care.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import ApiError, ErrorCode, LogGone
from millstream.storage._core import LogCore
from millstream.storage.directory import LogDirectory


class LogLifetime(LogCore):
    """The identity of a log, and whether it still exists."""

    __slots__ = ("_holders", "partition", "topic")

    def __init__(self, directory: LogDirectory, topic: str, partition: int) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.is_deleted = False  # set on the owner's thread, never reset
        self._holders = 0  # threads inside `held`

    def check(self) -> None:
        """Raise `LogGone` if the log was deleted, `ApiError` if its directory has failed."""
        if self.is_deleted:
            raise LogGone(self.topic, self.partition)
        self.directory.check()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the directory where it is while a thread works in it by path. Raises `LogGone`.

        A deletion waits for those inside before it renames the directory: be quick.
        """
        holds = self.directory.holds
        with holds:
            if self.is_deleted:
                raise LogGone(self.topic, self.partition)
            self._holders += 1
        try:
            yield
        finally:
            with holds:
                self._holders -= 1
                if self.is_deleted:
                    holds.notify_all()

    def mark_deleted(self) -> None:
        """From now on the log is gone for all who ask. Owner's thread; close its files later."""
        with self.directory.holds:
            self.is_deleted = True
        self.refuse_small_appends()

    def wait_until_unused(self, *, but_for: int = 0) -> None:
        """Return when no thread works in the directory of a deleted log any more; `but_for` that
        many. Blocks."""
        with self.directory.holds:
            self.directory.holds.wait_for(lambda: self._holders <= but_for)

    def storage_error(self, action: str, error: OSError) -> ApiError:
        """What to raise when the disk refused; unless it is full, the directory has failed."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.directory.note_full(error)
        else:
            self.directory.fail(error)
        return ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot {action} {self.topic}-{self.partition} in {self.directory.path}: {error}",
        )
