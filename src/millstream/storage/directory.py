"""One log directory (an entry of `log.dirs`), shared by its logs.

It fails as a whole: after a failed sync or an I/O error nothing in it is trusted any more. Its logs
answer `KAFKA_STORAGE_ERROR` until the process is started again and recovers them from the disk.
Logs in other directories continue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from uuid import UUID

from millstream.errors import ApiError, ErrorCode
from millstream.storage import names
from millstream.storage.filesystem import FileSystem
from millstream.storage.handles import FileHandles
from millstream.storage.journal import Journal
from millstream.storage.transactions import TransactionIndexCache

logger = logging.getLogger(__name__)

PRODUCER_EXPIRATION_MS = 86_400_000


class LogDirectory:
    """A directory, its journal, and whether it still works."""

    def __init__(
        self,
        path: str,
        handles: FileHandles,
        directory_id: UUID,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.path = path
        self.handles = handles
        self.fs: FileSystem = handles.fs
        self.directory_id = directory_id
        self.journal = Journal(self.fs, path)
        self.producer_expiration_ms = producer_expiration_ms
        self.transaction_indexes = TransactionIndexCache()
        self.log_count = 0
        self.failure: BaseException | None = None
        self.on_full: Callable[[LogDirectory], None] | None = None  # in any thread
        # Guards every log's count of threads at work in its directory. See `Log.held`.
        self.holds = threading.Condition()
        # Held while a checkpoint file is replaced. Checkpoints are prepared in order, and executed
        # one at a time (see `checkpointing`).
        self.checkpoint_lock = threading.Lock()
        self.checkpoints_prepared = 0
        self.checkpoints_executed = 0
        self._full_noted_at = -1  # number of checkpoints when it was last logged
        self._garbage: deque[str] = deque()

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}{' failed' if self.failure else ''}>"

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{names.partition_directory(topic, partition)}"

    def add_garbage(self, path: str) -> None:
        """Add a renamed file or directory for the next `sweep`."""
        self._garbage.append(path)

    def stop_sweeping(self) -> None:
        """Leave the rest to the next start, so that a stop does not wait for many files."""
        self._garbage.clear()

    def sweep(self) -> None:
        """Delete renamed files. May run on any thread; blocks."""
        while self.failure is None:
            try:
                path = self._garbage.popleft()
            except IndexError:
                return
            if self.fs.is_directory(path):
                self.fs.remove_tree(path)
            elif self.fs.exists(path):
                self.fs.unlink(path)

    def fail(self, error: BaseException) -> None:
        """Take the directory offline until the next start. The first reason is kept."""
        if self.failure is None:
            self.failure = error
            logger.error(
                "log directory %s has failed and is offline until the next start: %s",
                self.path,
                error,
            )

    def note_full(self, error: OSError) -> None:
        """Log that the disk is full, once between two checkpoints: producers retry at once. The
        broker is notified each time."""
        if self.on_full is not None:
            self.on_full(self)
        if self._full_noted_at != self.checkpoints_prepared:
            self._full_noted_at = self.checkpoints_prepared
            logger.error(
                "appends to %s are refused until there is free space: %s", self.path, error
            )

    def check(self) -> None:
        """Raise `ApiError` if the directory has failed."""
        if self.failure is not None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"log directory {self.path} is offline: {self.failure}; "
                "check the disk and restart the broker",
            )
