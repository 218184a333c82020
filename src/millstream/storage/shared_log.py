"""A log of record batches that several processes append to: the metadata log of the workers.

It is for few and small batches, so it has no index and no producer state, and every process keeps
its own position in it. Its files are named as those of an ordinary log, and tools read them:

    <directory>/
        .lock                           held while a process appends
        <base offset, 20 digits>.log    batches with contiguous offsets; the last file grows

A process appends under the lock: it reads to the end, compares, writes one batch and syncs it.
Reading needs no lock: a batch counts when all of it is there and its CRC is right, and the reader
syncs what it has read before anybody sees it, because the process that wrote it may have been
killed before its own sync.

Crash rule: only the last batch can be torn, since each is synced before the next is written. The
next process that holds the lock truncates it. Bytes that cannot be the torn end of one write are
corruption, which is reported and never cut off.

`roll` starts a new file, once a snapshot covers all batches, and removes the older ones. A reader
that had one of these open still reads it to its end and goes on with the file of that name; if even
that is gone, it was outrun (`Outrun`) and has to start again from the snapshot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.errors import ApiError, CorruptBatch, ErrorCode, MillstreamError, StorageError
from millstream.records.batch import BatchHeader, parse_header, verify_crc
from millstream.storage import names
from millstream.storage.filesystem import FileSystem, write_fully

LOCK_SECONDS_MAX = 30.0
LOCK_RETRY_SECONDS_MIN = 0.0005
LOCK_RETRY_SECONDS_MAX = 0.01


class Outrun(MillstreamError):
    """The batches that come next were removed: a snapshot contains them."""


class StoredBatch(NamedTuple):
    header: BatchHeader
    data: bytes


class SharedLog:
    """One process's view of the log. Belongs to one thread at a time; see the module."""

    def __init__(
        self, fs: FileSystem, path: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._fs = fs
        self._sleep = sleep
        self.path = path
        self.end_offset = 0  # of what was read
        self._base_offset = 0  # of the open file
        self._fd = -1
        self._position = 0  # in the open file
        fs.make_directory(path)

    @property
    def size_bytes(self) -> int:
        """What was read of the last file."""
        return self._position

    @property
    def stored_count(self) -> int:
        """The number of records in the last file."""
        return self.end_offset - self._base_offset

    def close(self) -> None:
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Blocks until no other process appends. Raises `ApiError` if that takes too long."""
        fd = self._lock()
        try:
            yield
        finally:
            self._fs.close(fd)

    def _lock(self) -> int:
        path = f"{self.path}/{names.LOCK}"
        pause, waited = LOCK_RETRY_SECONDS_MIN, 0.0
        while True:
            try:
                return self._fs.lock(path)
            except BlockingIOError:
                if waited >= LOCK_SECONDS_MAX:
                    raise ApiError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"another process has held {path} for {waited:.0f} s: is it stopped or "
                        "waiting for its disk?",
                    ) from None
            self._sleep(pause)
            waited += pause
            pause = min(pause * 1.5, LOCK_RETRY_SECONDS_MAX)

    # Under the lock

    def open_at(self, offset: int) -> None:
        """Start reading with the batch that contains `offset`, the end of a snapshot; 0: with the
        first. Creates an empty log. Only under the lock."""
        bases = self._bases()
        base = max((base for base in bases if base <= offset), default=None)
        if base is None and bases:
            raise StorageError(
                f"{self.path} begins at offset {bases[0]}, but the newest complete snapshot ends "
                f"at {offset}: restore the directory from a backup"
            )
        if base is None:
            self.end_offset = offset
            self._start_file(self._create(offset))
        else:
            fd = self._fs.open(self._file(base))
            self._fs.drop_cache(fd)  # after a failed sync it may contain more than the disk
            self.end_offset = base
            self._start_file(fd)

    def read_to_end(self) -> list[StoredBatch]:
        """The batches that are not yet read, durable. Truncates a torn one at the end. Only under
        the lock."""
        batches = self.read()
        size = self._fs.size(self._fd)
        if size > self._position:
            self._check_torn(size)
            self._fs.truncate(self._fd, self._position)
        return batches

    def append(self, batch: bytes) -> None:
        """Write one batch at the end and sync it. Only under the lock, after `read_to_end`.

        Raises `ApiError` if writing fails: then nothing has happened. If the sync fails
        (`OSError`), the file must not be trusted until the disk was repaired.
        """
        header = parse_header(batch)
        if header.base_offset != self.end_offset:
            raise StorageError(f"batch at {header.base_offset}, but the log ends {self.end_offset}")
        try:
            write_fully(self._fs, self._fd, (batch,), self._position)
        except OSError as error:
            self._fs.truncate(self._fd, self._position)
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"cannot append to {self.path}: {error}"
            ) from error
        self._fs.fdatasync(self._fd)
        self._position += len(batch)
        self.end_offset = header.next_offset

    def roll(self) -> None:
        """Start a new file and remove the older ones: a snapshot covers them. Only under the lock,
        after `read_to_end`."""
        if self.end_offset > self._base_offset:
            self._start_file(self._create(self.end_offset))
        for base in self._bases():  # in order: a reader must not find a later one without its own
            if base < self._base_offset:
                self._fs.unlink(self._file(base))

    # Without the lock

    @property
    def is_current(self) -> bool:
        """Whether everything was read. Does not wait for the disk."""
        if self._fs.size(self._fd) != self._position:
            return False
        return self.end_offset == self._base_offset or (
            self._fs.exists(self._file(self._base_offset))
            and not self._fs.exists(self._file(self.end_offset))
        )

    def read(self) -> list[StoredBatch]:
        """The whole batches that are not yet read, durable. Raises `Outrun`."""
        batches: list[StoredBatch] = []
        while True:
            found = self._read_file()
            if found:
                self._fs.fdatasync(self._fd)
                batches += found
            if not self._open_next():
                return batches

    def _read_file(self) -> list[StoredBatch]:
        size = self._fs.size(self._fd)
        if size <= self._position:
            return []
        data = self._fs.pread(self._fd, size - self._position, self._position)
        batches: list[StoredBatch] = []
        position = 0
        while position < len(data):
            header = _whole_batch(data, position)
            if header is None or header.base_offset != self.end_offset:
                break
            end = position + header.size_bytes
            batches.append(StoredBatch(header, data[position:end]))
            self.end_offset = header.next_offset
            position = end
        self._position += position
        return batches

    def _open_next(self) -> bool:
        """Go on with the next file, if there is one."""
        if self.end_offset == self._base_offset:
            return False
        try:
            fd = self._fs.open(self._file(self.end_offset))
        except FileNotFoundError:
            if self._fs.exists(self._file(self._base_offset)):
                return False
            raise Outrun(f"{self.path} has no batch at {self.end_offset} any more") from None
        self._start_file(fd)
        return True

    def _start_file(self, fd: int) -> None:
        """Read and append to the file that begins at the end of what was read."""
        self.close()
        self._fd, self._base_offset, self._position = fd, self.end_offset, 0

    # Inside

    def _check_torn(self, size: int) -> None:
        """Raise `StorageError` unless the rest of the file can be the torn end of one append."""
        rest = self._fs.pread(self._fd, size - self._position, self._position)
        later = [base for base in self._bases() if base > self.end_offset]
        with contextlib.suppress(CorruptBatch):
            after = parse_header(rest).size_bytes
            if after < len(rest) and _whole_batch(rest, after) is not None:
                later.append(self.end_offset + 1)
        if later:
            raise StorageError(
                f"{self._file(self._base_offset)} is corrupt at position {self._position}, and "
                f"later records follow: restore {self.path} from a backup"
            )

    def _create(self, base: int) -> int:
        fd = self._fs.open(self._file(base), create=True)
        self._fs.sync_directory(self.path)
        return fd

    def _file(self, base: int) -> str:
        return names.offset_file(self.path, base, names.LOG_SUFFIX)

    def _bases(self) -> list[int]:
        found = map(names.parse_offset_file, self._fs.listdir(self.path))
        return sorted(it[0] for it in found if it is not None and it[1] == names.LOG_SUFFIX)


def _whole_batch(data: bytes, position: int) -> BatchHeader | None:
    """The header of a batch that is complete and has the right CRC."""
    try:
        header = parse_header(data, position)
        verify_crc(data, position, header)
    except CorruptBatch:
        return None
    return header
