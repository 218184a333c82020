"""Deleting logs, so that a log of the same name can be created and have nothing of theirs.

    deletion = Deletion.prepare(directory, logs, pending)    on the owner's thread
    deletion.execute()                                       on any thread: blocks
    deletion.complete()                                      on the owner's thread

`prepare` marks the logs as deleted and closes their files: nobody reads, flushes, cleans or saves
them from then on, and whoever is about to gets `LogGone`. `execute` waits for threads that are at
work in their directories, renames these for the sweep, lets the journal forget the logs, and
removes their entries from the checkpoint files, which know logs only by name: one rewrite for all,
durable when it returns. Until `complete` the names are taken.

Crash rule. Whoever deletes a log has durably noted before that it is to go, and deletes it again
if it is still there after a crash; what is gone of its entries by then only costs a longer
recovery. If the directory is gone and entries are left, `LogDirectories` finds names without a log
in the checkpoint files at the next start, and removes them before it creates a log of such a name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from uuid import uuid4

from millstream.storage import names
from millstream.storage.checkpointing import DISK_FULL, forget_names
from millstream.storage.checkpoints import TopicPartition
from millstream.storage.directory import LogDirectory
from millstream.storage.log import Log

logger = logging.getLogger(__name__)


class Deletion:
    """See the module. Of logs in one directory, or of names that only its checkpoints know."""

    def __init__(
        self,
        directory: LogDirectory,
        taken: frozenset[TopicPartition],
        logs: Sequence[Log],
        pending: list[Deletion],
    ) -> None:
        self.directory = directory
        self.names = taken
        self._unrenamed = list(logs)
        self._log_ids = [log.log_id for log in logs if log.log_id is not None]
        self._pending = pending
        self._lock = threading.Lock()
        self._is_executed = False
        self._error: OSError | None = None
        pending.append(self)

    @classmethod
    def prepare(
        cls, directory: LogDirectory, logs: Sequence[Log], pending: list[Deletion]
    ) -> Deletion:
        """Joins `pending`, and leaves it when the names are free."""
        for log in logs:
            log.mark_deleted()
        return cls(directory, frozenset((log.topic, log.partition) for log in logs), logs, pending)

    def execute(self) -> None:
        """Do what is left to do; wait if another thread is doing it. Raises nothing for a disk's
        error, which `complete` deals with."""
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
        has_renamed = bool(self._unrenamed)
        while self._unrenamed:
            log = self._unrenamed[-1]
            log.wait_until_unused()
            name = names.deleted_directory(log.topic, log.partition, uuid4().hex)
            doomed = f"{directory.path}/{name}"
            directory.fs.rename(log.path, doomed)
            directory.add_garbage(doomed)
            self._unrenamed.pop()
        directory.journal.void(*self._log_ids)
        forget_names(directory, self.names)
        if has_renamed:
            # Else the log could be back after a crash, beside its successor in another directory.
            directory.fs.sync_directory(directory.path)

    def complete(self) -> None:
        """The names are free, or the directory fails. On a full disk neither: the names stay taken,
        and the next who wants one of them executes this again."""
        error = self._error
        if error is not None and error.errno in DISK_FULL:
            logger.warning("deleted logs leave traces in %s for now: %s", self.directory, error)
            return
        if error is not None:
            self.directory.fail(error)
        elif not self._is_executed:
            raise RuntimeError("a deletion was completed that was not executed")
        if self in self._pending:
            self._pending.remove(self)
