# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled walks over records: checks, look-ups by timestamp, and the two passes of compaction.

Plain Python needs 2 µs per record and holds the GIL while it does. Here a record costs some 10 ns,
and walks over much data release the GIL. Short ones keep it: a thread that gives it up for a
microsecond may wait milliseconds to get it back.

Bytes are never trusted. Every read is checked against the end of the buffer, no count or length
allocates by itself, and what does not fit raises `CorruptBatch`. `record.py` is the reference that
the tests compare with; docs/formats/record-batch.md has the layout.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import os

from millstream.errors import CorruptBatch

include "_read.pxi"


# Checks of what a producer sent, and look-ups by timestamp


include "_check.pxi"


def check_records(buffer, Py_ssize_t start, Py_ssize_t end, header,
                  int64_t earliest, int64_t latest, bint keys_required):
    """Walk the uncompressed records in buffer[start:end] of a producer's batch.

    Raises `CorruptBatch` unless they are exactly the records that the header announces, with
    consecutive offsets. Returns the largest timestamp and the first problems with single records, as
    (index, NULL_KEY | TIMESTAMP_OUT_OF_RANGE).
    """
    cdef Py_buffer view
    cdef Batch batch
    cdef Problem problems[MAX_PROBLEMS]
    cdef int problem_count, i
    cdef int64_t max_timestamp
    cdef Status status
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        open_section(&view, start, end, header, &batch)
        if end - start < RELEASE_GIL_FROM_BYTES:
            status = check(&batch, earliest, latest, keys_required,
                           &max_timestamp, problems, &problem_count, NULL)
        else:
            with nogil:
                status = check(&batch, earliest, latest, keys_required,
                               &max_timestamp, problems, &problem_count, NULL)
    finally:
        PyBuffer_Release(&view)
    if status != DONE:
        raise corrupt(status, header[0])
    return max_timestamp, [(problems[i].index, problems[i].kind) for i in range(problem_count)]


def check_small_batch(buffer, int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms,
                      bint keys_required):
    """The header fields of a producer's batch with which everything is in order; None otherwise.

    For one uncompressed batch of at most SMALL_BATCH bytes that fills the buffer: header, CRC, count
    and every record are checked in one step, timestamps against `now_ms` and how far before and
    after it they may be. None says nothing but that the batch needs a closer look: it may be
    compressed, or larger, or wrong.
    """
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Batch batch
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        if not (open_small(at, view.len, &batch)
                and check_small(&batch, now_ms, before_max_ms, after_max_ms, keys_required, NULL)):
            return None
        return header_fields(at, &batch)
    finally:
        PyBuffer_Release(&view)


def compute_crc(buffer, *, bint with_tables=False):
    """The CRC-32C as compiled code computes it; `with_tables`, as where no instruction does it."""
    cdef Py_buffer view
    cdef uint32_t inverted = 0xFFFFFFFFu
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if with_tables:
            return table_crc(inverted, <const uint8_t*>view.buf, view.len) ^ inverted
        return crc32c(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def stamp_batch(buffer, int64_t base_offset, int32_t leader_epoch):
    """A copy of the batch that the buffer consists of, with its offset and epoch as the leader
    gives them. The CRC does not cover either."""
    cdef Py_buffer view
    cdef uint8_t* out
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < HEADER_SIZE:
            raise CorruptBatch(f"{view.len} bytes are too few for a batch header")
        stamped = PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
        out = <uint8_t*>PyBytes_AS_STRING(stamped)
        store_int64(out, base_offset)
        store_int32(out + 12, leader_epoch)
        return stamped
    finally:
        PyBuffer_Release(&view)


cdef Status find(const Batch* batch, int64_t timestamp, Record* found) noexcept nogil:
    """DONE with the first record at or after `timestamp`, OPAQUE where there is none."""
    cdef const uint8_t* at = batch.records
    cdef int32_t index
    cdef Status status
    for index in range(batch.record_count):
        status = read_record(&at, batch, found)
        if status != DONE:
            return status
        if found.timestamp >= timestamp:
            return DONE
    return OPAQUE


def find_timestamp(buffer, Py_ssize_t start, Py_ssize_t end, header, int64_t timestamp):
    """(offset, timestamp) of the first of the uncompressed records in buffer[start:end] that is not
    older than `timestamp`, or None. With the header's `max_timestamp` it finds the newest."""
    cdef Py_buffer view
    cdef Batch batch
    cdef Record found
    cdef Status status
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        open_section(&view, start, end, header, &batch)
        with nogil:
            status = find(&batch, timestamp, &found)
    finally:
        PyBuffer_Release(&view)
    if status == OPAQUE:
        return None
    if status != DONE:
        raise corrupt(status, header[0])
    return batch.base_offset + found.offset_delta, found.timestamp


include "_hash.pxi"
include "_compact.pxi"


# Sparse indexes of a segment


def index_points(buffer, Py_ssize_t end, int64_t interval_bytes, int64_t bytes_since_point,
                 int64_t max_timestamp, int64_t max_timestamp_offset):
    """Which of the whole, sound batches in buffer[:end] a sparse index should name.

    A batch gets a point if more than `interval_bytes` have passed since the last one. Returns the
    points, as (last offset, position, largest timestamp so far, last offset of the batch that has
    it), and then the three running values as they stand after the last batch.
    """
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t position = 0
    cdef int64_t last_offset, timestamp, size
    points = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(&view, 0, end)
        while end - position >= HEADER_SIZE:
            at = <const uint8_t*>view.buf + position
            size = <int64_t>load_int32(at + 8) + 12
            if size < HEADER_SIZE or size > end - position:
                raise corrupt(BAD_HEADER, load_int64(at))
            last_offset = load_int64(at) + load_int32(at + 23)
            timestamp = load_int64(at + 35)
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                max_timestamp_offset = last_offset
            if bytes_since_point > interval_bytes:
                points.append((last_offset, position, max_timestamp, max_timestamp_offset))
                bytes_since_point = 0
            bytes_since_point += size
            position += size
    finally:
        PyBuffer_Release(&view)
    return points, bytes_since_point, max_timestamp, max_timestamp_offset
