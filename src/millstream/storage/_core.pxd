# cython: language_level=3
"""The fields of the compiled classes. See _core.pyx."""

from libc.stdint cimport int32_t, int64_t


cdef struct Position:
    # Where a batch begins. An entry for a segment that was replaced since matches no segment.
    int64_t offset
    int64_t segment     # its number
    int64_t position


cdef class FileHandle:
    cdef public int fd
    cdef public int64_t pins
    cdef public bint used
    cdef public bint discarded
    cdef public str path


cdef class JournalCopies:
    cdef list _buffers
    cdef int64_t _size_bytes
    cdef int64_t _start
    cdef bint _is_complete

    cdef bint has_room(self, int64_t size) except -1
    cpdef bytes take(self, int64_t start, int64_t end)
    cpdef restart(self, int64_t position)


cdef class SegmentCore:
    cdef public int64_t base_offset
    cdef public int64_t size
    cdef public int64_t synced_bytes
    cdef public int64_t durable_bytes
    cdef public int64_t max_timestamp_offset
    cdef public int64_t created_ms
    cdef public int64_t roll_jitter_ms
    cdef public int64_t _bytes_since_index
    cdef int64_t _first_timestamp
    cdef int64_t _max_timestamp
    cdef int64_t _number    # differs from that of any other segment of this process
    cdef public FileHandle handle
    cdef public JournalCopies copies
    cdef public object index
    cdef public object time_index

    cpdef int64_t age_ms(self, int64_t now_ms, int64_t max_timestamp)
    cpdef note_durable(self, int64_t end, bint synced)


cdef class LogCore:
    cdef public int64_t log_start_offset
    cdef public int64_t log_end_offset
    cdef public int64_t flushed_offset
    cdef public int64_t recovery_point
    cdef public int64_t last_flush_ms
    cdef public int64_t generation
    cdef public int64_t names_changed
    cdef public int64_t names_synced
    cdef public bint is_new
    cdef public bint is_deleted
    cdef public bint is_truncating
    cdef public object directory
    cdef public tuple log_id
    cdef public list _segments
    # Positions of offsets recently written or read, so that a sequential consumer needs no search:
    # each in the slot of the low bits of its offset. NULL before the first.
    cdef Position* _recent
    # What small appends are permitted for: the segment, the leader epoch, and the settings.
    cdef SegmentCore _open
    cdef int32_t _epoch
    cdef object _pwritev
    cdef int64_t _batch_bytes_max
    cdef int64_t _segment_bytes
    cdef int64_t _segment_ms
    cdef int64_t _index_interval_bytes
    cdef int64_t _before_max_ms
    cdef int64_t _after_max_ms
    cdef bint _keys_required
    cdef public object versions     # a VersionTable, or None

    cdef int note_position(self, SegmentCore segment, int64_t offset, int64_t position) except -1
    cdef int append_index_entry(self, SegmentCore segment, int64_t last_offset) except -1
