"""Deleting logs, so that a new log of the same name inherits nothing.

    deletion = Deletion.prepare(directory, logs, pending)    on the owner's thread
    deletion.execute()                                       on any thread: blocks
    deletion.complete()                                      on the owner's thread

`prepare` marks the logs as deleted: they are no longer read, flushed, cleaned or saved, and a
thread that tries gets `LogGone`. `execute` waits for threads that use the
logs' directories, renames these for the sweep, voids the logs' journal entries, and removes their
entries from the checkpoint files, where logs have no other identity than their names: one rewrite
for all logs, durable when `execute` returns. The names are taken until `complete`. `steps` does it
all, and closes the logs' files a few at a time.

Crash rule. The caller has durably recorded that the logs are deleted, and deletes a log again if it
still exists after a crash; entries that are already removed only make that recovery longer. If the
directory is gone and entries remain, `LogDirectories` finds names without a log in the checkpoint
files at the next start, and removes them before it creates a log of such a name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from uuid import uuid4

from millstream.partitions import TopicPartition
from millstream.storage import names
from millstream.storage.checkpointing import DISK_FULL, forget_names
from millstream.storage.directory import LogDirectory
from millstream.storage.log import Log
from millstream.storage.steps import Steps, let_others_work

logger = logging.getLogger(__name__)

LOGS_CLOSED_PER_TURN = 64


class Deletion:
    """See the module. Deletes logs of one directory, or names that only its checkpoints contain."""

    def __init__(
        self,
        directory: LogDirectory,
        taken: frozenset[TopicPartition],
        logs: Sequence[Log],
        pending: list[Deletion],
        *,
        keeps_files: bool = False,
    ) -> None:
        self.directory = directory
        self.names = taken
        self._unrenamed = list(logs)
        self._unclosed = list(logs)
        self._keeps_files = keeps_files
        self._log_ids = [log.log_id for log in logs if log.has_files and log.log_id is not None]
        self._pending = pending
        self._lock = threading.Lock()
        self._has_renamed = False
        self._is_executed = False
        self._error: OSError | None = None
        pending.append(self)

    @classmethod
    def prepare(
        cls,
        directory: LogDirectory,
        logs: Sequence[Log],
        pending: list[Deletion],
        *,
        keeps_files: bool = False,
    ) -> Deletion:
        """Joins `pending`, and leaves it when the names are free.

        With `keeps_files` the logs' directories are set aside, for an operator to look at.
        """
        for log in logs:
            log.mark_deleted()
            for segment in log.aborted_segments:
                directory.transaction_indexes.forget(segment)
        taken = frozenset((log.topic, log.partition) for log in logs)
        return cls(directory, taken, logs, pending, keeps_files=keeps_files)

    def steps(self) -> Steps[None]:
        """The rest of the deletion."""
        while self._unclosed:
            self._close(LOGS_CLOSED_PER_TURN)
            yield let_others_work
        yield self.execute
        self.complete()

    def _close(self, count: int) -> None:
        for log in self._unclosed[-count:]:
            log.close()
        del self._unclosed[-count:]

    def execute(self) -> None:
        """Delete what still exists; wait if another thread does. Never raises for a disk error:
        `complete` handles it."""
        with self._lock:
            if self._is_executed:
                return
            try:
                if self.directory.failure is None:
                    self._remove()
            except OSError as error:
                self._error = error
            else:
                self._error = None
                self._is_executed = True

    def _remove(self) -> None:
        directory = self.directory
        while self._unrenamed:
            log = self._unrenamed[-1]
            log.wait_until_unused()
            if log.has_files:
                self._rename(log)
                self._has_renamed = True
            self._unrenamed.pop()
        directory.journal.void(*self._log_ids)
        forget_names(directory, self.names)
        if self._has_renamed:
            # Else a crash could bring it back, with its successor in another directory.
            directory.fs.sync_directory(directory.path)

    def _rename(self, log: Log) -> None:
        directory, unique = self.directory, uuid4().hex
        if self._keeps_files:
            name = names.stray_directory(log.topic, log.partition, unique)
            directory.fs.rename(log.path, f"{directory.path}/{name}")
            return
        doomed = f"{directory.path}/{names.deleted_directory(log.topic, log.partition, unique)}"
        directory.fs.rename(log.path, doomed)
        directory.add_garbage(doomed)

    @property
    def is_durable(self) -> bool:
        """Whether nothing is left of the logs, after `complete`."""
        return self._is_executed and self.directory.failure is None

    def complete(self) -> None:
        """Free the names, or fail the directory. A full disk is not a failure: the names stay
        taken, and creating a log under one of them executes the deletion again."""
        self._close(len(self._unclosed))
        error, directory = self._error, self.directory
        if error is not None and error.errno in DISK_FULL:
            logger.warning("deleted logs remain in the checkpoints of %s: %s", directory, error)
            return
        if error is not None:
            directory.fail(error)
        elif not self._is_executed:
            raise RuntimeError("the deletion was not executed")
        if self in self._pending:
            self._pending.remove(self)
