"""A checkpoint on a local disk has one running query: a lock for as long as the query runs.

The lock is `flock` on the file `millstream.lock` in the checkpoint, which contains the process id
of its owner. The kernel releases it when the process ends, however it ends. It is held by the
driver's Python process: from before the checkpoint is read until the query has ended.

Other file systems, and some mounts, have no such lock. There a second driver of the same query is
fenced by the brokers and by the store, and Spark refuses to write a file of the checkpoint that
exists if the file system can rename without overwriting (HDFS).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.query_files import is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

LOCK_FILE = "millstream.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

_held: dict[str, CheckpointLock] = {}  # by the real path of the checkpoint
_guard = threading.Lock()


@dataclass
class CheckpointLock:
    """A lock that this process holds; without a descriptor if the checkpoint is not local."""

    path: str
    descriptor: int | None = None
    query: StreamingQuery | None = None

    def hold_during(self, query: StreamingQuery) -> None:
        """Release it when the query has ended."""
        self.query = query
        if self.descriptor is not None:
            threading.Thread(
                target=self._release_after, args=(query,), name="checkpoint-lock", daemon=True
            ).start()

    def _release_after(self, query: StreamingQuery) -> None:
        with suppress(Exception):  # it failed, or the session was stopped: it has ended
            query.awaitTermination()
        with _guard:
            if self.query is query:  # it has not been restarted since
                self.release()

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
            del _held[self.path]


@contextmanager
def locked(location: str, *, is_required: bool = True) -> Iterator[CheckpointLock]:
    """Lock the checkpoint; raises `ConfigError` if another query runs on it.

    The lock is released at the end of the block unless `hold_during` was called. If the mount has
    no locks, only a caller that does not require one goes on: another process may run a query.
    """
    if not is_local(location):
        yield CheckpointLock(location)
        return
    with _guard:
        lock = _acquire(os.path.realpath(local_path(location)), is_required)
    try:
        yield lock
    finally:
        with _guard:
            if lock.query is None:
                lock.release()


def _acquire(path: str, is_required: bool) -> CheckpointLock:
    held = _held.get(path)
    if held is not None:
        if held.query is None or held.query.isActive:
            raise ConfigError(f"another query of this process runs on the checkpoint {path}")
        held.release()  # its thread has not seen yet that the query has ended
    Path(path).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(f"{path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, path, is_required)
    except BaseException:
        os.close(descriptor)
        raise
    with suppress(OSError):  # the disk may be full; the process id is only for the message
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    _held[path] = CheckpointLock(path, descriptor)
    return _held[path]


def _lock(descriptor: int, path: str, is_required: bool) -> None:
    file = f"{path}/{LOCK_FILE}"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = os.read(descriptor, 20).decode(errors="replace").strip()
        raise ConfigError(
            f"process {owner} runs a query on the checkpoint {path}: stop it first"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(error.errno, error.strerror, file) from error
        if is_required:
            raise ConfigError(
                f"{file} cannot be locked ({error.strerror}), so a query of another process may "
                f"run on the checkpoint {path}: move it to a file system with locks"
            ) from error
        logger.warning(
            "%s cannot be locked (%s): a second process with this checkpoint is not refused when "
            "it starts. It takes over, and brokers and store refuse the first one: run one only",
            file,
            error.strerror,
        )
