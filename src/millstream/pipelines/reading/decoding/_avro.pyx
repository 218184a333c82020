# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled code from Avro values of records to typed columns.

How values of one writer's schema become rows of the reader's is a `Program`: steps, made once by
avro_resolution.py, each of which reads what the writer wrote there and puts it into its column, or
passes over it. A value is read once, and no part of it becomes a Python object.

No byte is trusted: every read is checked against the end of its value, every count against what
could follow.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

include "../../../records/_memory.pxi"
include "_problems.pxi"
include "_columns.pxi"
include "_strings.pxi"
include "_table.pxi"
include "_avro.pxi"

cdef enum:
    FRAME_BYTES = 5                     # a zero and the schema's id, big-endian
    NO_SCHEMA = -1

PROBLEMS = {
    "wrong type": WRONG_TYPE, "missing": MISSING, "null": NULL_VALUE, "other symbol": OTHER_SYMBOL,
}


cdef class Program:
    """The steps for one writer's schema, for one decoder."""

    cdef Step* _steps
    cdef int64_t _count
    cdef list _texts                    # the bytes that steps point to
    cdef AvroDecoder _decoder           # whose columns they point to

    def __cinit__(self, AvroDecoder decoder not None, list steps):
        """`steps` are (operation, column or -1, size, low, high, factor, text, [steps]), where
        columns are numbered as they stand in the schema, from the row itself (0), parents first;
        the first step reads the whole value."""
        self._decoder = decoder
        self._texts = []
        self._steps = <Step*>calloc(max(len(steps), 1), sizeof(Step))
        if self._steps == NULL:
            raise MemoryError()
        self._count = len(steps)
        for number, step in enumerate(steps):
            self._take(&self._steps[number], step)

    cdef _take(self, Step* step, tuple given):
        name, column, size, low, high, factor, text, children = given
        step.operation = OPERATIONS[name]
        step.column = NULL if column < 0 else self._decoder.column(column)
        if step.operation == FAIL:
            step.problem = PROBLEMS[size]
        else:
            step.size = size
        step.low = low
        step.high = high
        step.factor = factor
        step.text = text
        step.text_length = len(text)
        self._texts.append(text)
        step.child_count = len(children)
        step.children = <Step**>calloc(max(len(children), 1), sizeof(Step*))
        if step.children == NULL:
            raise MemoryError()
        for index, child in enumerate(children):
            if not 0 <= child < self._count:
                raise ValueError(f"there is no step {child}")
            step.children[index] = &self._steps[<int64_t>child]

    def __dealloc__(self):
        cdef int64_t number
        if self._steps != NULL:
            for number in range(self._count):
                free(self._steps[number].children)
            free(self._steps)


cdef class AvroDecoder(TableDecoder):
    """Avro values as rows of one schema.

    They are all of the schema of the one `program`, or, without one, each begins with the id of its
    schema: then `find(id)` gives the program, or why there is none: (reason, message).
    """

    cdef Source _source
    cdef Column** _columns
    cdef int64_t _column_count
    cdef Program _program               # for the value at hand
    cdef bint _is_framed
    cdef int64_t _schema_id             # of `_program`, or of what was refused
    cdef object _find
    cdef dict _found
    cdef tuple _refusal

    def __cinit__(self, list fields, find=None):
        """`fields` as in `_describe_root`."""
        self._describe_root(fields)
        self._column_count = self._number(&self._root, 0)
        self._columns = <Column**>malloc(self._column_count * sizeof(Column*))
        if self._columns == NULL:
            raise MemoryError()
        self._list(&self._root, 0)
        self._is_framed = find is not None
        self._find = find
        self._found = {}
        self._schema_id = NO_SCHEMA

    def __dealloc__(self):
        free(self._columns)

    def use(self, Program program not None):
        """Decode all values by this program."""
        if program._decoder is not self:
            raise ValueError("the program is another decoder's")
        self._program = program

    cdef int64_t _number(self, Column* column, int64_t count):
        cdef int32_t index
        count += 1
        for index in range(column.child_count):
            count = self._number(&column.children[index], count)
        return count

    cdef int64_t _list(self, Column* column, int64_t number):
        cdef int32_t index
        self._columns[number] = column
        number += 1
        for index in range(column.child_count):
            number = self._list(&column.children[index], number)
        return number

    cdef Column* column(self, int64_t number) except NULL:
        if number >= self._column_count:
            raise ValueError(f"there is no column {number}")
        return self._columns[number]

    cdef Problem _read(self, const uint8_t* start, const uint8_t* end) except? NO_MEMORY:
        cdef Source* source = &self._source
        cdef int64_t schema_id
        cdef Problem problem
        source.at = start
        source.end = end
        source.column = &self._root
        source.depth = 0
        source.free_items = FREE_ITEMS_MAX
        if start >= end:
            return EMPTY
        if self._is_framed:
            if end - start < FRAME_BYTES or start[0] != 0:
                return NO_FRAME
            source.at = start + FRAME_BYTES
            schema_id = (
                <int64_t>start[1] << 24 | <int64_t>start[2] << 16 | <int64_t>start[3] << 8 | start[4]
            )
            if schema_id != self._schema_id:
                self._choose(schema_id)
            if self._program is None:
                return REFUSED
        problem = read_step(source, &self._program._steps[0])
        if problem == FINE and source.at != end:
            return TRAILING
        return problem

    cdef _choose(self, int64_t schema_id):
        """The program for values of that schema, from now on."""
        found = self._found.get(schema_id)
        if found is None:
            found = self._found[schema_id] = self._find(schema_id)
        self._schema_id = NO_SCHEMA
        if isinstance(found, Program):
            self.use(found)
        else:
            self._program = None
            self._refusal = found
        self._schema_id = schema_id

    cdef tuple _explain(self, Problem problem, const uint8_t* start, const uint8_t* end):
        cdef Source* source = &self._source
        if problem == REFUSED:
            return self._refusal
        message = MESSAGES[problem].format(
            path=self._path(source.column),
            type=self._types.get(<size_t>source.column, ""),
            found="" if source.found == NULL else source.found[:source.found_length].decode(),
            position=source.at - start,
        )
        return reason_for(problem), message
