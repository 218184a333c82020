"""One partition's log.

A log is a list of segments, oldest first; appends go to the last one. It assigns offsets, so all
calls must come from one thread, the owner's. `read(..., may_block=True)` and look-ups by timestamp
may run in any other thread at the same time: they use a list of segments that is replaced, never
changed, and files that stay open until they are done.

Four offsets:

    log_start_offset, recovery_point <= flushed_offset <= log_end_offset

`log_start_offset`: nothing below it is served, even if its segment contains more.
`flushed_offset`: all below it is durable, in its segment's file or in the directory's journal.
`recovery_point`: all below it is durable in its segment's file; recovery scans from there.

Its files are created with its first append (`creation.py`), and it may be deleted at any moment
(`lifetime.py`). `log_versions.py` is the part for conditional appends. What else is done with a log
is in modules that import this one.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode, FileGone, LogGone, NotCached
from millstream.records._walk import stamp_batch
from millstream.records.batch import (
    LENGTH_OVERHEAD_BYTES,
    PREFIX,
    PREFIX_SIZE_BYTES,
    BatchHeader,
    Buffer,
)
from millstream.storage import names
from millstream.storage.checkpoints import write_partition_metadata
from millstream.storage.directory import LogDirectory
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.file_range import FileRange
from millstream.storage.filesystem import write_file
from millstream.storage.log_versions import LogVersions
from millstream.storage.producers import ProducerStates, replay_marker
from millstream.storage.segment import Segment

logger = logging.getLogger(__name__)

# Checking CRCs takes 1 to 10 ms a megabyte: more than this is left to a thread.
VERIFIED_INLINE_BYTES_MAX = 65_536
# Below this, asking what is in the page cache costs more than a copy.
SENT_FROM_FILE_BYTES_MIN = 256 * 1024
SMALL_BYTES_MAX = 4096  # up to here, copying a batch costs less than a list of its pieces


class Appended(NamedTuple):
    """The offsets of appended batches: from `first_offset` up to, but excluding, `next_offset`."""

    first_offset: int
    next_offset: int


class Log(LogVersions):
    """See the module. Created by `LogDirectories` only."""

    __slots__ = (
        "_active",
        "_bases",
        "aborted_segments",
        "epochs",
        "has_files",
        "producers",
        "saved_recovery_point",
        "snapshots",
        "topic_id",
    )

    def __init__(
        self,
        directory: LogDirectory,
        topic: str,
        partition: int,
        topic_id: UUID | None,
        config: TopicConfig,
    ) -> None:
        super().__init__(directory, topic, partition, config)
        self.topic_id: UUID | None = None
        # Its id in the journal; a log of an unknown topic has none.
        self.log_id = None
        if topic_id is not None:
            self.set_topic_id(topic_id)
        self.epochs = LeaderEpochs(self.path)
        self.producers = ProducerStates()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.recovery_point = 0
        self.saved_recovery_point = 0  # as of the last checkpoint
        self.last_flush_ms = 0
        # Incremented when written bytes change (truncation): it invalidates earlier flushes.
        self.generation = 0
        # How often the names in the directory (new segments) have changed, and up to which change
        # they are durable: counts, for a segment may be begun while a flush is under way. And
        # whether the log is new, so that even its own name may be lost. Flushes see to both.
        self.names_changed = 0
        self.names_synced = 0
        self.is_new = False
        self.has_files = True  # a new log has none before its first append (`creation.py`)
        self.is_truncating = False  # nothing may be appended
        # Offsets of the producer snapshots, ascending.
        self.snapshots: list[int] = []
        self._segments = []
        self._bases: list[int] = []
        self.aborted_segments: list[Segment] = []  # in which a transaction was aborted
        self._active: Segment

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>"

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> list[Segment]:
        """Oldest first. The list is replaced, never changed: safe to keep or iterate."""
        return self._segments

    @property
    def active_segment(self) -> Segment:
        return self._active

    @property
    def names_unsynced(self) -> bool:
        return self.names_synced < self.names_changed

    @property
    def has_unsynced_closed_segment(self) -> bool:
        """Whether recovery would have to scan more than the active segment."""
        closed = self._segments[-2] if len(self._segments) > 1 else None
        return closed is not None and closed.synced_bytes < closed.size

    # Appending

    def check_producer(self, header: BatchHeader, *, may_open: bool = True) -> Appended | None:
        """The earlier append, if this batch is a duplicate.

        Raises `ApiError` for an invalid sequence or epoch, or if the batch would open a
        transaction and `may_open` is false."""
        if header.producer_id < 0:
            return None
        batch = self.producers.check(header, may_open=may_open)
        if batch is None:
            return None
        return Appended(batch.first_offset, batch.last_offset + 1)

    def append(
        self, records: Buffer, headers: Sequence[BatchHeader], *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Assign offsets to the batches and append them.

        `headers` are those of all batches in `records`, in order. Nothing has happened if it
        raises: `KAFKA_STORAGE_ERROR` when the disk is full or the directory has failed, `LogGone`
        when the log was deleted.
        """
        if self.directory.failure is not None or self.is_deleted:
            self.check()
        size = len(records)
        first_offset = offset = self.log_end_offset
        buffers: list[Buffer]
        if size <= SMALL_BYTES_MAX and len(headers) == 1:  # what most requests of producers have
            buffers = [stamp_batch(records, offset, leader_epoch)]
            offset += headers[0].last_offset_delta + 1
            max_timestamp = max(headers[0].max_timestamp, -1)
        else:
            buffers, offset, max_timestamp = _stamp(records, headers, offset, leader_epoch)
        segment = self._segment_for(size, offset - 1, max_timestamp, now_ms)
        self.write(segment, buffers, size)
        segment.copies.add(buffers, size)
        self.log_end_offset = offset  # before the segment's size: see `_read_range`
        self._note(segment, headers, first_offset, records)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, first_offset)
        if segment.has_index_room(self.config):
            pwritev = self.directory.fs.pwritev
            self.accept_small_appends(segment, leader_epoch, self.config, pwritev)
        else:
            self.refuse_small_appends()
        return Appended(first_offset, offset)

    def append_as_is(
        self, records: memoryview, headers: Sequence[BatchHeader], *, now_ms: int
    ) -> list[tuple[int, int]]:
        """Append batches that have their offsets and epochs already (`following.py`).

        A batch that is larger than a segment may be gets one of its own. Returns the transactions
        that end in them: where each begins, and the offset of its marker. Raises as `append`.
        """
        self.check()
        size = len(records)
        max_timestamp = max(-1, *(header.max_timestamp for header in headers))
        fitting = min(size, self.config.segment_bytes)
        segment = self._segment_for(fitting, headers[-1].last_offset, max_timestamp, now_ms)
        self.refuse_small_appends()
        buffers: list[Buffer] = [records]
        self.write(segment, buffers, size)
        segment.copies.add(buffers, size)
        if not segment.size:
            segment.first_timestamp = headers[0].max_timestamp
        self.log_end_offset = headers[-1].next_offset  # before the segment's size, as in `append`
        start = 0
        ended: list[tuple[int, int]] = []
        for header in headers:
            batch = records[start : start + header.size_bytes]
            if header.is_control:
                first_offset = self.producers.open_transaction(header.producer_id)
                if first_offset is not None:
                    ended.append((first_offset, header.base_offset))
            self._note(segment, (header,), header.base_offset, batch)
            if header.leader_epoch != self.epochs.latest:
                # This broker may have led from here on without a batch, in a later epoch.
                self.epochs.truncate_from_end(header.base_offset)
                self.epochs.assign(header.leader_epoch, header.base_offset)
            start += header.size_bytes
        return ended

    def assign_epoch(self, leader_epoch: int) -> int:
        """This broker leads from here on: the epoch starts at the log's end, before it has a batch
        (KIP-279). Returns that offset."""
        self.epochs.assign(leader_epoch, self.log_end_offset)
        return self.log_end_offset

    def _segment_for(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The segment for `size` more bytes: the active one, or a new one."""
        segment = self._active
        config = self.config
        if self.is_truncating:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition} is being truncated"
            )
        if segment.index is None:
            self.check()
            segment.wake(now_ms=now_ms)
            segment.draw_jitter(config)
            self.directory.transaction_indexes.forget(segment)  # its file will say more
        if segment.size == 0:
            segment.first_timestamp = max_timestamp
            if size > config.segment_bytes:
                raise ApiError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"{size} bytes do not fit into a segment of {config.segment_bytes} "
                    "(segment.bytes); send smaller batches",
                )
            if not self.has_files:
                self.create_files(now_ms)
            if last_offset - segment.base_offset < 2**31:
                return segment
        elif (
            not segment.is_full(config, size, last_offset)
            and segment.age_ms(now_ms, max_timestamp) <= config.segment_ms - segment.roll_jitter_ms
        ):
            return segment
        segment = self.roll(now_ms)
        segment.first_timestamp = max_timestamp
        return segment

    def create_files(self, now_ms: int) -> None:
        """The files of a new log (`creation.py`). What an earlier attempt left is used."""
        self.check()
        fs = self.directory.fs
        try:
            fs.make_directory(self.path)
            if self.topic_id is not None:
                write_partition_metadata(fs, self.path, self.topic_id)
            self._active.create_file()
        except OSError as error:
            raise self.storage_error("create", error) from error
        self._active.created_ms = now_ms
        self.names_changed += 1
        self.is_new = self.has_files = True

    def write(self, segment: Segment, buffers: list[Buffer], size: int) -> None:
        """Write bytes at the end of a segment; the caller then counts them. Raises as `append`."""
        try:
            if len(buffers) <= 1024:  # what the kernel takes at once
                segment.write(buffers, size)
            else:
                segment.write([b"".join(buffers)], size)
        except FileGone:
            raise LogGone(self.topic, self.partition) from None
        except OSError as error:
            raise self.write_failed(segment, error) from error

    def write_failed(self, segment: Segment, error: OSError) -> ApiError:
        """What to raise when bytes could not be written; takes back those that were."""
        self._undo_write(segment, error)
        return ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"cannot append to {segment.handle.path}: {error}"
        )

    def _undo_write(self, segment: Segment, error: OSError) -> None:
        """If the disk is full, only this append fails: its bytes are truncated, and the directory
        stays online. Any other error, or a failed truncation, fails the directory."""
        try:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise error
            fd = self.directory.handles.owner_fd(segment.handle)
            self.directory.fs.truncate(fd, segment.size)
            self.directory.note_full(error)
        except OSError as failure:
            self.directory.fail(failure)

    def _note(
        self, segment: Segment, headers: Sequence[BatchHeader], offset: int, records: Buffer
    ) -> None:
        """Update indexes, producers and recent positions for new batches."""
        interval = self.config.index_interval_bytes
        start = segment.size
        for header in headers:
            position = segment.size
            self.remember(segment, offset, position, self.generation)
            last_offset = offset + header.last_offset_delta
            segment.note_batch(
                last_offset, header.length + LENGTH_OVERHEAD_BYTES, header.max_timestamp, interval
            )
            if header.producer_id >= 0:
                if header.is_control:
                    batch = memoryview(records)[position - start :]
                    self._note_marker(segment, header, batch, offset)
                else:
                    self.producers.record(header, offset)
            offset = last_offset + 1

    def _note_marker(
        self, segment: Segment, header: BatchHeader, batch: memoryview, offset: int
    ) -> None:
        self.end_transaction_of_versions(header, batch)
        aborted = replay_marker(self.producers, header, batch, offset)
        if aborted is not None:
            segment.note_aborted(aborted)
            if segment not in self.aborted_segments:
                self.aborted_segments.append(segment)

    def roll(self, now_ms: int) -> Segment:
        """Seal the active segment and start a new one at the log's end."""
        self.check()
        directory = self.directory
        base_offset = self.log_end_offset
        try:
            self.save_snapshot()
            self._active.seal()
            # A thread may have read the file before the segment was woken, and cached that.
            directory.transaction_indexes.forget(self._active)
            segment = Segment.create(
                directory.handles, self.path, base_offset, now_ms=now_ms, config=self.config
            )
        except OSError as error:
            raise self.storage_error("roll", error) from error
        self.names_changed += 1
        self.set_segments([*self._segments, segment])
        return segment

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, may_block: bool = False
    ) -> bytes | bytearray:
        """Whole batches from the one that contains `offset`, below `end_offset`.

        As many as fit into `max_bytes`, and at least one if there is any. Raises `NotCached` rather
        than wait for the disk unless `may_block`; `CorruptBatch`, naming the place, instead of
        serving bytes that do not match their CRC.
        """
        if not may_block:  # the owner's thread
            found = self.read_to_send(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_send_file=False
            )
            assert not isinstance(found, FileRange)
            return found
        while True:
            generation = self.generation
            try:
                found = self._read(offset, max_bytes, end_offset, generation, may_block=True)
                assert not isinstance(found, FileRange)
            except CorruptBatch:
                if generation == self.generation:
                    raise
            else:
                if generation == self.generation:
                    return found
            # Truncated meanwhile: other batches may be where this thread has looked.

    def read_to_send(
        self, offset: int, *, max_bytes: int, end_offset: int, may_send_file: bool
    ) -> bytes | bytearray | FileRange:
        """As `read` in the owner's thread without blocking. Many bytes are not read if the caller
        may send them from the file, at once."""
        return self._read(
            offset,
            max_bytes,
            end_offset,
            self.generation,
            may_block=False,
            may_send_file=may_send_file,
        )

    def _read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        generation: int,
        *,
        may_block: bool,
        may_send_file: bool = False,
    ) -> bytes | bytearray | FileRange:
        if self.directory.failure is not None or self.is_deleted:
            self.check()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition} is not in "
                f"{self.log_start_offset}..{self.log_end_offset}",
            )
        end_offset = min(end_offset, self.log_end_offset)
        while offset < end_offset:
            segments, number = self.find_segment(offset)
            segment = segments[number]
            try:
                start = self._position(segment, offset, may_block=may_block)
                if start is not None:
                    found = self._read_range(
                        segment,
                        start,
                        max_bytes,
                        end_offset,
                        generation,
                        may_block=may_block,
                        may_send_file=may_send_file,
                    )
                    if isinstance(found, FileRange) and number + 1 < len(segments):
                        found.end_offset = min(found.end_offset, segments[number + 1].base_offset)
                    return found
            except (FileGone, FileNotFoundError):
                if self.is_deleted:
                    raise LogGone(self.topic, self.partition) from None
                if segment in self._segments:
                    raise
                continue  # removed or replaced meanwhile
            if number + 1 == len(segments):
                break
            offset = segments[number + 1].base_offset  # compaction left nothing at the end of this
        return b""

    def find_segment(self, offset: int) -> tuple[list[Segment], int]:
        """All segments, and the index of the one for the offset."""
        segments, bases = self._segments, self._bases
        if len(segments) != len(bases):  # read in another thread during a change
            bases = [segment.base_offset for segment in segments]
        return segments, max(bisect_right(bases, offset) - 1, 0)

    def _position(self, segment: Segment, offset: int, *, may_block: bool) -> int | None:
        """The position of the batch that contains `offset`, or of the first after it."""
        position = self.recall(segment, offset)
        if position >= 0:
            return position if position < segment.size else None
        if offset <= segment.base_offset:
            return 0 if segment.size else None
        found = segment.locate(offset, may_block=may_block)
        return None if found is None else found[0]

    def _read_range(
        self,
        segment: Segment,
        start: int,
        max_bytes: int,
        end_offset: int,
        generation: int,
        *,
        may_block: bool,
        may_send_file: bool,
    ) -> bytes | bytearray | FileRange:
        # In this order: an append in the owner's thread moves the log's end before the size, so
        # what lies below `limit` lies below the end that is read after it.
        limit = segment.size
        if end_offset < self.log_end_offset:
            end = self._position(segment, end_offset, may_block=may_block)
            if end is not None:
                limit = min(limit, end)
        if limit - start > max_bytes:
            limit, end_offset = self._last_batch_end(
                segment, start, start + max_bytes, generation, may_block=may_block
            )
        if limit <= start:
            return b""
        must_verify = start < segment.trusted_from and limit > segment.verified_bytes
        if must_verify and not may_block and limit - start > VERIFIED_INLINE_BYTES_MAX:
            raise NotCached(f"{limit - start} bytes at {start} are to be verified first")
        if may_send_file and not must_verify and limit - start >= SENT_FROM_FILE_BYTES_MIN:
            file_range = segment.file_range(limit - start, start, end_offset)
            if file_range is not None:
                return file_range
        data = segment.read_at(limit - start, start, may_block=may_block)
        if must_verify:
            good = segment.verify(data, start)
            if good < len(data):
                data = data[:good]
        return data

    def _last_batch_end(
        self, segment: Segment, start: int, limit: int, generation: int, *, may_block: bool
    ) -> tuple[int, int]:
        """The last batch boundary in (start, limit], or that of the first batch if it is larger;
        and the offset there."""
        position = max(start, segment.batch_start_before(limit, may_block=may_block))
        boundary, offset = position, segment.base_offset
        for found, header in segment.walk(position, may_block=may_block):
            boundary, offset = found + header.size_bytes, header.next_offset
            if boundary > limit and found > start:
                boundary, offset = found, header.base_offset
            if boundary >= limit or boundary == found:
                self.remember(segment, offset, boundary, generation)
                break
        return boundary, offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Durability

    def advance_recovery_point(self, end_offset: int) -> None:
        """Everything below `end_offset` has been synced in the segments' own files."""
        # Segments are synced in order, so the oldest unsynced one marks the recovery point.
        recovery_point = end_offset
        for segment in reversed(self._segments):
            if segment.synced_bytes < min(segment.size, segment.durable_bytes):
                recovery_point = segment.base_offset
            elif segment.size and segment.synced_bytes == segment.size:
                break
        self.recovery_point = max(self.recovery_point, recovery_point)

    # Producers

    def save_snapshot(self) -> None:
        """Save the producer state at the log's end. A torn snapshot is detected and ignored."""
        offset = self.log_end_offset
        path = names.offset_file(self.path, offset, names.SNAPSHOT_SUFFIX)
        write_file(self.directory.fs, path, self.producers.encode_snapshot(), sync=False)
        if not self.snapshots or self.snapshots[-1] < offset:
            self.snapshots.append(offset)

    # Removing

    def delete_records_before(self, offset: int) -> None:
        """Move the log's start; the next retention deletes whole segments before it."""
        if offset > self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {offset}: {self.topic}-{self.partition} ends at "
                f"{self.log_end_offset}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def set_topic_id(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.log_id = (_bytes_of(topic_id), self.partition)

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.refuse_small_appends()
        self.match_versions()

    def unsynced_names(self) -> list[str]:
        """Directories to sync so that the names of the log's files are durable."""
        if not self.is_new:
            return [self.path]
        return [f"{self.path}/{names.PARTITION_METADATA}", self.path, self.directory.path]

    def close(self) -> None:
        """Close all files without writing."""
        for segment in self._segments:
            segment.close()

    # The list of segments

    def set_segments(self, segments: list[Segment]) -> None:
        self._active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._segments = segments
        self.refuse_small_appends()
        self.aborted_segments = [segment for segment in segments if segment.has_aborted]


@lru_cache(maxsize=1024)
def _bytes_of(topic_id: UUID) -> bytes:
    """One object for all logs of a topic: each flush hashes it for each of its logs."""
    return topic_id.bytes


def _stamp(
    records: Buffer, headers: Sequence[BatchHeader], offset: int, leader_epoch: int
) -> tuple[list[Buffer], int, int]:
    """The batches with offsets from `offset` on, in pieces that share the bytes of `records`; the
    offset after them, and the largest timestamp."""
    view = memoryview(records)
    buffers: list[Buffer] = []
    start = 0
    max_timestamp = -1
    for header in headers:
        length = header.length
        end = start + length + LENGTH_OVERHEAD_BYTES
        buffers.append(PREFIX.pack(offset, length, leader_epoch))
        buffers.append(view[start + PREFIX_SIZE_BYTES : end])
        start = end
        offset += header.last_offset_delta + 1
        max_timestamp = max(max_timestamp, header.max_timestamp)
    return buffers, offset, max_timestamp
