# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled code from PostgreSQL's rows to the keys and values of records.

A row comes as a tuple of pgoutput (text mode) or as a line of COPY; both become the same fields.
`TableEncoder` writes them as JSON or Avro into a `ChangeBuffer`, the columns that
`records.columns.RowEncoder` reads. No row becomes a Python object.

The parts of the envelope that are the same for all rows of a transaction are written once per
transaction and table; a row copies them.

No byte from outside is trusted: what does not fit raises `CaptureError`, and nothing of the message
stays in the buffer.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import json
import struct

from millstream.connect.capture.tables import CaptureError, StaleTypes

WKB_POINT = struct.Struct("<BIdd")
TEN = int("10")     # not a number of C, whose powers are floats

include "../../records/_memory.pxi"
include "_output.pxi"
include "_scalars.pxi"
include "_values.pxi"
include "_columns.pxi"
include "_fields.pxi"

MESSAGES = {
    NO_MEMORY: "out of memory",
    BAD_TEXT: "is not valid UTF-8; is the database's encoding SQL_ASCII?",
    BAD_NUMBER: "is no number",
    BAD_BOOLEAN: "is no boolean",
    BAD_BYTES: "is no bytea in hex",
    BAD_BITS: "is no bit string",
    BAD_TIME: "is no date or time in ISO style",
    BAD_POINT: "is no point",
    BAD_HSTORE: "is no hstore",
    BAD_ARRAY: "is no array",
    BAD_COMPOSITE: "is no composite value",
    OTHER_ATTRIBUTES: "has another number of attributes than the known definition of its type",
    TOO_DEEP: "is nested too deeply",
    BAD_TUPLE: "malformed message",
    OTHER_COLUMNS: "another number of columns than in the table's description",
    BINARY_TUPLE: "has a binary value; set the option binary to false",
    NO_KEY_VALUE: "is part of the key, and its value was not sent",
    NULL_KEY: "is part of the key and null, which Avro keys cannot be",
    TOO_LARGE: "the buffer is full: take its columns more often",
    NEEDS_TEXT: "does not fit its Avro type",
}


cdef class StreamContext:
    """The transaction whose changes are being encoded, and the orders of its events."""

    cdef readonly uint32_t xid
    cdef readonly uint64_t commit_lsn
    cdef readonly int64_t commit_time_us
    cdef readonly int64_t now_us
    cdef readonly int64_t ordinal       # messages of this transaction that changed rows
    cdef public object last_commit_lsn  # where the last transaction ended; None at the start
    cdef int64_t _skip
    cdef int64_t _total_order
    cdef int64_t _serial                # of the transaction, to notice another one
    cdef dict _orders                   # of the events, by collection

    def __cinit__(self, last_commit_lsn=None):
        self.last_commit_lsn = last_commit_lsn
        self._orders = {}

    def begin(self, *, uint32_t xid, uint64_t commit_lsn, int64_t commit_time_us, int64_t now_us,
              int64_t skip=0):
        """A transaction starts. Its first `skip` changes are counted, but not encoded."""
        self.xid, self.commit_lsn = xid, commit_lsn
        self.commit_time_us, self.now_us = commit_time_us, now_us
        self._skip = skip
        self.ordinal = self._total_order = 0
        self._serial += 1
        self._orders = {}

    def commit(self, end_lsn):
        """The transaction ends: (number of events, [(collection, number of events)])."""
        self.last_commit_lsn = end_lsn
        return self._total_order, [(name, (<Counter>it).count) for name, it in self._orders.items()]

    def count(self, str collection):
        """Count a change that is encoded elsewhere: (total order, order in the collection), or
        None if it is to be skipped."""
        cdef bint is_skipped = self.is_skipping
        self.ordinal += 1
        orders = self.count_event(collection)
        return None if is_skipped else orders

    def count_event(self, str collection):
        """Count an event that changes no rows: (total order, order in the collection)."""
        cdef Counter counter = self._counter(collection)
        self._total_order += 1
        counter.count += 1
        return self._total_order, counter.count

    @property
    def is_skipping(self):
        """Whether the next change is one of those to be skipped."""
        return self.ordinal < self._skip

    @property
    def transaction_id(self):
        return f"{self.xid}:{self.commit_lsn}"

    cdef Counter _counter(self, str collection):
        found = self._orders.get(collection)
        if found is None:
            found = self._orders[collection] = Counter.__new__(Counter)
        return <Counter>found


cdef class Counter:
    cdef int64_t count


include "_json.pxi"
include "_avro.pxi"


cdef class TableEncoder:
    """Encodes the changes of one version of a table into a buffer."""

    cdef readonly object table
    cdef StreamContext _context
    cdef ChangeBuffer _buffer
    cdef Envelope _envelope
    cdef str _collection
    cdef int _columns
    cdef int _keys
    cdef int* _key_columns
    cdef uint8_t* _in_identity
    cdef Field* _old
    cdef Field* _new
    cdef bint _is_full
    cdef bint _is_flat
    cdef bint _tombstones
    cdef Counter _counter
    cdef int64_t _serial
    cdef Out _unescaped         # values of a COPY line that had a backslash
    cdef Out _other_key
    cdef int _bad_column

    def __cinit__(self, table, settings, Envelope envelope not None,
                  StreamContext context not None, ChangeBuffer buffer not None):
        names = [column.name for column in table.columns]
        self.table, self._context, self._buffer = table, context, buffer
        self._collection = table.full_name
        self._columns, self._keys = len(names), len(table.key)
        self._is_full = table.replica_identity == "f"
        self._is_flat = settings.shape == "flat"
        self._tombstones = settings.tombstones and self._keys > 0
        self._key_columns = <int*>calloc(max(self._keys, 1), sizeof(int))
        self._in_identity = <uint8_t*>calloc(max(self._columns, 1), 1)
        self._old = <Field*>calloc(max(self._columns, 1), sizeof(Field))
        self._new = <Field*>calloc(max(self._columns, 1), sizeof(Field))
        if (self._key_columns == NULL or self._in_identity == NULL or self._old == NULL
                or self._new == NULL):
            raise MemoryError()
        for i, name in enumerate(table.key):
            self._key_columns[i] = names.index(name)
        for name in table.identity:
            self._in_identity[<int>names.index(name)] = True
        self._envelope = envelope
        self._serial = -1
        self._bad_column = -1

    def __dealloc__(self):
        free(self._key_columns)
        free(self._in_identity)
        free(self._old)
        free(self._new)
        free(self._unescaped.start)
        free(self._other_key.start)

    def change(self, bytes message not None):
        """Encode a message of the stream: `w`, its header, and an Insert, Update or Delete."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(message)
        cdef int64_t size = PyBytes_GET_SIZE(message)
        if size < WAL_HEADER_BYTES + 5 or at[0] != c"w":
            raise self._error(BAD_TUPLE)
        self._change(at, size)

    def truncate(self, uint64_t lsn):
        """Encode that the table was truncated. The flat shape has no record for it."""
        cdef Mark mark = self._buffer.mark()
        cdef Status status
        if self._serial != self._context._serial:
            self._start_transaction()
        orders = self._context.count(self._collection)
        if orders is None or self._is_flat:
            return
        status = self._envelope.put(&self._buffer._values.data, c"t", NULL, NULL, lsn, orders[0],
                                    orders[1], &self._bad_column)
        if status == DONE:
            status = self._buffer.finish(False, True, self._envelope.timestamp_ms, NULL, NULL)
        if status != DONE:
            self._buffer.reset(mark)
            raise self._error(status)

    cdef int _change(self, const uint8_t* message, int64_t size) except -1:
        cdef Mark mark = self._buffer.mark()
        cdef StreamContext context = self._context
        cdef int64_t ordinal = context.ordinal, total_order = context._total_order, order
        cdef Status status
        self._bad_column = -1
        self._envelope.bad_field = NULL
        if self._serial != context._serial:
            self._start_transaction()
        order = self._counter.count
        try:
            status = self._encode(message, message + size)
            if status != DONE:
                raise self._error(status)
        except BaseException:
            self._buffer.reset(mark)
            context.ordinal, context._total_order = ordinal, total_order
            self._counter.count = order
            raise
        return 0

    cdef int _start_transaction(self) except -1:
        self._serial = self._context._serial
        self._counter = self._context._counter(self._collection)
        self._envelope.start_transaction(self._context)
        return 0

    cdef Status _encode(self, const uint8_t* message, const uint8_t* end):
        cdef const uint8_t* at = message + WAL_HEADER_BYTES
        cdef uint64_t lsn = read_be64(message + 1)
        cdef uint8_t tag = at[0]
        cdef bint has_old = False
        cdef Status status = DONE
        at += 5                                 # the tag, and the oid of the table
        if at >= end:
            return BAD_TUPLE
        if (tag == c"U" or tag == c"D") and (at[0] == c"K" or at[0] == c"O"):
            has_old = True
            at += 1
            status = read_tuple(&at, end, self._old, self._columns, &self._bad_column)
        if status == DONE and tag != c"D":
            if at >= end or at[0] != c"N":
                return BAD_TUPLE
            at += 1
            status = read_tuple(&at, end, self._new, self._columns, &self._bad_column)
        if status != DONE:
            return status
        if at != end or (tag == c"D" and not has_old):
            return BAD_TUPLE
        if tag == c"I":
            return self._event(c"c", NULL, self._new, lsn, NULL, NULL)
        if tag == c"D":
            return self._delete(lsn, NULL)
        if tag == c"U":
            return self._update(has_old, lsn)
        return BAD_TUPLE

    cdef Status _update(self, bint has_old, uint64_t lsn):
        cdef Status status
        cdef int i
        if not has_old:
            return self._event(c"u", NULL, self._new, lsn, NULL, NULL)
        for i in range(self._columns):
            if self._new[i].kind == UNCHANGED and (self._is_full or self._in_identity[i]):
                self._new[i] = self._old[i]
        if not self._is_key_changed():
            return self._event(c"u", self._old, self._new, lsn, NULL, NULL)
        # Readers of a compacted topic have to forget the old key.
        self._other_key.size = 0
        status = self._envelope.header_key(&self._other_key, self._new, self._key_columns,
                                           self._keys, &self._bad_column)
        if status == DONE:
            status = self._delete(lsn, &self._other_key)
        if status != DONE:
            return status
        self._other_key.size = 0
        status = self._envelope.header_key(&self._other_key, self._old, self._key_columns,
                                           self._keys, &self._bad_column)
        if status != DONE:
            return status
        self._context.ordinal -= 1              # one message, two events
        return self._event(c"c", NULL, self._new, lsn, OLD_KEY, &self._other_key)

    cdef bint _is_key_changed(self) noexcept:
        cdef const Field* old
        cdef const Field* new
        cdef int i
        for i in range(self._keys):
            old, new = &self._old[self._key_columns[i]], &self._new[self._key_columns[i]]
            if (old.kind != new.kind or old.size != new.size
                    or (old.kind == PRESENT and memcmp(old.text, new.text, old.size) != 0)):
                return True
        return False

    cdef Status _delete(self, uint64_t lsn, const Out* new_key):
        cdef const char* header = NULL
        cdef Status status
        if new_key != NULL:
            header = NEW_KEY
        status = self._event(c"d", self._old, NULL, lsn, header, new_key)
        if status != DONE or not self._tombstones or self._context.ordinal <= self._context._skip:
            return status
        status = self._put_key(self._old)
        if status != DONE:
            return status
        return self._buffer.finish(True, False, self._envelope.timestamp_ms, header, new_key)

    cdef Status _event(self, uint8_t operation, const Field* before, const Field* after,
                       uint64_t lsn, const char* header, const Out* header_value):
        """One record with an envelope."""
        cdef Status status
        cdef bint is_skipped = self._context.ordinal < self._context._skip
        self._context.ordinal += 1
        self._context._total_order += 1
        self._counter.count += 1
        if is_skipped:
            return DONE
        status = self._put_key(after if after != NULL else before)
        if status != DONE:
            return status
        status = self._envelope.put(&self._buffer._values.data, operation, before, after, lsn,
                                    self._context._total_order, self._counter.count,
                                    &self._bad_column)
        if status != DONE:
            return status
        return self._buffer.finish(self._keys > 0, True, self._envelope.timestamp_ms, header,
                                   header_value)

    cdef inline Status _put_key(self, const Field* fields):
        if self._keys == 0:
            return DONE
        return self._envelope.put_key(&self._buffer._keys.data, fields, self._key_columns,
                                      self._keys, &self._bad_column)

    def copy(self, rows, *, str flag, lsn, xid, int64_t snapshot_time_us, int64_t now_us):
        """Encode lines of COPY, each whole and with its line end; returns their number.

        `rows` is bytes or a list of bytes. `flag` is the snapshot's: first, true, last, ...
        """
        cdef Mark mark = self._buffer.mark()
        cdef int64_t count = 0
        cdef bytes chunk
        self._envelope.start_snapshot(flag, lsn, xid, snapshot_time_us, now_us)
        self._serial = -1                       # the next transaction has other segments
        try:
            for chunk in ([rows] if isinstance(rows, bytes) else rows):
                count += self._copy_lines(<const uint8_t*>PyBytes_AS_STRING(chunk),
                                          PyBytes_GET_SIZE(chunk))
        except BaseException:
            self._buffer.reset(mark)
            raise
        return count

    cdef int64_t _copy_lines(self, const uint8_t* at, int64_t size) except -1:
        cdef const uint8_t* end = at + size
        cdef int64_t count = 0
        cdef Status status
        while at < end:
            self._bad_column = -1
            self._envelope.bad_field = NULL
            status = read_line(&at, end, self._new, self._columns, &self._unescaped,
                               &self._bad_column)
            if status == DONE:
                status = self._put_key(self._new)
            if status == DONE:
                status = self._envelope.put_snapshot(&self._buffer._values.data, self._new,
                                                     &self._bad_column)
            if status == DONE:
                status = self._buffer.finish(self._keys > 0, True, self._envelope.timestamp_ms,
                                             NULL, NULL)
            if status != DONE:
                raise self._error(status)
            count += 1
        return count

    cdef object _error(self, Status status):
        """The exception for a status, with the value that is wrong."""
        if status == NO_MEMORY:
            return MemoryError()
        if status == TOO_LARGE:
            return OverflowError(MESSAGES[status])
        where = f"table {self._collection}"
        if 0 <= self._bad_column < self._columns:
            where += f", column {self.table.columns[self._bad_column].name}{self._shown()}"
        kind = StaleTypes if status in (OTHER_ATTRIBUTES, OTHER_COLUMNS) else CaptureError
        return kind(f"{where}: {MESSAGES[status]}")

    cdef str _shown(self):
        """The value of the bad column in the fields read last, shortened."""
        cdef const Field* field = self._envelope.bad_field
        if field == NULL or field.kind != PRESENT:
            return ""
        text = (<bytes>field.text[:min(field.size, 80)]).decode("utf-8", "backslashreplace")
        return f" = {text!r}{'...' if field.size > 80 else ''}"


cdef class ChangeFeed:
    """Passes the row changes of a stream to the encoders of their tables."""

    cdef dict _encoders

    def __cinit__(self):
        self._encoders = {}

    def register(self, TableEncoder encoder not None):
        """Use this encoder for its table, instead of the one before."""
        self._encoders[encoder.table.oid] = encoder

    def feed(self, list messages not None, Py_ssize_t position=0):
        """Encode the row changes from `position` on; returns the position of the first message that
        is something else, or the number of messages."""
        cdef Py_ssize_t total = len(messages)
        cdef TableEncoder encoder = None
        cdef uint32_t oid, last_oid = 0
        cdef const uint8_t* at
        cdef bytes message
        cdef int64_t size
        cdef uint8_t tag
        while position < total:
            message = messages[position]
            at = <const uint8_t*>PyBytes_AS_STRING(message)
            size = PyBytes_GET_SIZE(message)
            if size < WAL_HEADER_BYTES + 5 or at[0] != c"w":
                return position
            tag = at[WAL_HEADER_BYTES]
            if tag != c"I" and tag != c"U" and tag != c"D":
                return position
            oid = read_be32(at + WAL_HEADER_BYTES + 1)
            if encoder is None or oid != last_oid:
                encoder = self._encoders.get(oid)
                if encoder is None:
                    raise CaptureError(f"a change of an unknown table, oid {oid}")
                last_oid = oid
            encoder._change(at, size)
            position += 1
        return position
