"""One segment: a file of record batches, with its two indexes.

`<base offset, 20 digits>.log` is a sequence of batches and nothing else; see
docs/formats/segments.md. A segment is *active* while it is appended to (its indexes are in memory)
and *sealed* afterwards (its indexes are files, searched in place). The bytes of a segment never
change, except by truncation; compaction replaces it.

Durability is measured in bytes of the file: `synced_bytes` are on the disk in this file,
`durable_bytes` are there or in the directory's journal. Both only grow: the durable bytes are
always a prefix.

Appends and non-blocking reads belong to the owner's thread; reads with `may_block` may come from
any thread, also while the segment is being deleted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from millstream.config.topic import TopicConfig
from millstream.errors import CorruptBatch, NotCached
from millstream.records.batch import (
    HEADER_SIZE_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    parse_header,
    verify_crc,
)
from millstream.storage import names
from millstream.storage._core import FileHandle, SegmentCore
from millstream.storage.file_range import FileRange
from millstream.storage.filesystem import FileSystem, SyncBatch, write_fully
from millstream.storage.handles import FileHandles
from millstream.storage.index import (
    OFFSET_ENTRY,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    Entry,
    OffsetIndex,
    TimeIndex,
    search,
    search_count,
)
from millstream.storage.transactions import AbortedTransaction, TransactionIndex

WALK_CHUNK_BYTES = 16_384
# An active segment from this size on has its indexes synced when its recovery point is saved, and
# recovery trusts them; a smaller one is scanned whole.
INDEXED_BYTES_MIN = 4 * 1024 * 1024


class Segment(SegmentCore):
    """A file of batches from `base_offset` on."""

    __slots__ = (
        "_handles",
        "_index_handle",
        "_time_index_handle",
        "aborted",
        "directory",
        "has_aborted",
        "indexes_synced",
        "is_closed",
        "suffix",
        "trusted_from",
        "verified_bytes",
    )

    def __init__(
        self, handles: FileHandles, directory: str, base_offset: int, *, suffix: str = ""
    ) -> None:
        self._handles = handles
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.handle = FileHandle(self.path(names.LOG_SUFFIX))
        self.size = 0
        self.synced_bytes = 0
        self.durable_bytes = 0
        # The bytes of an earlier process are served only after their CRCs have been checked. They
        # reach up to `trusted_from`; how far from the start they were checked is `verified_bytes`.
        self.trusted_from = 0
        self.verified_bytes = 0
        # In memory while active; None in a sealed segment, whose indexes are files.
        self.index = None
        self.time_index = None
        # The aborted transactions whose markers are here, likewise, and whether there are any.
        self.aborted: list[AbortedTransaction] | None = None
        self.has_aborted = False
        self._index_handle: FileHandle | None = None
        self._time_index_handle: FileHandle | None = None
        self.is_closed = False
        self.indexes_synced = True
        self._bytes_since_index = 0
        # Of the whole segment; None until they are asked for after a restart.
        self.max_timestamp = None
        self.max_timestamp_offset = base_offset
        self.first_timestamp = None
        self.created_ms = 0
        self.roll_jitter_ms = 0

    @classmethod
    def create(
        cls,
        handles: FileHandles,
        directory: str,
        base_offset: int,
        *,
        now_ms: int,
        config: TopicConfig,
        suffix: str = "",
    ) -> Segment:
        """A new, empty, active one, with its file."""
        segment = cls.without_file(
            handles, directory, base_offset, now_ms=now_ms, config=config, suffix=suffix
        )
        segment.create_file()
        return segment

    @classmethod
    def without_file(
        cls,
        handles: FileHandles,
        directory: str,
        base_offset: int,
        *,
        now_ms: int,
        config: TopicConfig,
        suffix: str = "",
    ) -> Segment:
        """A new, empty, active one. Call `create_file` before the first write."""
        segment = cls(handles, directory, base_offset, suffix=suffix)
        segment.index = OffsetIndex(segment.path(names.INDEX_SUFFIX))
        segment.time_index = TimeIndex(segment.path(names.TIME_INDEX_SUFFIX))
        segment.aborted = []
        segment.max_timestamp = NO_TIMESTAMP
        segment.created_ms = now_ms
        segment.draw_jitter(config)
        return segment

    def create_file(self) -> None:
        """Its name is durable once the directory is synced."""
        fs = self._handles.fs
        fd = fs.open(self.handle.path, create=True)
        try:
            if fs.size(fd):
                fs.truncate(fd, 0)  # left by a failed append
        finally:
            fs.close(fd)

    @property
    def fs(self) -> FileSystem:
        return self._handles.fs

    def path(self, suffix: str) -> str:
        return names.offset_file(self.directory, self.base_offset, suffix) + self.suffix

    def draw_jitter(self, config: TopicConfig) -> None:
        """Random jitter, so that segments of many partitions do not all roll at once."""
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self.roll_jitter_ms = random.randrange(jitter_ms) if jitter_ms else 0

    # Appending: the owner's thread

    def write(self, buffers: list[Buffer], size: int) -> None:
        """Write bytes at the end of the file. They count only when `size` is increased, below."""
        fd = self.handle.fd
        if fd < 0:
            fd = self._handles.owner_fd(self.handle)
        self.handle.used = True
        if self._handles.fs.pwritev(fd, buffers, self.size) != size:
            write_fully(self._handles.fs, fd, buffers, self.size)

    def note_batch(
        self, last_offset: int, size: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Count the batch written at the end of the file."""
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]  # known while active
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > index_interval_bytes:
            self.append_index_entry(last_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size
        self.size += size

    def append_index_entry(self, last_offset: int) -> None:
        """For the batch written at the end of the file, before it is counted."""
        assert self.index is not None
        self.index.append(last_offset - self.base_offset, self.size)
        self.append_time_entry()

    def append_time_entry(self) -> None:
        """Append the largest timestamp so far, unless it is already in the index."""
        assert self.time_index is not None
        if self.max_timestamp is None or self.max_timestamp < 0:
            return
        relative = self.max_timestamp_offset - self.base_offset
        last = self.time_index.last
        if last is None or (self.max_timestamp > last[0] and relative > last[1]):
            self.time_index.append(self.max_timestamp, relative)

    def is_full(self, config: TopicConfig, size: int, last_offset: int) -> bool:
        """Whether `size` more bytes that end with `last_offset` need a new segment."""
        return (
            self.size + size > config.segment_bytes
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or not self.has_index_room(config)
        )

    def has_index_room(self, config: TopicConfig) -> bool:
        """Whether another entry fits into each index."""
        assert self.index is not None
        assert self.time_index is not None
        limit = config.segment_index_bytes
        return (
            self.index.size_bytes + OFFSET_ENTRY.size <= limit
            # One is kept for the largest timestamp, which is written when the segment is sealed.
            and self.time_index.size_bytes + 2 * TIME_ENTRY.size <= limit
        )

    # Sealing and activating

    def save_indexes(self) -> None:
        """Write the indexes of an active segment to their files."""
        if self.index is not None and self.time_index is not None:
            self.index.save(self.fs)
            self.time_index.save(self.fs)

    def write_indexes(self, batch: SyncBatch) -> None:
        """Write the current indexes of an active segment."""
        if self.index is not None and self.time_index is not None:
            batch.write(self.index.path, self.index.encode())
            batch.write(self.time_index.path, self.time_index.encode())

    def seal(self) -> None:
        """End appends: record the largest timestamp and write the indexes."""
        if self.index is not None:
            self.append_time_entry()
            self.save_indexes()
            if self.aborted:
                self.transaction_index.write(self.fs, self.aborted, sync=False)
            self.index = self.time_index = self.aborted = None
            self.indexes_synced = False

    def has_index_files(self) -> bool:
        return all(
            self.fs.exists(self.path(suffix))
            for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        )

    def index_files(self) -> list[str]:
        """The existing index files."""
        paths = [self.path(suffix) for suffix in names.INDEX_SUFFIXES]
        return [path for path in paths if self.fs.exists(path)]

    def sync_indexes(self) -> None:
        """Before the recovery point is saved: recovery will trust the indexes below it."""
        self.fs.sync_all(self.directory, self.index_files())
        self.indexes_synced = True

    def wake(self, *, now_ms: int) -> None:
        """Make a segment read from disk active: load its indexes and timestamps into memory.

        Waits for the disk only for what is not cached: at most once in the life of a log that was
        read from disk, and for no more than its indexes and the bytes that these do not cover.
        """
        try:
            self._load(may_block=False)
        except NotCached:
            self._load(may_block=True)
        self.created_ms = now_ms
        self._bytes_since_index = 0

    def _load(self, *, may_block: bool) -> None:
        fs = self._handles.fs
        self.load_first_timestamp(may_block=may_block)
        self.load_timestamps(may_block=may_block)
        index = OffsetIndex(self.path(names.INDEX_SUFFIX))
        index.load(fs, may_block=may_block)
        time_index = TimeIndex(self.path(names.TIME_INDEX_SUFFIX))
        time_index.load(fs, may_block=may_block)
        aborted = self.read_aborted(may_block=may_block)
        self.index, self.time_index, self.aborted = index, time_index, aborted

    def resume_indexes(self, index: OffsetIndex, time_index: TimeIndex) -> None:
        """Continue with these index entries, which cover all batches so far."""
        self.index, self.time_index = index, time_index
        last = time_index.last
        self.max_timestamp = last[0] if last else NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset + (last[1] if last else 0)
        self._bytes_since_index = 0

    def load_first_timestamp(self, *, may_block: bool = True) -> None:
        """Find the first batch's timestamp, if there is a batch."""
        self.first_timestamp = None
        if self.size:
            self.first_timestamp = next(self.walk(0, may_block=may_block))[1].max_timestamp

    def load_timestamps(self, *, may_block: bool = True) -> None:
        """Find the largest timestamp of a segment that was read from disk."""
        if self.max_timestamp is None:
            self.note_max_timestamp(*self.find_max_timestamp(may_block=may_block))

    def note_max_timestamp(self, timestamp: int, offset: int) -> None:
        """What another thread has found, unless it is known by now."""
        if self.max_timestamp is None:
            self.max_timestamp_offset = offset
            self.max_timestamp = timestamp

    def find_max_timestamp(self, *, may_block: bool = True) -> tuple[int, int]:
        """The largest timestamp and its offset, from the files. Changes nothing: safe in any
        thread, also while the owner activates the segment."""
        last = self._last_time_entry(may_block=may_block)
        timestamp, offset = NO_TIMESTAMP, self.base_offset
        position = 0
        if last is not None:
            timestamp, offset = last[0], self.base_offset + last[1]
            position = self.floor_position(offset, may_block=may_block)
        # A segment that was being written may hold larger ones past its last entry.
        for _, header in self.walk(position, may_block=may_block):
            if header.max_timestamp > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        return timestamp, offset

    # Reading: any thread with may_block, the owner's without

    def read_at(self, size: int, position: int, *, may_block: bool) -> bytes | bytearray:
        return self._read(self.handle, size, position, may_block=may_block)

    def _read(
        self, handle: FileHandle, size: int, position: int, *, may_block: bool
    ) -> bytes | bytearray:
        handles = self._handles
        if may_block:
            with handles.borrowed(handle) as fd:
                return handles.fs.pread(fd, size, position)
        fd = handle.fd
        if fd < 0:
            fd = handles.owner_fd(handle)
        handle.used = True
        return handles.fs.pread_cached(fd, size, position)

    def file_range(self, size: int, position: int, end_offset: int) -> FileRange | None:
        """A range to be sent from the page cache, by the owner's thread; None if not all of it is
        there. The offsets in it are below `end_offset`."""
        handles = self._handles
        if not handles.fs.is_cached(handles.owner_fd(self.handle), size, position):
            return None
        return FileRange(handles, self.handle, position, size, end_offset)

    def walk(
        self, position: int, *, may_block: bool, end: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from `position`, which must be a batch's, on."""
        size = self.size if end is None else end
        chunk: bytes | bytearray = b""
        chunk_start = 0
        while position < size:
            at = position - chunk_start
            if at + HEADER_SIZE_BYTES > len(chunk):
                want = min(WALK_CHUNK_BYTES, self.size - position)
                chunk = self.read_at(want, position, may_block=may_block)
                chunk_start, at = position, 0
            try:
                header = parse_header(chunk, at)
            except CorruptBatch as error:
                raise self._corrupt(position, error) from None
            if position + header.size_bytes > self.size:
                raise self._corrupt(position, CorruptBatch("the batch exceeds the segment"))
            yield position, header
            position += header.size_bytes

    def locate(self, offset: int, *, may_block: bool) -> tuple[int, BatchHeader] | None:
        """The first batch that ends at or after `offset`; None if all of them end before."""
        position = self.floor_position(offset, may_block=may_block)
        try:
            return self._locate_from(position, offset, may_block=may_block)
        except CorruptBatch:
            if position == 0:
                raise
            # The index may be wrong; the log is authoritative.
            return self._locate_from(0, offset, may_block=may_block)

    def _locate_from(
        self, position: int, offset: int, *, may_block: bool
    ) -> tuple[int, BatchHeader] | None:
        for found, header in self.walk(position, may_block=may_block):
            if header.last_offset >= offset:
                return found, header
        return None

    def floor_position(self, offset: int, *, may_block: bool) -> int:
        """Where to start a scan for `offset`: the last indexed batch that ends at or before it."""
        entry = self._search_index(offset - self.base_offset, 0, may_block=may_block)
        return entry[1] if entry else 0

    def batch_start_before(self, position: int, *, may_block: bool) -> int:
        """The last indexed start of a batch at or before `position`."""
        entry = self._search_index(position, 1, may_block=may_block)
        return entry[1] if entry else 0

    def floor_timestamp(self, timestamp: int, *, may_block: bool) -> int:
        """An offset before which every timestamp is smaller than `timestamp`."""
        time_index = self.time_index
        if time_index is not None:
            entry = time_index.floor(timestamp - 1)
        else:
            handle = self._time_index_handle
            if handle is None:
                with self._handles.lock:  # with `close`: see there
                    handle = self._new_handle(names.TIME_INDEX_SUFFIX)
                    self._time_index_handle = handle
            entry = self._search_file(handle, TIME_ENTRY.size, timestamp - 1, may_block=may_block)
        return self.base_offset + entry[1] if entry else self.base_offset

    def _search_index(self, target: int, field: int, *, may_block: bool) -> Entry | None:
        index = self.index
        if index is not None:
            return index.floor(target, field)
        handle = self._index_handle
        if handle is None:
            with self._handles.lock:  # with `close`: see there
                handle = self._index_handle = self._new_handle(names.INDEX_SUFFIX)
        return self._search_file(handle, OFFSET_ENTRY.size, target, field, may_block=may_block)

    def _new_handle(self, suffix: str) -> FileHandle:
        return FileHandle(self.path(suffix), discarded=self.is_closed)

    def _search_file(
        self, handle: FileHandle, entry_size: int, target: int, field: int = 0, *, may_block: bool
    ) -> Entry | None:
        def read_at(size: int, position: int) -> bytes | bytearray:
            return self._read(handle, size, position, may_block=may_block)

        entry = OFFSET_ENTRY if entry_size == OFFSET_ENTRY.size else TIME_ENTRY
        try:
            with self._handles.borrowed(handle) as fd:
                count = self._handles.fs.size(fd) // entry_size
        except FileNotFoundError:
            return None
        number = search(entry, read_at, count, target, field)
        if number < 0:
            return None
        first, second = entry.unpack(read_at(entry_size, number * entry_size))
        return first, second

    def _last_time_entry(self, *, may_block: bool) -> Entry | None:
        index = TimeIndex(self.path(names.TIME_INDEX_SUFFIX))
        index.load(self._handles.fs, may_block=may_block)
        return index.last

    def verify(self, data: Buffer, position: int) -> int:
        """Check the CRCs of whole batches that were read at `position`.

        Returns how many bytes are good; raises `CorruptBatch`, naming file, position and offset, if
        the first batch is not.
        """
        good = 0
        while good < len(data):
            try:
                header = parse_header(data, good)
                verify_crc(data, good, header)
            except CorruptBatch as error:
                if good == 0:
                    raise self._corrupt(position, error) from None
                break
            good += header.size_bytes
        if position <= self.verified_bytes < position + good:
            self.verified_bytes = position + good
        return good

    def _corrupt(self, position: int, error: CorruptBatch) -> CorruptBatch:
        return CorruptBatch(f"{self.handle.path} is corrupt at byte {position}: {error}")

    def index_size_bytes(self) -> int:
        """Size of the offset index."""
        if self.index is not None:
            return self.index.size_bytes
        path = self.path(names.INDEX_SUFFIX)
        return self.fs.file_size(path) if self.fs.exists(path) else 0

    # Aborted transactions

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """A transaction whose abort marker is in this segment, which is appended to."""
        if self.aborted is None:
            self.aborted = self.read_aborted()
        self.aborted.append(aborted)
        self.has_aborted = True

    def read_aborted(self, *, may_block: bool = True) -> list[AbortedTransaction]:
        """A copy of all aborted transactions. Safe in any thread, also during a roll."""
        aborted = self.aborted
        if aborted is not None:
            return list(aborted)
        if not self.has_aborted:
            return []
        return self.transaction_index.read(self.fs, may_block=may_block)

    def set_aborted(self, aborted: list[AbortedTransaction]) -> None:
        """Replace them all; durably, if they are in a file."""
        if self.index is not None:
            self.aborted = aborted
        else:
            self.aborted = None
            if aborted or self.has_aborted:
                self.transaction_index.write(self.fs, aborted, sync=True)
                self.fs.sync_directory(self.directory)  # the file may be new
        self.has_aborted = bool(aborted)

    @property
    def transaction_index(self) -> TransactionIndex:
        return TransactionIndex(self.path(names.TRANSACTION_INDEX_SUFFIX))

    # The end of a segment

    def cut(self, position: int) -> None:
        """Owner's thread: the segment ends at `position`, the start of a batch.

        It is asleep then: the next append reads the indexes again, once `cut_files` has returned.
        """
        self.size = self.synced_bytes = self.durable_bytes = position
        self.copies.restart(position)
        self.verified_bytes = min(self.verified_bytes, position)
        self.trusted_from = min(self.trusted_from, position)
        if self.index is not None and self.time_index is not None:
            # `cut_files` removes the entries that are too many.
            self.save_indexes()
            self.index = self.time_index = None
        if self.aborted is not None:
            self.transaction_index.write(self.fs, self.aborted, sync=False)
            self.aborted = None
        self.max_timestamp = None

    def cut_files(self, position: int, end_offset: int) -> None:
        """Make `cut` durable. On any thread; blocks."""
        fs = self._handles.fs
        with self._handles.borrowed(self.handle) as fd:
            fs.truncate(fd, position)
            fs.fdatasync(fd)
        relative = end_offset - self.base_offset
        index = OffsetIndex(self.path(names.INDEX_SUFFIX))
        time_index = TimeIndex(self.path(names.TIME_INDEX_SUFFIX))
        index.load(fs)
        time_index.load(fs)
        index.truncate(search_count(index, relative - 1, 0))
        time_index.truncate(search_count(time_index, relative - 1, 1))
        index.save(fs, sync=True)
        time_index.save(fs, sync=True)
        self.set_aborted([it for it in self.read_aborted() if it.last_offset < end_offset])

    def change_suffix(self, suffix: str) -> None:
        """Give the files another suffix (`.swap`, `.deleted`); readers keep finding them."""
        known = {handle.path: handle for handle in self._file_handles()}
        # The log is renamed first, and last when the suffix is dropped: as long as it has the
        # suffix, recovery can finish the operation, and an index can be rebuilt.
        kinds = names.SEGMENT_SUFFIXES if suffix else names.SEGMENT_SUFFIXES[::-1]
        before = {kind: self.path(kind) for kind in kinds}
        self.suffix = suffix
        for kind, path in before.items():
            if path in known:
                self._handles.rename(known[path], self.path(kind))
            elif self.fs.exists(path):
                self.fs.rename(path, self.path(kind))

    def release(self) -> None:
        """Close the files for now; the next use opens them again."""
        for handle in self._file_handles():
            self._handles.release(handle)

    def close(self) -> None:
        """Close the files permanently. Reads in progress in other threads finish; later ones raise
        `FileGone`, even if they are the first to need an index file."""
        with self._handles.lock:
            self.is_closed = True
        for handle in self._file_handles():
            self._handles.discard(handle)

    def _file_handles(self) -> list[FileHandle]:
        handles = (self.handle, self._index_handle, self._time_index_handle)
        return [handle for handle in handles if handle is not None]
