"""The journal of a log directory: one file to sync instead of many.

A flush that spans many partitions would sync many files, at a tenth of a millisecond each. Instead,
the bytes are also written to the end of one file, and only that is synced: `millstream-journal-0`
or `-1`, in the root of the log directory, where Kafka does not look. The segments themselves are
synced later, in the background, and then the journal is dropped. The two files alternate: one is
filled while the segments that the other covers are synced.

It is also faster for a single small write: the file is allocated ahead, so a sync of it changes no
metadata of the file system, unlike one of a segment that has grown.

Format, big-endian. A file begins with

    8  magic        "MSJRNL01"
    8  generation   incremented each time a journal is started; the older journal is replayed first
    4  CRC-32C      of the 16 bytes before

and goes on with entries:

    4  length       of what follows after the CRC
    4  CRC-32C      of the generation and of what follows: an entry left over from an earlier use of
                    the file does not match
    1  kind         1 data, 2 void
   16  topic id
    4  partition
    8  base offset  of the segment             (data only, and so on)
    4  position     in the segment's file
    n  bytes        whole batches

and ends with zeros, up to which it is allocated.

Crash rule. Entries are read up to the first that is short or whose CRC is wrong; nothing after it
was ever acknowledged. Replay writes an entry's bytes at their place, and so can be repeated. A
*void* entry invalidates earlier entries of its log. It is written, after the log's own files are
synced, before journaled bytes are changed or removed (truncation). Entries of deleted logs or
segments and those below the recovery point are ignored; so is the whole journal after a clean stop,
which leaves none. See docs/formats/journal.md.
"""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from millstream.records.batch import Buffer
from millstream.records.checksum import crc32c
from millstream.storage import names
from millstream.storage._core import encode_entries
from millstream.storage.filesystem import FileSystem, read_file, write_fully

MAGIC = b"MSJRNL01"
HEADER = struct.Struct(">8sQI")
ENTRY_PREFIX = struct.Struct(">II")
LOG_ID = struct.Struct(">B16si")
PLACE = struct.Struct(">qI")
GENERATION = struct.Struct(">Q")

VOID = 2

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
ALLOCATED_BYTES = 256 * 1024  # by which a file grows
BUFFERS_PER_WRITE = 1024

LogId = tuple[bytes, int]  # topic id and partition
# What a `JournalEntry` with data holds, as a plain tuple: a flush writes one for each of its logs.
DataEntry: TypeAlias = tuple[LogId, int, int, Buffer]


class JournalEntry(NamedTuple):
    """Bytes of a segment, or (`data` None) a void entry."""

    log_id: LogId
    base_offset: int = 0
    position: int = 0
    data: Buffer | None = None


class JournalFile:
    """One of the two files, and which logs have entries in it."""

    __slots__ = (
        "_allocated_bytes",
        "_fs",
        "fd",
        "free",
        "generation",
        "log_ids",
        "name_synced",
        "path",
        "size",
    )

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._allocated_bytes = 0  # length of the file
        self.path = path
        self.fd = -1
        self.free = True
        self.name_synced = False
        self.generation = 0
        self.size = 0
        self.log_ids: set[LogId] = set()

    def begin(self, generation: int) -> None:
        """Start a new generation. The file keeps its length, to keep its blocks allocated: entries
        of the previous generation no longer match their CRC."""
        if self.fd < 0:
            self.fd = self._fs.open(self.path, create=True)
            self._allocated_bytes = self._fs.size(self.fd)
        prefix = MAGIC + GENERATION.pack(generation)
        write_fully(self._fs, self.fd, (prefix + struct.pack(">I", crc32c(prefix)),), 0)
        self.generation = generation
        self.size = HEADER.size
        self.log_ids = set()
        self.free = False

    def append(self, entries: Sequence[DataEntry]) -> None:
        """Write and sync; returns when the entries are durable."""
        self._write([encode_entries(entries, self._seed())])
        self.log_ids.update([entry[0] for entry in entries])

    def append_voids(self, log_ids: Sequence[LogId]) -> None:
        """The same for void entries."""
        self._write(_encode_voids(log_ids, self._seed()))

    def _seed(self) -> int:
        return crc32c(GENERATION.pack(self.generation))

    def _write(self, buffers: list[Buffer]) -> None:
        position = self.size
        for start in range(0, len(buffers), BUFFERS_PER_WRITE):
            part = buffers[start : start + BUFFERS_PER_WRITE]
            position = write_fully(self._fs, self.fd, part, position)
        if position > self._allocated_bytes:
            self._allocate_after(position)
        self._fs.fdatasync(self.fd)
        self.size = position

    def _allocate_after(self, position: int) -> None:
        """Write zeros after the entries. A sync of bytes that are overwritten waits for the disk
        once; one of a file that grows also waits for the journal of the file system."""
        zeros = bytes(ALLOCATED_BYTES)
        try:
            self._allocated_bytes = write_fully(self._fs, self.fd, (zeros,), position)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._allocated_bytes = position  # the entries themselves were written

    def drop(self, generation: int) -> None:
        """Everything in it is durable elsewhere: drop it durably."""
        self.begin(generation)
        self._fs.fdatasync(self.fd)
        self.free = True

    def remove(self) -> None:
        self.close()
        if self._fs.exists(self.path):
            self._fs.unlink(self.path)

    def close(self) -> None:
        if self.fd >= 0:
            self._fs.close(self.fd)
            self.fd = -1


class Journal:
    """The two files of a directory. Safe to use from several threads."""

    def __init__(
        self, fs: FileSystem, directory: str, *, bytes_max: int = JOURNAL_BYTES_MAX
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files = [JournalFile(fs, f"{directory}/{name}") for name in names.JOURNALS]
        self._current: JournalFile | None = None
        self._full: JournalFile | None = None
        self._generation = 0
        self._erased_generation = 0  # files up to this one are removed, not dropped
        self.void_count = 0  # how often `void` was called

    def start(self) -> None:
        """After replay: continue with the next generation, and drop both files."""
        found = [read_generation(self._fs, file.path) for file in self._files]
        self._generation = max((generation or 0 for generation in found), default=0)
        for file in self._files:
            if self._fs.exists(file.path):
                self._generation += 1
                file.drop(self._generation)
                file.name_synced = True  # or else recovery would not have found it

    def append(
        self, entries: Sequence[DataEntry], size: int, *, void_count: int | None = None
    ) -> bool:
        """Make the entries, of `size` bytes in total, durable.

        False, without any effect, if there is no room (the disk is full, or the segments of the
        other file are not synced yet), or if entries were voided since the journal had this
        `void_count`, which the caller read before it checked its logs.
        """
        with self._lock:
            current = self._current
            if size > self._bytes_max or void_count not in (None, self.void_count):
                return False
            if current is not None and current.size + size > self._bytes_max:
                if self._full is not None:
                    return False
                self._full = current
                self._current = current = None  # no longer, even if the next cannot be begun
            try:
                if current is None:
                    current = self._begin()
                current.append(entries)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return False  # the segments have their bytes already and can be synced
            return True

    def _begin(self) -> JournalFile:
        file = next(file for file in self._files if file.free)
        self._generation += 1
        file.begin(self._generation)
        if not file.name_synced:
            self._fs.sync_directory(self._directory)
            file.name_synced = True
        self._current = file
        return file

    def void(self, *log_ids: LogId) -> None:
        """Void the entries of logs durably; their own files are synced, or they are deleted."""
        with self._lock:
            self.void_count += 1
            mentioned = [
                log_id for log_id in log_ids if any(log_id in file.log_ids for file in self._files)
            ]
            if mentioned:
                current = self._current
                if current is None:
                    current = self._begin()
                current.append_voids(mentioned)
                for file in self._files:
                    file.log_ids.difference_update(mentioned)

    def full_log_ids(self) -> set[LogId] | None:
        """The logs whose segments must be synced before the full file can be dropped, if one is."""
        with self._lock:
            return None if self._full is None else set(self._full.log_ids)

    def drop_full(self) -> None:
        """The segments that the full file covers have been synced."""
        with self._lock:
            if self._full is not None:
                self._drop(self._full)
                self._full = None
                if self._current is not None and self._is_to_be_erased(self._current):
                    self._full, self._current = self._current, None

    def erase(self) -> None:
        """Remove the bytes that both files have now from the disk, as soon as the segments have
        been synced: dropped entries stay in their file until others are written over them."""
        with self._lock:
            self._erased_generation = self._generation
            for file in self._files:
                if file.free:
                    self._drop(file)
            if self._full is None and self._current is not None:
                self._full, self._current = self._current, None

    @property
    def is_erased(self) -> bool:
        """Whether what `erase` was called for is done."""
        with self._lock:
            return not any(self._is_to_be_erased(file) for file in self._files)

    def _is_to_be_erased(self, file: JournalFile) -> bool:
        return file.generation <= self._erased_generation and self._fs.exists(file.path)

    def _drop(self, file: JournalFile) -> None:
        if self._is_to_be_erased(file):
            file.remove()
            self._fs.sync_directory(self._directory)
            file.free, file.name_synced = True, False
        else:
            self._generation += 1
            file.drop(self._generation)

    def remove(self) -> None:
        """A clean stop: every segment has been synced."""
        for file in self._files:
            file.remove()
        self._current = self._full = None
        self._fs.sync_directory(self._directory)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _encode_voids(log_ids: Sequence[LogId], seed: int) -> list[Buffer]:
    heads = [LOG_ID.pack(VOID, *log_id) for log_id in log_ids]
    return [ENTRY_PREFIX.pack(len(head), crc32c(head, seed)) + head for head in heads]


def read_generation(fs: FileSystem, path: str) -> int | None:
    """The generation in a journal's header; None if it is empty, absent or torn."""
    try:
        fd = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return _parse_header(fs.pread(fd, HEADER.size, 0))
    finally:
        fs.close(fd)


def _parse_header(content: bytes) -> int | None:
    if len(content) < HEADER.size:
        return None
    magic, generation, crc = HEADER.unpack_from(content)
    if magic != MAGIC or crc != crc32c(content[: HEADER.size - 4]):
        return None
    return int(generation)


def read_journals(fs: FileSystem, directory: str) -> list[JournalEntry]:
    """All valid entries, oldest first, without those before a log's last void entry."""
    journals = []
    for name in names.JOURNALS:
        try:
            content = read_file(fs, f"{directory}/{name}")
        except FileNotFoundError:
            continue
        generation = _parse_header(content)
        if generation is not None:
            journals.append((generation, content))
    entries: list[JournalEntry] = []
    for generation, content in sorted(journals):
        for entry in _parse_entries(content, generation):
            if entry.data is None:
                entries = [earlier for earlier in entries if earlier.log_id != entry.log_id]
            else:
                entries.append(entry)
    return entries


def _parse_entries(content: bytes, generation: int) -> Iterator[JournalEntry]:
    view = memoryview(content)
    seed = crc32c(GENERATION.pack(generation))
    position = HEADER.size
    while position + ENTRY_PREFIX.size + LOG_ID.size <= len(content):
        length, crc = ENTRY_PREFIX.unpack_from(content, position)
        start = position + ENTRY_PREFIX.size
        end = start + length
        if end > len(content) or length < LOG_ID.size or crc32c(view[start:end], seed) != crc:
            return
        kind, topic_id, partition = LOG_ID.unpack_from(content, start)
        log_id = (topic_id, partition)
        if kind == VOID:
            yield JournalEntry(log_id)
        else:
            base_offset, place = PLACE.unpack_from(content, start + LOG_ID.size)
            data = view[start + LOG_ID.size + PLACE.size : end]
            yield JournalEntry(log_id, base_offset, place, data)
        position = end
