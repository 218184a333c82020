# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled cores of `Log` and `Segment`, and the steps that every small append and flush takes.

A broker with a thousand partitions appends one small batch to each of a thousand logs and flushes
them together. Then the cost of a request is the cost of the steps here: attributes of Python
objects that are no longer in the CPU cache, and calls. So the numbers that change with each append
are C fields of two base classes, `LogCore` and `SegmentCore`, and the steps are compiled:

    append_small      check a producer's batch, number it, write it, count it
    collect_dirty     what a flush of some logs has to make durable
    journal_entries   the same as entries for the journal
    encode_entries    the bytes of these entries in the journal
    note_flushed      move the durable ends

`append_small` handles the common case only: one sound, uncompressed batch outside of transactions,
whose versions fit, into a segment that has room. It does nothing in all
other cases, and the general path in `log.py` takes over and explains what is wrong. It is permitted
by `accept_small_appends`, which the general path calls after each append, with the settings as they
are then; whatever changes the segments or the settings revokes that.

The fields belong to the owner's thread, like those of the classes above them. They are declared in
`_core.pxd`, for the compiled steps of the broker.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os

from millstream.errors import CorruptBatch, FileGone
from millstream.records.batch import BatchHeader

include "../records/_read.pxi"
include "../records/_check.pxi"
include "../records/_hash.pxi"
include "_conditions.pxi"
include "_large_memory.pxi"
include "_key_entries.pxi"
include "_key_index.pxi"
include "_key_table.pxi"
include "_versions.pxi"

cdef enum:
    MAX_COPIED_BYTES = 4096     # of one append
    MAX_COPIES_BYTES = 16384
    RECENT = 32                 # positions that a log remembers; a power of two
    DATA_ENTRY = 1
    LENGTH_AND_CRC = 8
    DATA_HEAD = 33              # kind, topic id, partition, base offset, position
    TOPIC_ID_SIZE = 16

cdef int64_t UNKNOWN = INT64_MIN
cdef int64_t segment_count = 0  # that were made in this process
cdef object new_header = tuple.__new__

COPIED_BYTES_MAX = MAX_COPIED_BYTES
COPIES_BYTES_MAX = MAX_COPIES_BYTES
DATA = DATA_ENTRY
ENTRY_OVERHEAD_BYTES = LENGTH_AND_CRC + DATA_HEAD


cdef class FileHandle:
    """One file, open (`fd >= 0`) or not. See handles.py."""

    def __init__(self, str path, *, bint discarded=False):
        self.path = path
        self.fd = -1
        self.discarded = discarded


cdef class JournalCopies:
    """The bytes of a segment from some position to its end, if all of them are in memory.

    They are copies of small appends, kept until they are flushed: with them the journal need not
    read back from the segment what was just written there.
    """

    def __init__(self):
        self._buffers = []

    def add(self, list buffers, int64_t size):
        """Copy what was just written, unless it is too large."""
        if self.has_room(size):
            self._buffers.append(b"".join(buffers))
            self._size_bytes += size

    cdef bint has_room(self, int64_t size) except -1:
        if (size > MAX_COPIED_BYTES or not self._is_complete
                or self._size_bytes + size > MAX_COPIES_BYTES):
            self._is_complete = False
            self._buffers.clear()
            return False
        return True

    cpdef bytes take(self, int64_t start, int64_t end):
        """The bytes from `start` to `end`, where the segment ends; then begin again there. None if
        they are not all in memory."""
        cdef bytes taken = None
        if self._is_complete and self._start == start:
            taken = self._buffers[0] if len(self._buffers) == 1 else b"".join(self._buffers)
        self.restart(end)
        return taken

    cpdef restart(self, int64_t position):
        """Forget the copies: the next append is written at this position."""
        if self._buffers:
            self._buffers = []
        self._size_bytes = 0
        self._start = position
        self._is_complete = True


cdef class SegmentCore:
    """The numbers of a segment. See segment.py for what they mean."""

    def __cinit__(self, *_, **__):
        self._first_timestamp = UNKNOWN
        self._max_timestamp = UNKNOWN
        self.copies = JournalCopies()
        global segment_count
        segment_count += 1
        self._number = segment_count

    @property
    def first_timestamp(self):
        return None if self._first_timestamp == UNKNOWN else self._first_timestamp

    @first_timestamp.setter
    def first_timestamp(self, value):
        self._first_timestamp = UNKNOWN if value is None else value

    @property
    def max_timestamp(self):
        return None if self._max_timestamp == UNKNOWN else self._max_timestamp

    @max_timestamp.setter
    def max_timestamp(self, value):
        self._max_timestamp = UNKNOWN if value is None else value

    cpdef int64_t age_ms(self, int64_t now_ms, int64_t max_timestamp):
        """By the timestamps of records if present, as in Kafka's segment.ms."""
        if self._first_timestamp >= 0 and max_timestamp >= 0:
            return max_timestamp - self._first_timestamp
        return now_ms - self.created_ms

    cpdef note_durable(self, int64_t end, bint synced):
        """The bytes up to `end` are durable: in this file if `synced`, or in the journal."""
        if self.durable_bytes < end:
            self.durable_bytes = end
        if synced and self.synced_bytes < end:
            self.synced_bytes = end


cdef class LogCore:
    """The numbers of a log, and its small appends. See log.py for what they mean."""

    def __dealloc__(self):
        PyMem_Free(self._recent)

    def remember(self, SegmentCore segment, int64_t offset, int64_t position, int64_t generation):
        """The batch with this offset begins at this position. Any thread: no effect unless the
        log is still of the generation in which that was found."""
        if generation == self.generation:
            self.note_position(segment, offset, position)

    cdef int note_position(self, SegmentCore segment, int64_t offset, int64_t position) except -1:
        cdef Position* entry
        if self._recent is NULL:
            self._recent = <Position*>PyMem_Calloc(RECENT, sizeof(Position))
            if self._recent is NULL:
                raise MemoryError
        entry = &self._recent[offset & (RECENT - 1)]
        entry.offset = offset
        entry.segment = segment._number
        entry.position = position
        return 0

    def recall(self, SegmentCore segment, int64_t offset):
        """The position of the batch with this offset in the segment; -1 if it is not known."""
        cdef Position* entry
        if self._recent is NULL:
            return -1
        entry = &self._recent[offset & (RECENT - 1)]
        if entry.offset != offset or entry.segment != segment._number:
            return -1
        return entry.position

    def forget_positions(self):
        """Batches have moved."""
        if self._recent is not NULL:
            memset(self._recent, 0, RECENT * sizeof(Position))

    @property
    def accepts_small_appends(self):
        return self._open is not None

    def accept_small_appends(self, SegmentCore segment, int32_t leader_epoch, config, pwritev):
        """Permit them: the last append went to this segment in this epoch, and its indexes have
        room for one more entry each."""
        self._open = None
        if (config.message_timestamp_type != "CreateTime"
                or config.compression_type not in ("producer", "uncompressed")
                or config.millstream_conditional_append == "offset"
                or (config.millstream_conditional_append == "version" and self.versions is None)):
            return
        self._epoch = leader_epoch
        self._pwritev = pwritev
        self._batch_bytes_max = min(config.max_message_bytes, config.segment_bytes)
        self._segment_bytes = config.segment_bytes
        self._segment_ms = config.segment_ms
        self._index_interval_bytes = config.index_interval_bytes
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._keys_required = config.compact
        self._open = segment

    def refuse_small_appends(self):
        """Something they depend on has changed."""
        self._open = None

    def append_small(self, buffer, int32_t leader_epoch, int64_t now_ms):
        """Check and append a producer's batch; returns its first offset.

        -1 if it is not as simple as that: then nothing has happened. Raises as `Log.append` does.
        """
        cdef SegmentCore segment = self._open
        cdef Py_buffer view
        cdef Batch batch
        cdef int64_t size, last_offset, first_offset = self.log_end_offset
        cdef uint8_t* out
        cdef VersionTable versions = self.versions
        cdef KeyAndHeaders* records = NULL
        header = None
        if (segment is None or leader_epoch != self._epoch or self.is_truncating or self.is_deleted
                or segment.index is None or segment.handle.fd < 0
                or self.directory.failure is not None):
            return -1
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            size = view.len
            if (size > self._batch_bytes_max or segment.size + size > self._segment_bytes
                    or not open_small(<const uint8_t*>view.buf, size, &batch)
                    or batch.attributes & TRANSACTIONAL):
                return -1
            if versions is not None:
                records = versions.reserve(&batch)
            if not check_small(&batch, now_ms, self._before_max_ms, self._after_max_ms,
                               self._keys_required, records):
                return -1
            if versions is not None:
                versions.examine(batch.record_count)
            last_offset = first_offset + batch.last_offset_delta
            if (last_offset - segment.base_offset > INT32_MAX
                    or segment.age_ms(now_ms, max(batch.max_timestamp, -1))
                    > self._segment_ms - segment.roll_jitter_ms):
                return -1
            stamped = PyBytes_FromStringAndSize(<const char*>view.buf, size)
            if batch.producer_id >= 0:
                header = new_header(BatchHeader, header_fields(<const uint8_t*>view.buf, &batch))
                if self.check_producer(header, may_open=False) is not None:
                    return -1  # a duplicate
            if versions is not None and not versions.enter_small(
                    batch.record_count, first_offset, self.log_start_offset):
                return -1
        finally:
            PyBuffer_Release(&view)
        out = <uint8_t*>PyBytes_AS_STRING(stamped)
        store_int64(out, first_offset)
        store_int32(out + 12, leader_epoch)
        segment.handle.used = True
        try:
            try:
                written = self._pwritev(segment.handle.fd, (stamped,), segment.size)
            except OSError as error:
                raise self.write_failed(segment, error) from error
            if written != size:  # the kernel took a part
                self.write(segment, [stamped], size)
        except BaseException:
            if versions is not None:
                versions.roll_back()
            raise
        if versions is not None:
            versions.keep()
        if segment.copies.has_room(size):
            segment.copies._buffers.append(stamped)
            segment.copies._size_bytes += size
        self.log_end_offset = last_offset + 1  # before the segment's size: see `Log._read_range`
        self.note_position(segment, first_offset, segment.size)
        if batch.max_timestamp > segment._max_timestamp:
            segment._max_timestamp = batch.max_timestamp
            segment.max_timestamp_offset = last_offset
        if segment._bytes_since_index > self._index_interval_bytes:
            self.append_index_entry(segment, last_offset)
        segment._bytes_since_index += size
        segment.size += size
        if header is not None:
            self.producers.record(header, first_offset)
        return first_offset

    cdef int append_index_entry(self, SegmentCore segment, int64_t last_offset) except -1:
        """For the batch that was written where the segment's counted bytes end."""
        segment.append_index_entry(last_offset)
        segment._bytes_since_index = 0
        if not segment.has_index_room(self.config):
            self._open = None
        return 0


# Flushing


cdef class FlushTarget:
    """One log in a flush, as it was when the flush was prepared."""

    cdef readonly LogCore log
    cdef readonly int64_t generation
    cdef readonly int64_t end_offset
    cdef readonly object names_changed  # None if no names in its directory are to be synced
    # The dirty bytes of the last segment: where they start and end, and the bytes themselves if
    # they are in memory. Those of earlier segments, newest first.
    cdef SegmentCore _segment
    cdef int64_t _start
    cdef int64_t _end
    cdef bytes _data
    cdef list _earlier

    @property
    def ranges(self):
        """(segment, start, end, bytes or None) of all that is dirty, oldest segment first."""
        if self._segment is None:
            return []
        ranges = [(self._segment, self._start, self._end, self._data)]
        if self._earlier is not None:
            ranges += self._earlier
            ranges.reverse()
        return ranges


cdef class DirtyLogs:
    """What a flush has to make durable in one log directory."""

    cdef readonly object directory
    cdef readonly list targets
    cdef readonly int64_t range_count
    cdef readonly int64_t size_bytes
    cdef readonly int64_t new_count  # of logs that were never flushed

    cdef int add(self, LogCore log) except -1:
        cdef FlushTarget target = FlushTarget.__new__(FlushTarget)
        cdef SegmentCore segment
        cdef Py_ssize_t number = len(log._segments)
        while number > 0:
            number -= 1
            segment = <SegmentCore>log._segments[number]
            if segment.synced_bytes < segment.size:
                data = segment.copies.take(segment.durable_bytes, segment.size)
                self.range_count += 1
                self.size_bytes += segment.size - segment.durable_bytes
                if target._segment is None:
                    target._segment = segment
                    target._start = segment.durable_bytes
                    target._end = segment.size
                    target._data = data
                else:
                    if target._earlier is None:
                        target._earlier = []
                    target._earlier.append((segment, segment.durable_bytes, segment.size, data))
            elif segment.size:
                break  # segments are synced in order: all before this one are
        if log.names_synced < log.names_changed:
            target.names_changed = log.names_changed
        elif target._segment is None:
            return 0
        target.log = log
        target.generation = log.generation
        target.end_offset = log.log_end_offset
        self.targets.append(target)
        if log.is_new:
            self.new_count += 1
        return 0


def collect_dirty(logs, bint to_segments):
    """A `DirtyLogs` for each directory in which logs have bytes that are not durable.

    With `to_segments`, bytes that only the journal has count as not durable.
    """
    cdef dict found = {}
    cdef DirtyLogs dirty = None
    cdef LogCore log
    for log in logs:
        if log.is_deleted or (not to_segments and log.flushed_offset == log.log_end_offset):
            continue
        if dirty is None or dirty.directory is not log.directory:
            if log.directory.failure is not None:
                continue
            dirty = found.get(log.directory)
            if dirty is None:
                dirty = DirtyLogs.__new__(DirtyLogs)
                dirty.directory = log.directory
                dirty.targets = []
                found[log.directory] = dirty
        dirty.add(log)
    return [dirty for dirty in found.values() if dirty.targets]


def journal_entries(list targets):
    """The dirty bytes as (log id, base offset of the segment, position, bytes); None if a log has
    no id. Reads what is not in memory. Logs that were deleted or truncated since are left out:
    their bytes must not come back. Any thread."""
    cdef FlushTarget target
    cdef list entries = []
    for target in targets:
        if target.log.log_id is None:
            return None
        if target.log.is_deleted or target.log.generation != target.generation:
            continue
        if target._segment is not None and target._earlier is None and target._data:
            entries.append((target.log.log_id, target._segment.base_offset, target._start,
                            target._data))
            continue
        for segment, start, end, data in target.ranges:
            if data:
                entries.append((target.log.log_id, segment.base_offset, start, data))
            elif start < end:  # otherwise in the journal already
                try:
                    read = segment.read_at(end - start, start, may_block=True)
                except FileGone:
                    continue
                entries.append((target.log.log_id, segment.base_offset, start, read))
    return entries


def note_flushed(list targets, int64_t now_ms, bint synced):
    """All of it is durable, in the segments' own files if `synced`, or in the journal. Logs that
    were deleted or truncated since are left out."""
    cdef FlushTarget target
    cdef LogCore log
    cdef SegmentCore segment
    for target in targets:
        log = target.log
        if log.is_deleted or log.generation != target.generation:
            continue
        log.is_new = False
        if target._segment is not None:
            target._segment.note_durable(target._end, synced)
            if target._earlier is not None:
                for earlier in target._earlier:
                    segment = earlier[0]
                    segment.note_durable(earlier[2], synced)
        if synced and target.names_changed is not None:
            log.names_synced = max(log.names_synced, <int64_t>target.names_changed)
        if log.flushed_offset < target.end_offset:
            log.flushed_offset = target.end_offset
        log.last_flush_ms = now_ms
        if synced:
            log.advance_recovery_point(target.end_offset)


def encode_entries(entries, uint32_t seed):
    """Data entries of the journal, as they stand in its file. See journal.py for the format;
    `seed` is the CRC of the generation."""
    cdef Py_ssize_t size = 0
    cdef Py_buffer view
    cdef uint8_t* at
    cdef bytes topic_id
    for entry in entries:
        size += LENGTH_AND_CRC + DATA_HEAD + len(entry[3])
    encoded = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t*>PyBytes_AS_STRING(encoded)
    for (topic_id, partition), base_offset, position, data in entries:
        if PyBytes_GET_SIZE(topic_id) != TOPIC_ID_SIZE:
            raise ValueError("a topic id has 16 bytes")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            store_int32(at, <int32_t>(DATA_HEAD + view.len))
            at[8] = DATA_ENTRY
            memcpy(at + 9, PyBytes_AS_STRING(topic_id), TOPIC_ID_SIZE)
            store_int32(at + 25, partition)
            store_int64(at + 29, base_offset)
            store_int32(at + 37, <int32_t><uint32_t>position)
            memcpy(at + LENGTH_AND_CRC + DATA_HEAD, view.buf, view.len)
            store_int32(at + 4, <int32_t>crc32c_from(seed, at + 8, DATA_HEAD + view.len))
            at += LENGTH_AND_CRC + DATA_HEAD + view.len
        finally:
            PyBuffer_Release(&view)
    return encoded
