# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled code from the values of records to typed columns: JSON, CSV and plain text.

`RowDecoder` reads each value once and writes what it finds into the buffers of Arrow arrays. A value
that does not fit the schema leaves no trace in them: it is reported with its reason, at what byte,
and costs no more than a good one but for the report. No value becomes a Python object.

No byte is trusted: every read is checked against the end of its value.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

include "../../../records/_memory.pxi"
include "_problems.pxi"
include "_columns.pxi"
include "_strings.pxi"
include "_table.pxi"
include "_scalars.pxi"
include "_json.pxi"
include "_csv.pxi"

cdef enum Grammar:
    JSON, CSV, TEXT

GRAMMARS = {"json": JSON, "csv": CSV, "text": TEXT}

FOUND = {
    "{": "an object", "[": "an array", '"': "a string", "t": "true", "f": "false", "n": "null",
}


cdef class RowDecoder(TableDecoder):
    """Values of one format as rows of one schema."""

    cdef Grammar _grammar
    cdef Dialect _dialect
    cdef Reader _reader

    def __cinit__(self, str grammar, list fields, bytes dialect=b',"\\'):
        """`fields` as in `_describe_root`; `dialect` is CSV's separator, quote and escape."""
        self._grammar = GRAMMARS[grammar]
        self._dialect.separator, self._dialect.quote, self._dialect.escape = dialect
        memset(&self._reader, 0, sizeof(Reader))
        self._describe_root(fields)

    def __dealloc__(self):
        free(self._reader.scratch)

    cdef Problem _read(self, const uint8_t* start, const uint8_t* end) except? NO_MEMORY:
        cdef Reader* reader = &self._reader
        cdef int64_t wanted = 2 * (end - start + 1)
        cdef void* larger
        reader.at = start
        reader.end = end
        if wanted > reader.scratch_capacity:
            larger = realloc(reader.scratch, 2 * wanted)
            if larger == NULL:
                return NO_MEMORY
            reader.scratch = <uint8_t*>larger
            reader.scratch_capacity = 2 * wanted
        if self._grammar == JSON:
            return read_json(reader, &self._root)
        if self._grammar == CSV:
            return read_csv(reader, &self._root, &self._dialect)
        return read_text(reader, &self._root)

    cdef tuple _explain(self, Problem problem, const uint8_t* start, const uint8_t* end):
        """The reason and the message. What is no JSON at all is nothing else besides."""
        cdef Reader* reader = &self._reader
        cdef Problem other
        cdef const uint8_t* at = reader.at
        if self._grammar == JSON and problem >= WRONG_TYPE:
            reader.at = start
            reader.end = end
            other = skip_value(reader, 0)
            if other == FINE:
                skip_space(reader)
                other = TRAILING if reader.at < end else FINE
            if other != FINE:
                problem = other
                at = reader.at
        message = MESSAGES[problem].format(
            path=self._path(reader.column),
            type=self._types.get(<size_t>reader.column, ""),
            found=self._found(at, end),
            fields=self._root.child_count,
            position=at - start,
            byte=self._byte(at, end),
        )
        return reason_for(problem), message

    cdef str _byte(self, const uint8_t* at, const uint8_t* end):
        if at >= end:
            return "end"
        return repr(chr(at[0])) if at[0] < 0x80 else f"0x{at[0]:02x}"

    cdef str _found(self, const uint8_t* at, const uint8_t* end):
        if self._grammar != JSON:
            return "something else"
        return FOUND.get(chr(at[0]), "a number") if at < end else "nothing"
