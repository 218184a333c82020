# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled steps of small requests: completions, the leader's bookkeeping, Produce templates.

A request that waits for a flush takes a dozen small steps between the append and its answer. As
Python functions they took more time than the append itself. The modules that use the classes here
document them: `completion.py`, `deferred.py`, `replicas/pending.py`, `replicas/leadership.py`,
`replicas/partition.py` and `replicas/produce_templates.py`.
"""

import logging
from asyncio import get_running_loop

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from millstream.storage._core cimport LogCore

from millstream.errors import ApiError, ErrorCode

cdef enum:
    ACKS_ALL = -1
    NO_TIMESTAMP = -1
    FIRST_FLEXIBLE = 9          # Produce versions
    FIRST_WITH_TOPIC_IDS = 13
    FIRST_WITH_LOG_START = 5
    BATCH_HEADER = 61
    FLAGS_AT = 22               # in a batch
    TRANSACTIONAL = 0x10

cdef class PendingAppend(Completion)
cdef class Deferred(Completion)
cdef class DeferredAppend(Deferred)
cdef class PartitionCore
cdef class TemplateCore

cdef object logger = logging.getLogger("millstream.broker.completion")
cdef object flush_logger = logging.getLogger("millstream.flush")


cdef class Completion:
    """Base class: a subclass carries the result, and `finish` marks it as done."""

    cdef public bint is_done
    cdef object _callback       # most have one
    cdef list _more_callbacks

    def when_done(self, callback):
        """Call back once with this object, at once if it is done already."""
        if self.is_done:
            callback(self)
        elif self._callback is None:
            self._callback = callback
        elif self._more_callbacks is None:
            self._more_callbacks = [callback]
        else:
            self._more_callbacks.append(callback)

    cpdef finish(self):
        """Mark it as done and run the callbacks. Later calls do nothing."""
        cdef list more = self._more_callbacks
        callback = self._callback
        self.is_done = True
        if callback is None:
            return
        self._callback = None
        self._more_callbacks = None
        self.call(callback)
        if more is not None:
            for callback in more:
                self.call(callback)

    cdef int call(self, callback) except -1:
        try:
            if type(callback) is DeferredAppend:
                (<DeferredAppend>callback).appended(<PendingAppend>self)
            else:
                callback(self)
        except Exception:
            logger.exception("a callback of %r failed", self)
        return 0

    cdef void forget_callbacks(self):
        self._callback = None
        self._more_callbacks = None

    def __await__(self):
        """Wait until it is done."""
        if not self.is_done:
            future = get_running_loop().create_future()
            self.when_done(lambda _: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self


cdef class PendingAppend(Completion):
    """A written append that completes once it is as durable as its producer requested."""

    cdef public int64_t first_offset
    cdef public int64_t next_offset
    cdef public int64_t log_append_time_ms  # only where message.timestamp.type says so
    cdef public int64_t bytes_before        # what the leader had appended before this
    cdef public bint waits_for_all  # whether it is done at the high watermark, or when flushed here
    cdef public object error

    def __init__(self, int64_t first_offset, int64_t next_offset):
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.log_append_time_ms = NO_TIMESTAMP

    def __repr__(self):
        return f"<PendingAppend {self.first_offset}..{self.next_offset}>"

    def fail(self, error):
        """Complete with an error: it is not as durable as requested."""
        self.error = error
        self.finish()

    def __await__(self):
        """Wait until done. Raises the `ApiError` it failed with."""
        yield from Completion.__await__(self)
        if self.error is not None:
            raise self.error
        return self


cdef class Deferred(Completion):
    """A response body that a raw handler completes later: no Task, no Future.

    `exclusive` delays the connection's later requests until this one is answered. Kafka does this
    for every request; here only those with large answers need it.
    """

    cdef public bint exclusive
    cdef public object on_cancel    # called when the client is gone
    cdef public object body         # None closes the connection

    def __init__(self, *, bint exclusive=False):
        self.exclusive = exclusive

    cpdef complete(self, body):
        """Answer; None closes the connection instead. Only the first call counts."""
        if not self.is_done:
            self.body = body
            self.finish()

    def cancel(self):
        """The client is gone: stop working on the response, and call nobody back."""
        if not self.is_done:
            self.is_done = True
            self.forget_callbacks()
            if self.on_cancel is not None:
                self.on_cancel()


@cython.final
cdef class DeferredAppend(Deferred):
    """The response to a request with a template, which is encoded when its append is done."""

    cdef TemplateCore _template

    def __init__(self, PendingAppend pending, TemplateCore template):
        self._template = template
        pending.when_done(self)

    def __call__(self, PendingAppend pending):
        self.appended(pending)

    cdef int appended(self, PendingAppend pending) except -1:
        if pending.error is None:
            self.complete(self._template.encode(pending))
        else:
            self.complete(self._template.encode_refusal(pending.error))
        return 0


cdef class LeadershipCore:
    """The part of a leader's state that every append and flush changes."""

    cdef object _led            # the log
    cdef LogCore _led_core      # the same, unless it is not a `Log`
    cdef public object _changed  # called when the visible state has changed; None: nobody watches
    cdef public int64_t epoch
    cdef public int64_t high_watermark
    cdef public int64_t last_stable_offset
    cdef public int64_t visible_bytes
    cdef public int64_t stable_bytes
    cdef public int64_t _appended_bytes
    cdef public int64_t records_in  # appended here since the start: counters for metrics
    cdef public int64_t bytes_in
    cdef public int64_t appends
    cdef public bint is_alone
    cdef public bint _is_held_back
    cdef public list _unflushed
    cdef public list _duplicates

    @property
    def _log(self):
        return self._led

    @_log.setter
    def _log(self, log):
        self._led = log
        self._led_core = log if isinstance(log, LogCore) else None

    cdef int64_t start_offset(self) except? -1:
        return self._led.log_start_offset if self._led_core is None else self._led_core.log_start_offset

    cdef int64_t end_offset(self) except? -1:
        return self._led.log_end_offset if self._led_core is None else self._led_core.log_end_offset

    cdef int64_t flushed_offset(self) except? -1:
        return self._led.flushed_offset if self._led_core is None else self._led_core.flushed_offset

    def appended(self, PendingAppend pending, int64_t size_bytes, *, int acks, bint must_flush):
        """An append was written: it completes now, or when enough replicas have it. Returns
        whether it needs a flush."""
        pending.bytes_before = self._appended_bytes
        self._appended_bytes += size_bytes
        self.records_in += pending.next_offset - pending.first_offset
        self.bytes_in += size_bytes
        self.appends += 1
        if must_flush or (self._unflushed and acks == ACKS_ALL):
            pending.waits_for_all = acks == ACKS_ALL
            self._unflushed.append(pending)
            return True
        if not self.is_alone:
            self._wait_for_followers(pending, acks)
        else:
            pending.is_done = True
            if not self._unflushed:
                self._advance(pending.next_offset, self._appended_bytes)
        return False

    cpdef bint flushed(self) except -1:
        """A flush of the leader's log has ended: all below its flushed offset is durable here.
        Returns whether another one is needed."""
        cdef int64_t flushed_offset = self.flushed_offset()
        cdef list unflushed = self._unflushed
        cdef list done = None
        cdef Py_ssize_t count = 0
        cdef PendingAppend pending
        cdef PendingAppend only = None
        while (count < len(unflushed)
               and (<PendingAppend>unflushed[count]).next_offset <= flushed_offset):
            count += 1
        if count == 1 and len(unflushed) == 1 and self.is_alone:
            only = <PendingAppend>unflushed.pop()  # the usual case of a log among many
        elif count < len(unflushed):
            done = unflushed[:count]
            del unflushed[:count]
        else:
            done = unflushed
            unflushed = self._unflushed = []
        if not self.is_alone:
            self._wait_for_commit([append for append in done if append.waits_for_all])
            done = [append for append in done if not append.waits_for_all]
        elif unflushed:
            pending = <PendingAppend>unflushed[0]
            self._advance(pending.first_offset, pending.bytes_before)
        else:
            self._advance(self.end_offset(), self._appended_bytes)
        if self._duplicates:
            self._finish_duplicates()
        if only is not None:
            only.finish()
        else:
            for pending in done:
                pending.finish()
        return len(self._unflushed) > 0

    cpdef _advance(self, int64_t high_watermark, int64_t visible_bytes):
        """Advance the high watermark, and the last stable offset as far as possible."""
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        self.visible_bytes = visible_bytes
        if self._is_held_back:
            self._find_stable()
        else:
            self.last_stable_offset = high_watermark
            self.stable_bytes = visible_bytes
        assert self.start_offset() <= self.last_stable_offset <= high_watermark <= self.end_offset()
        if self._changed is not None:
            self._changed()


cdef class PartitionCore:
    """The part of a partition that every flush and response uses."""

    cdef public str topic
    cdef public int32_t index
    cdef public LogCore log
    cdef public LeadershipCore leadership
    cdef public object offline_error
    cdef public int64_t fetches         # reads by clients: counters for metrics
    cdef public int64_t bytes_out
    cdef public object _flusher
    cdef public object _clock
    cdef public set _watchers

    @property
    def log_start_offset(self):
        return self.log.log_start_offset

    cpdef flushed(self):
        """A flush has covered everything below the log's flushed offset."""
        if self.offline_error is None and self.leadership.flushed():
            self._flusher.request(self)


def notify_flushed(list partitions):
    """A flush of these partitions has ended, or their log directory has failed. A defect in what
    one of them wakes does not affect the others."""
    cdef PartitionCore partition
    directory = failure = None
    for partition in partitions:
        if partition.log.is_deleted:
            continue  # those who waited were answered when it was
        if partition.log.directory is not directory:
            directory = partition.log.directory
            failure = directory.failure
        try:
            if failure is None:
                partition.flushed()
            else:
                problem = f"{partition.topic}-{partition.index} could not be flushed: {failure}"
                partition.go_offline(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, problem))
        except Exception:
            flush_logger.exception("%s-%d was flushed", partition.topic, partition.index)


# Produce templates


cdef class TemplateCore:
    """Where the records are in requests with one prefix, and the form of their response."""

    cdef readonly int version
    cdef readonly PartitionCore partition
    cdef Py_ssize_t _records_start
    cdef bytes _head
    cdef bytes _tail

    def __init__(self, int version, partition, Py_ssize_t records_start, bytes head, bytes tail):
        self.version = version
        self.partition = partition
        self._records_start = records_start
        self._head = head
        self._tail = tail

    def records_of(self, body):
        """The records of a request with this prefix.

        None if its end is not as expected, or if they belong to a transaction that is not open in
        the partition.
        """
        cdef Py_buffer view
        cdef Py_ssize_t start, end
        cdef bint transactional
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            if not self.locate(<const uint8_t*>view.buf, view.len, &start, &end):
                return None
            transactional = (<const uint8_t*>view.buf)[start + FLAGS_AT] & TRANSACTIONAL
        finally:
            PyBuffer_Release(&view)
        if transactional and not self._is_open(body, start):
            return None
        return body[start:end]

    cdef bint locate(self, const uint8_t* body, Py_ssize_t size, Py_ssize_t* start,
                     Py_ssize_t* end) noexcept:
        cdef Py_ssize_t position = self._records_start
        cdef Py_ssize_t length
        if size < position + BATCH_HEADER:
            return False
        if self.version < FIRST_FLEXIBLE:
            length = <int32_t>((<uint32_t>body[position] << 24) | (<uint32_t>body[position + 1] << 16)
                               | (<uint32_t>body[position + 2] << 8) | body[position + 3])
            start[0] = position + 4
            end[0] = size
            if length != size - start[0]:
                return False
        else:
            length = body[position]
            start[0] = position + 1
            if length >= 0x80:
                length = (length & 0x7F) | (<Py_ssize_t>body[position + 1] << 7)
                start[0] = position + 2
                if length >= 0x4000:
                    length = (length & 0x3FFF) | (<Py_ssize_t>body[position + 2] << 14)
                    start[0] = position + 3
                    if length >= 0x200000:
                        return False
            end[0] = start[0] + length - 1
            # No tagged fields: of the partition, the topic and the request.
            if end[0] + 3 != size or body[end[0]] or body[end[0] + 1] or body[end[0] + 2]:
                return False
        return end[0] - start[0] >= BATCH_HEADER

    cpdef bytes encode(self, PendingAppend pending):
        """The response to an append that succeeded."""
        cdef Py_ssize_t head = PyBytes_GET_SIZE(self._head)
        cdef Py_ssize_t tail = PyBytes_GET_SIZE(self._tail)
        cdef Py_ssize_t offsets = 24 if self.version >= FIRST_WITH_LOG_START else 16
        encoded = PyBytes_FromStringAndSize(NULL, head + offsets + tail)
        cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(encoded)
        memcpy(at, PyBytes_AS_STRING(self._head), head)
        store_int64(at + head, pending.first_offset)
        store_int64(at + head + 8, pending.log_append_time_ms)
        if offsets == 24:
            store_int64(at + head + 16, self.partition.log.log_start_offset)
        memcpy(at + head + offsets, PyBytes_AS_STRING(self._tail), tail)
        return encoded


cdef inline void store_int64(uint8_t* at, int64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        at[i] = <uint8_t>(<uint64_t>value >> (56 - 8 * i))


def request_prefix(int version, body):
    """The bytes before the records, if the request has the shape of a template; None if it is too
    short."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t id_bytes, size
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        if view.len < 2:
            return None
        if version < FIRST_FLEXIBLE:
            id_bytes = 0 if at[0] else at[1]  # of the transactional id; ff ff is null
            if view.len < 14 + id_bytes:
                return None
            size = 22 + id_bytes + at[13 + id_bytes]
        else:
            id_bytes = at[0] - 1 if at[0] else 0  # null is 0, an empty one 1
            if view.len < 9 + id_bytes:
                return None
            if version >= FIRST_WITH_TOPIC_IDS:
                size = 29 + id_bytes
            else:
                size = 13 + id_bytes + at[8 + id_bytes]
        return PyBytes_FromStringAndSize(<const char*>at, min(size, view.len))
    finally:
        PyBuffer_Release(&view)
