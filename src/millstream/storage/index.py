"""The sparse indexes of a segment: offset -> position and timestamp -> offset.

`<base>.index`, 8 bytes an entry, big-endian:

    4  relative offset   last offset of the batch at that position, minus the segment's base offset
    4  position          where that batch begins in the .log file

    With base offset 50, a batch that ends with offset 55 and begins at byte 4200 gives (5, 4200).

`<base>.timeindex`, 12 bytes an entry, big-endian:

    8  timestamp         the largest timestamp of the segment up to and with that batch
    4  relative offset   last offset of the batch in which that timestamp stands

Entries of both strictly increase. There is one for about every `index.interval.bytes` of log; a
time index ends with the segment's largest timestamp once the segment is closed.

An index being written is kept in memory and saved when its segment is flushed, rolled or closed;
that of a closed segment is searched on disk, a few cached reads a search. No checksum: the log is
the truth. After a crash the entries past the recovery point are rebuilt from it, and a file that
is missing, of odd size or out of order is rebuilt whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from millstream.storage.filesystem import FileSystem, read_file, write_fully

Entry = tuple[int, int]
ReadAt = Callable[[int, int], "bytes | bytearray"]

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")

RELATIVE_OFFSET_MAX = 2**31 - 1


class SparseIndex:
    """Sorted pairs of fixed size, appended in memory, saved to a file."""

    __slots__ = ("_entries", "_saved_bytes", "path")

    entry: struct.Struct

    def __init__(self, path: str) -> None:
        self.path = path
        self._entries = bytearray()
        self._saved_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) // self.entry.size

    def __getitem__(self, number: int) -> Entry:
        first, second = self.entry.unpack_from(self._entries, number * self.entry.size)
        return first, second

    @property
    def last(self) -> Entry | None:
        return self[len(self) - 1] if self._entries else None

    @property
    def size_bytes(self) -> int:
        return len(self._entries)

    def append(self, first: int, second: int) -> None:
        self._entries += self.entry.pack(first, second)

    def truncate(self, count: int) -> None:
        del self._entries[count * self.entry.size :]
        self._saved_bytes = min(self._saved_bytes, len(self._entries))

    def is_sorted(self) -> bool:
        """Whether both fields strictly increase, as those of a sound index do."""
        before = (-1, -1)
        for pair in self.entry.iter_unpack(self._entries):
            if pair[0] <= before[0] or pair[1] <= before[1]:
                return False
            before = pair
        return True

    def floor(self, target: int, field: int = 0) -> Entry | None:
        """The last entry whose field is at most `target`."""
        number = search(self.entry, self.read_memory, len(self), target, field)
        return self[number] if number >= 0 else None

    def read_memory(self, size: int, position: int) -> bytearray:
        return self._entries[position : position + size]

    def load(self, fs: FileSystem, *, may_block: bool = True) -> None:
        """Read the file; a size that is no multiple of an entry's loses the odd bytes."""
        try:
            content = read_file(fs, self.path, may_block=may_block)
        except FileNotFoundError:
            content = b""
        self._entries = bytearray(content[: len(content) - len(content) % self.entry.size])
        # Odd bytes at the end are overwritten by the next save.
        self._saved_bytes = len(self._entries)

    def encode(self) -> bytes:
        """All entries, as they stand in the file."""
        return bytes(self._entries)

    def save(self, fs: FileSystem, *, sync: bool = False) -> None:
        """Write what is not in the file yet; creates it."""
        fd = fs.open(self.path, create=True)
        try:
            if self._saved_bytes < len(self._entries):
                write_fully(fs, fd, (self._entries[self._saved_bytes :],), self._saved_bytes)
                self._saved_bytes = len(self._entries)
            if fs.size(fd) > len(self._entries):
                fs.truncate(fd, len(self._entries))
            if sync:
                fs.fdatasync(fd)
        finally:
            fs.close(fd)


class OffsetIndex(SparseIndex):
    """(relative offset, position)"""

    __slots__ = ()
    entry = OFFSET_ENTRY


class TimeIndex(SparseIndex):
    """(timestamp, relative offset)"""

    __slots__ = ()
    entry = TIME_ENTRY


def search(entry: struct.Struct, read_at: ReadAt, count: int, target: int, field: int) -> int:
    """Number of the last of `count` entries whose field is at most `target`, or -1."""
    size = entry.size
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if entry.unpack(read_at(size, middle * size))[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


def search_count(index: SparseIndex, target: int, field: int) -> int:
    """How many entries of an index in memory have a field of at most `target`."""
    return search(index.entry, index.read_memory, len(index), target, field) + 1
