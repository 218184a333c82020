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

include "../../records/_memory.pxi"
include "_columns.pxi"
include "_scalars.pxi"
include "_json.pxi"
include "_csv.pxi"

cdef enum Grammar:
    JSON, CSV, TEXT

GRAMMARS = {"json": JSON, "csv": CSV, "text": TEXT}

MALFORMED = "malformed"
WRONG_TYPE_REASON = "wrong type"
MISSING_FIELD = "missing field"

MESSAGES = {
    EMPTY: "the value is empty",
    UNEXPECTED: "unexpected {byte} at byte {position}",
    CUT_SHORT: "it ends too early, after {position} bytes",
    TRAILING: "more follows after its end, at byte {position}",
    NOT_UTF8: "not UTF-8 at byte {position}",
    CONTROL: "control character {byte} in a string, at byte {position}",
    BAD_ESCAPE: "bad escape in a string, at byte {position}",
    LONE_SURROGATE: "half of a surrogate pair in a string, at byte {position}",
    TOO_DEEP: f"nested deeper than {DEPTH_MAX} levels, at byte {{position}}",
    TWICE: "{path} is there twice",
    KEY_TWICE: "{path} has a key twice",
    FIELD_COUNT: "another number of fields than the {fields} of the schema",
    AFTER_QUOTE: "unexpected {byte} after a closing quote, at byte {position}",
    SECOND_LINE: "a second line begins at byte {position}",
    WRONG_TYPE: "{path} is {found}, not {type}",
    NOT_WHOLE: "{path} is no whole number, and {type} takes no other",
    OUT_OF_RANGE: "{path} is too large for {type}",
    NOT_EXACT: "{path} does not fit {type} exactly",
    BAD_DATE: "{path} is no date; write 2026-11-30",
    BAD_TIMESTAMP: "{path} is no timestamp; write 2026-11-30T12:00:00.123Z or with an offset",
    BAD_NTZ: "{path} is no timestamp; write 2026-11-30T12:00:00.123",
    HAS_OFFSET: "{path} has an offset from UTC, which {type} cannot keep; declare it timestamp",
    EPOCH: "{path} is a number, not {type}; declare it long, and convert it as its unit asks",
    BAD_BASE64: "{path} is not base64",
    MISSING: "{path} is missing, and may not be null",
    NULL_VALUE: "{path} is null, and may not be",
    TOMBSTONE: "the record has no value, and {path} may not be null",
}

FOUND = {
    "{": "an object", "[": "an array", '"': "a string", "t": "true", "f": "false", "n": "null",
}


cdef void free_children(Column* column) noexcept:
    cdef int32_t index
    for index in range(column.child_count):
        free_children(&column.children[index])
    free(column.children)
    free(column.following)
    column.children = NULL
    column.following = NULL
    column.child_count = 0


cdef class RowDecoder:
    """Values of one format as rows of one schema."""

    cdef Column _root
    cdef Grammar _grammar
    cdef Dialect _dialect
    cdef Reader _reader
    cdef list _names                    # the bytes that columns point to
    cdef dict _types                    # how people call a column's type, by its address

    def __cinit__(self, str grammar, list fields, bytes dialect=b',"\\'):
        """`fields` are (name, type, nullable, precision, scale, [children]); `dialect` is CSV's
        separator, quote and escape."""
        self._names = []
        self._types = {}
        self._grammar = GRAMMARS[grammar]
        self._dialect.separator, self._dialect.quote, self._dialect.escape = dialect
        memset(&self._root, 0, sizeof(Column))
        memset(&self._reader, 0, sizeof(Reader))
        self._describe(&self._root, NULL, ("", "struct", False, 0, 0, fields))
        self._types[<size_t>&self._root] = "an object"

    def __dealloc__(self):
        close_column(&self._root)
        free_children(&self._root)
        free(self._reader.scratch)

    cdef _describe(self, Column* column, Column* parent, tuple field):
        name, kind, nullable, precision, scale, children = field
        encoded = name.encode()
        self._names.append(encoded)
        self._types[<size_t>column] = f"decimal({precision},{scale})" if kind == "decimal" else kind
        column.kind = KINDS[kind]
        column.width = WIDTHS.get(kind, OFFSET_BYTES)
        column.nullable = nullable
        column.precision = precision
        column.scale = scale
        column.name = encoded
        column.name_length = len(encoded)
        column.name_is_plain = all(it >= 0x20 and it not in b'"\\' for it in encoded)
        column.parent = parent
        if not children and kind != "struct":
            return
        column.children = <Column*>calloc(max(len(children), 1), sizeof(Column))
        column.following = <int32_t*>malloc((len(children) + 1) * sizeof(int32_t))
        if column.children == NULL or column.following == NULL:
            raise MemoryError()
        for index, child in enumerate(children):
            column.following[index] = index
            column.child_count = index + 1
            self._describe(&column.children[index], column, child)
        column.following[len(children)] = -1

    def decode(self, int64_t count, validity, offsets, data):
        """The buffers of a binary array of `count` values as columns.

        Returns the number of good rows, their numbers (int64; None if all are good), the bad ones
        as (row, reason, message), and the columns as (count, null count, validity or None, values
        or None, data or None, children).
        """
        cdef Py_buffer bits, ends, values
        cdef int64_t* good = NULL
        if (len(memoryview(offsets).cast("B")) < (count + 1) * OFFSET_BYTES
                or validity is not None and len(memoryview(validity).cast("B")) * 8 < count):
            raise ValueError(f"the buffers have not {count} values")
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        PyObject_GetBuffer(data, &values, PyBUF_SIMPLE)
        if validity is not None:
            PyObject_GetBuffer(validity, &bits, PyBUF_SIMPLE)
        try:
            good = <int64_t*>malloc(max(count, 1) * sizeof(int64_t))
            if good == NULL or not open_column(&self._root, count):
                raise MemoryError()
            failures = self._walk(
                count,
                NULL if validity is None else <uint8_t*>bits.buf,
                <int32_t*>ends.buf,
                <uint8_t*>values.buf,
                good,
            )
            rows = None
            if failures:
                rows = own(<uint8_t*>good, self._root.count * sizeof(int64_t))
                good = NULL
            return self._root.count, rows, failures, take_column(&self._root)[5]
        finally:
            free(good)
            close_column(&self._root)
            PyBuffer_Release(&ends)
            PyBuffer_Release(&values)
            if validity is not None:
                PyBuffer_Release(&bits)

    cdef list _walk(self, int64_t count, const uint8_t* validity, const int32_t* ends,
                    const uint8_t* data, int64_t* good):
        cdef Reader* reader = &self._reader
        cdef Column* root = &self._root
        cdef const uint8_t* start
        cdef int64_t row
        cdef int64_t good_count = 0
        cdef Problem problem
        failures = []
        for row in range(count):
            start = data + ends[row]
            reader.at = start
            reader.end = data + ends[row + 1]
            if validity != NULL and not validity[row >> 3] >> (row & 7) & 1:
                problem = self._append_tombstone()
            else:
                problem = self._read()
            if problem == FINE:
                good[good_count] = row
                good_count += 1
            elif problem == NO_MEMORY:
                raise MemoryError()
            else:
                failures.append((row, *self._explain(problem, start, data + ends[row + 1])))
                truncate_column(root, good_count)
        return failures

    cdef inline Problem _read(self):
        cdef Reader* reader = &self._reader
        cdef int64_t wanted = 2 * (reader.end - reader.at + 1)
        cdef void* larger
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

    cdef Problem _append_tombstone(self):
        """A record without a value is a row of nulls."""
        cdef int32_t index
        for index in range(self._root.child_count):
            if not self._root.children[index].nullable:
                self._reader.column = &self._root.children[index]
                return TOMBSTONE
        for index in range(self._root.child_count):
            if not append_null(&self._root.children[index]):
                return NO_MEMORY
        end_value(&self._root)
        return FINE

    cdef tuple _explain(self, Problem problem, const uint8_t* start, const uint8_t* end):
        """The reason and the message. What is no JSON at all is nothing else besides."""
        cdef Reader* reader = &self._reader
        cdef Problem other
        cdef const uint8_t* at = reader.at
        if self._grammar == JSON and problem >= WRONG_TYPE and problem < TOMBSTONE:
            reader.at = start
            reader.end = end
            other = skip_value(reader, 0)
            if other == FINE:
                skip_space(reader)
                other = TRAILING if reader.at < end else FINE
            if other != FINE:
                problem = other
                at = reader.at
        reason = MISSING_FIELD if problem >= MISSING else MALFORMED
        if WRONG_TYPE <= problem < MISSING:
            reason = WRONG_TYPE_REASON
        message = MESSAGES[problem].format(
            path=self._path(reader.column),
            type=self._types.get(<size_t>reader.column, ""),
            found=self._found(at, end),
            fields=self._root.child_count,
            position=at - start,
            byte=self._byte(at, end),
        )
        return reason, message

    cdef str _byte(self, const uint8_t* at, const uint8_t* end):
        if at >= end:
            return "end"
        return repr(chr(at[0])) if at[0] < 0x80 else f"0x{at[0]:02x}"

    cdef str _found(self, const uint8_t* at, const uint8_t* end):
        if self._grammar != JSON:
            return "something else"
        return FOUND.get(chr(at[0]), "a number") if at < end else "nothing"

    cdef str _path(self, const Column* column):
        """As Spark writes it: `field a.b`, with the items of arrays and maps as `a[]`."""
        if column == NULL or column.parent == NULL:
            return "the value"
        path = ""
        while column.parent != NULL:
            if column.parent.kind == STRUCT:
                path = "." + column.name[:column.name_length].decode() + path
            else:
                path = "[]" + path
            column = column.parent
        return "field " + path[1:]
