"""The index of aborted transactions of a segment, which read-committed consumers need.

`<base>.txnindex`, 34 bytes an entry, big-endian, in the order of their markers:

    2  version             0
    8  producer id
    8  first offset        of the transaction
    8  last offset         that of its abort marker, which lies in this segment
    8  last stable offset  as of the marker: where the oldest transaction begins that was still open

The file exists only where a transaction was aborted. A segment that is appended to has its entries
in memory; they are written when it is sealed, or at a clean stop. Crash rule: after a crash, those
of the segments that recovery scans are rebuilt from the log's markers (`producer_replay.py`);
those of older segments were synced before the recovery point was saved.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from millstream.errors import CorruptIndex, NotCached
from millstream.storage.filesystem import FileSystem, read_file, write_file

ENTRY = struct.Struct(">hqqqq")
VERSION = 0
ENTRIES_CACHED_MAX = 100_000


class AbortedTransaction(NamedTuple):
    """Records that a consumer must skip: those of `producer_id` in [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The file."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, fs: FileSystem, entries: Sequence[AbortedTransaction], *, sync: bool) -> None:
        content = b"".join(ENTRY.pack(VERSION, *aborted) for aborted in entries)
        write_file(fs, self.path, content, sync=sync)

    def read(self, fs: FileSystem, *, may_block: bool = True) -> list[AbortedTransaction]:
        """Raises `CorruptIndex`, and `FileNotFoundError` if nothing was aborted."""
        content = read_file(fs, self.path, may_block=may_block)
        if len(content) % ENTRY.size:
            raise CorruptIndex(
                f"{self.path} has {len(content)} bytes, not a multiple of {ENTRY.size}"
            )
        entries = []
        for version, *fields in ENTRY.iter_unpack(content):
            if version != VERSION:
                raise CorruptIndex(f"{self.path} has an entry of version {version}")
            entries.append(AbortedTransaction(*fields))
        return entries


def overlapping(
    entries: Sequence[AbortedTransaction], first_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Transactions in [first_offset, end_offset), and whether later segments cannot have more:
    a transaction that ends after an entry started at its last stable offset or later."""
    found = []
    start = bisect_left(entries, first_offset, key=lambda aborted: aborted.last_offset)
    for aborted in entries[start:]:
        if aborted.first_offset < end_offset:
            found.append(aborted)
        if aborted.last_stable_offset >= end_offset:
            return found, True
    return found, False


class IndexedSegment(Protocol):
    """The part of a segment that the cache reads."""

    @property
    def fs(self) -> FileSystem: ...

    @property
    def transaction_index(self) -> TransactionIndex: ...

    @property
    def aborted(self) -> list[AbortedTransaction] | None:
        """The entries of a segment that is appended to; None: they are in the file."""


class TransactionIndexCache:
    """Cache of the indexes of sealed segments.

    Bounded by the number of entries (some 150 bytes each). Safe in any thread.
    """

    def __init__(self, entries_max: int = ENTRIES_CACHED_MAX) -> None:
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._cached: OrderedDict[IndexedSegment, list[AbortedTransaction]] = OrderedDict()
        self._entry_count = 0
        self._forgotten_count = 0  # how often a file has changed

    def read(self, segment: IndexedSegment, *, may_block: bool) -> list[AbortedTransaction]:
        """Raises `NotCached` rather than read the disk unless it `may_block`."""
        with self._lock:
            entries = self._cached.get(segment)
            if entries is not None:
                self._cached.move_to_end(segment)
                return entries
            forgotten_count = self._forgotten_count
        if not may_block:
            raise NotCached(f"{segment.transaction_index.path} is to be read first")
        entries = segment.transaction_index.read(segment.fs)
        with self._lock:
            if forgotten_count != self._forgotten_count or segment.aborted is not None:
                return entries  # as of the beginning of this read; the file may say more by now
            self._remove(segment)
            self._cached[segment] = entries
            self._entry_count += len(entries)
            while self._entry_count > self._entries_max and len(self._cached) > 1:
                self._remove(next(iter(self._cached)))
        return entries

    def forget(self, segment: IndexedSegment) -> None:
        """The file has changed or was deleted."""
        with self._lock:
            self._forgotten_count += 1
            self._remove(segment)

    def _remove(self, segment: IndexedSegment) -> None:
        self._entry_count -= len(self._cached.pop(segment, ()))
