"""The index of aborted transactions of a segment, which read-committed consumers need.

`<base>.txnindex`, 34 bytes an entry, big-endian, in the order of their markers:

    2  version             0
    8  producer id
    8  first offset        of the transaction
    8  last offset         that of its abort marker, which lies in this segment
    8  last stable offset  as of the marker

The file exists only where a transaction was aborted. Crash rule: rebuilt from the log's markers
together with the other indexes of the segment.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millstream.errors import CorruptIndex
from millstream.storage.filesystem import FileSystem, read_file, write_file, write_fully

ENTRY = struct.Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """What a consumer must skip: the records of `producer_id` in [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """A segment's aborted transactions; nothing is kept in memory."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def append(self, fs: FileSystem, aborted: AbortedTransaction) -> None:
        fd = fs.open(self.path, create=True)
        try:
            write_fully(fs, fd, (ENTRY.pack(VERSION, *aborted),), fs.size(fd))
        finally:
            fs.close(fd)

    def read(self, fs: FileSystem) -> list[AbortedTransaction]:
        if not fs.exists(self.path):
            return []
        content = read_file(fs, self.path)
        if len(content) % ENTRY.size:
            raise CorruptIndex(f"{self.path} has {len(content)} bytes, no multiple of {ENTRY.size}")
        entries = []
        for version, *fields in ENTRY.iter_unpack(content):
            if version != VERSION:
                raise CorruptIndex(f"{self.path} has an entry of version {version}")
            entries.append(AbortedTransaction(*fields))
        return entries

    def overlapping(
        self, fs: FileSystem, first_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Those that concern a read of [first_offset, end_offset)."""
        return [
            aborted
            for aborted in self.read(fs)
            if aborted.last_offset >= first_offset and aborted.first_offset < end_offset
        ]

    def truncate(self, fs: FileSystem, end_offset: int) -> None:
        """Forget transactions whose marker is at or after `end_offset`."""
        if fs.exists(self.path):
            kept = [aborted for aborted in self.read(fs) if aborted.last_offset < end_offset]
            content = b"".join(ENTRY.pack(VERSION, *aborted) for aborted in kept)
            write_file(fs, self.path, content, sync=False)
