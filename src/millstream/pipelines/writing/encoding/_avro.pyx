# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled code from Arrow columns to Avro values.

`encode_rows` walks the rows of a `Part`: the columns of a record, nested as the schema is. What is
written where was decided before (avro.py); here only values can be wrong: a null where there may be
none, a number out of range.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

include "../../../records/_memory.pxi"

cdef enum Operation:
    BOOLEAN, INTEGER, RAW, BYTES, DECIMAL, RECORD, ARRAY, MAP, CONSTANT

OPERATIONS = {
    "boolean": BOOLEAN, "integer": INTEGER, "raw": RAW, "bytes": BYTES, "decimal": DECIMAL,
    "record": RECORD, "array": ARRAY, "map": MAP, "constant": CONSTANT,
}

cdef enum Problem:
    FINE, IS_NULL, OUT_OF_RANGE, OTHER_SIZE, TOO_LARGE, NO_MEMORY

MESSAGES = {
    IS_NULL: "is null, which the Avro schema does not allow",
    OUT_OF_RANGE: "does not fit the type that the Avro schema has for it",
    OTHER_SIZE: "has another number of bytes than the Avro schema wants",
}

cdef enum:
    NUMBER_BYTES_MAX = 10
    DECIMAL_BYTES = 16
    NO_BRANCH = -1
    OUTPUT_BYTES_MAX = 2147483647       # what offsets of 32 bits reach


class Unencodable(ValueError):
    """A value that cannot be written by the schema."""


cdef struct Output:
    uint8_t* start
    int64_t size
    int64_t capacity


cdef class Part:
    """Where the values of one column are, and how they are written."""

    cdef Operation operation
    cdef int64_t null_branch            # of a union; NO_BRANCH: null is not allowed
    cdef int64_t value_branch           # written before a value; NO_BRANCH: it is no union
    cdef int64_t offset                 # of the first value in the buffers
    cdef int64_t length
    cdef int64_t width                  # of an integer or a raw value
    cdef int64_t size                   # of a fixed; -1: its length is written first
    cdef int64_t low
    cdef int64_t high
    cdef int64_t factor                 # multiplies an integer; negative: divides it
    cdef const uint8_t* bits            # NULL: nothing is null
    cdef const uint8_t* values
    cdef const int32_t* ends
    cdef const uint8_t* data
    cdef Py_buffer[3] _buffers
    cdef int _buffer_count
    cdef Part first                     # of an array or a map
    cdef Part second
    cdef list children
    cdef Py_ssize_t child_count
    cdef public str path

    def __cinit__(
        self, str operation, str path, tuple branches=(NO_BRANCH, NO_BRANCH), int64_t length=0,
        int64_t offset=0, validity=None, values=None, data=None, int64_t width=0, int64_t size=-1,
        int64_t low=0, int64_t high=0, int64_t factor=1, children=(),
    ):
        """`branches` are those of null and of the value; `length` values from `offset` on."""
        self.operation = OPERATIONS[operation]
        self.path = path
        self.null_branch, self.value_branch = branches
        self.length = length
        self.offset = offset
        self.width = width
        self.size = size
        self.low = low
        self.high = high
        self.factor = factor
        self.children = list(children)
        self.child_count = len(self.children)
        for child in self.children:
            if not isinstance(child, Part):
                raise TypeError(f"{child!r} is no part")
        self.bits = self._take(validity, (offset + length + 7) // 8)
        if self.operation in (BYTES, ARRAY, MAP):
            self.ends = <const int32_t*>self._take(values, 4 * (offset + length + 1))
            if self.ends == NULL and length:
                raise ValueError(f"{path} has no offsets")
        elif self.operation in (INTEGER, RAW, DECIMAL):
            self.values = self._take(values, (offset + length) * width)
        elif self.operation == BOOLEAN:
            self.values = self._take(values, (offset + length + 7) // 8)
        if self.operation == BYTES:
            self.data = self._take(data, self.ends[offset + length] if length else 0)
        elif self.operation == CONSTANT:
            self.size = len(data)
            self.data = self._take(data, self.size)
        if self.operation in (ARRAY, MAP):
            self.first = self.children[0]
            self.second = self.children[1] if self.operation == MAP else None
            self._check_items()

    cdef _check_items(self):
        """The offsets reach no further than the items."""
        if self.length and self.ends[self.offset + self.length] > self.first.length:
            raise ValueError(f"{self.path} has fewer items than it says")

    cdef const uint8_t* _take(self, buffer, int64_t least) except? NULL:
        """The bytes of a buffer that has at least so many."""
        if buffer is None:
            return NULL
        cdef Py_buffer* view = &self._buffers[self._buffer_count]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self._buffer_count += 1
        if view.len < least:
            raise ValueError(f"{self.path} has a buffer of {view.len} bytes and needs {least}")
        return <const uint8_t*>view.buf

    def __dealloc__(self):
        cdef int index
        for index in range(self._buffer_count):
            PyBuffer_Release(&self._buffers[index])


cdef inline uint8_t* room(Output* output, int64_t size) noexcept:
    """Where the next `size` bytes go; NULL without memory."""
    cdef int64_t capacity
    cdef void* larger
    if output.size + size > output.capacity:
        capacity = max(2 * output.capacity, output.size + size)
        larger = realloc(output.start, capacity)
        if larger == NULL:
            return NULL
        output.start = <uint8_t*>larger
        output.capacity = capacity
    return output.start + output.size


cdef inline Problem write_number(Output* output, int64_t value) noexcept:
    cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef uint8_t* target = room(output, NUMBER_BYTES_MAX)
    if target == NULL:
        return NO_MEMORY
    while rest > 0x7F:
        target[0] = (rest & 0x7F) | 0x80
        target += 1
        rest >>= 7
    target[0] = <uint8_t>rest
    output.size = target + 1 - output.start
    return FINE


cdef inline Problem write_bytes(Output* output, const uint8_t* start, int64_t size) noexcept:
    cdef uint8_t* target = room(output, size)
    if target == NULL:
        return NO_MEMORY
    memcpy(target, start, size)
    output.size += size
    return FINE


cdef Problem write_integer(Output* output, Part part, int64_t index) noexcept:
    cdef int64_t value
    if part.width == 8:
        value = (<const int64_t*>part.values)[index]
    elif part.width == 4:
        value = (<const int32_t*>part.values)[index]
    elif part.width == 2:
        value = (<const int16_t*>part.values)[index]
    else:
        value = (<const int8_t*>part.values)[index]
    if value < part.low or value > part.high:
        return OUT_OF_RANGE
    if part.factor > 1:
        value *= part.factor
    elif part.factor < 0:
        value = value // -part.factor - (value % -part.factor < 0)
    return write_number(output, value)


cdef Problem write_text(Output* output, Part part, int64_t index) noexcept:
    cdef int64_t start = part.ends[index]
    cdef int64_t size = part.ends[index + 1] - start
    cdef Problem problem = FINE
    if part.size >= 0:
        if size != part.size:
            return OTHER_SIZE
    else:
        problem = write_number(output, size)
    return write_bytes(output, part.data + start, size) if problem == FINE else problem


cdef Problem write_decimal(Output* output, Part part, int64_t index) noexcept:
    """Two's complement, big-endian: as short as can be, or as long as a fixed is."""
    cdef const uint8_t* value = part.values + index * DECIMAL_BYTES
    cdef uint8_t sign = 0xFF if value[DECIMAL_BYTES - 1] & 0x80 else 0
    cdef int64_t size = DECIMAL_BYTES
    cdef int64_t place
    cdef uint8_t* target
    cdef Problem problem = FINE
    while size > 1 and value[size - 1] == sign and (value[size - 2] ^ sign) & 0x80 == 0:
        size -= 1
    if part.size < 0:
        problem = write_number(output, size)
        if problem != FINE:
            return problem
    elif size > part.size:
        return OUT_OF_RANGE
    target = room(output, max(size, part.size))
    if target == NULL:
        return NO_MEMORY
    for place in range(part.size - size):
        target[0] = sign
        target += 1
    for place in range(size - 1, -1, -1):
        target[0] = value[place]
        target += 1
    output.size = target - output.start
    return FINE


cdef Problem write_items(Output* output, Part part, int64_t index, list blame) noexcept:
    """One block of all items, and an empty one."""
    cdef int64_t item
    cdef int64_t start = part.ends[index]
    cdef int64_t end = part.ends[index + 1]
    cdef Problem problem
    if end > start:
        problem = write_number(output, end - start)
        if problem != FINE:
            return problem
        for item in range(start, end):
            problem = write_value(output, part.first, item, blame)
            if problem == FINE and part.operation == MAP:
                problem = write_value(output, part.second, item, blame)
            if problem != FINE:
                return problem
    return write_number(output, 0)


cdef Problem write_value(Output* output, Part part, int64_t number, list blame) noexcept:
    """Value `number` of the column; a part that fails is put into `blame`."""
    cdef int64_t index = part.offset + number
    cdef Problem problem = FINE
    cdef uint8_t flag
    cdef Py_ssize_t place
    if part.bits != NULL and not part.bits[index >> 3] >> (index & 7) & 1:
        if part.null_branch >= 0:
            return write_number(output, part.null_branch)
        blame.append(part)
        return IS_NULL
    if part.value_branch >= 0:
        problem = write_number(output, part.value_branch)
        if problem != FINE:
            return problem
    if part.operation == INTEGER:
        problem = write_integer(output, part, index)
    elif part.operation == BYTES:
        problem = write_text(output, part, index)
    elif part.operation == RAW:
        return write_bytes(output, part.values + index * part.width, part.width)
    elif part.operation == BOOLEAN:
        flag = part.values[index >> 3] >> (index & 7) & 1
        return write_bytes(output, &flag, 1)
    elif part.operation == RECORD:
        for place in range(part.child_count):
            problem = write_value(output, <Part>part.children[place], number, blame)
            if problem != FINE:
                return problem
        return FINE
    elif part.operation == DECIMAL:
        problem = write_decimal(output, part, index)
    elif part.operation == CONSTANT:
        return write_bytes(output, part.data, part.size)
    else:
        return write_items(output, part, index, blame)
    if problem != FINE:
        blame.append(part)
    return problem


def encode_rows(Part record not None, int64_t count, bytes prefix):
    """The buffers of a binary array of `count` values: offsets and data; `prefix` begins each.

    Raises `Unencodable`.
    """
    cdef Output output
    cdef int32_t* ends = <int32_t*>malloc((count + 1) * sizeof(int32_t))
    cdef const uint8_t* start = prefix
    cdef int64_t prefix_size = len(prefix)
    cdef int64_t row
    cdef Problem problem = FINE
    output.size = 0
    output.capacity = max(64 * count, 64)
    output.start = <uint8_t*>malloc(output.capacity)
    blame: list = []
    try:
        if ends == NULL or output.start == NULL:
            raise MemoryError()
        ends[0] = 0
        for row in range(count):
            problem = write_bytes(&output, start, prefix_size)
            if problem == FINE:
                problem = write_value(&output, record, row, blame)
            if problem == FINE and output.size > OUTPUT_BYTES_MAX:
                raise Unencodable("the rows of a batch make more than 2 GB")
            if problem == NO_MEMORY:
                raise MemoryError()
            if problem != FINE:
                raise Unencodable(f"column {blame[0].path} of a row {MESSAGES[problem]}")
            ends[row + 1] = <int32_t>output.size
        offsets = own(<uint8_t*>ends, (count + 1) * sizeof(int32_t))
        ends = NULL
        data = own(output.start, output.size)
        output.start = NULL
        return offsets, data
    finally:
        free(ends)
        free(output.start)
