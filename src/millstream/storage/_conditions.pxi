# The headers that make an append conditional, and the check of offsets. Part of _core.pyx, after
# _read.pxi. See versions.py for the rules.

cdef enum:
    NO_VERSION = -1             # a record without the header
    BAD_VERSION = -2
    VERSION_DIGITS = 14         # at most: less than 48 bits
    OFFSET_DIGITS = 18

# Why a batch is refused
cdef enum:
    REFUSED_NO_KEY = 1
    REFUSED_NO_HEADER = 2
    REFUSED_BAD_HEADER = 3
    REFUSED_CONFLICT = 4
    REFUSED_HELD = 5
    REFUSED_FULL = 6

NO_KEY = REFUSED_NO_KEY
NO_HEADER = REFUSED_NO_HEADER
BAD_HEADER_VALUE = REFUSED_BAD_HEADER
CONFLICT = REFUSED_CONFLICT
HELD = REFUSED_HELD
TABLE_FULL = REFUSED_FULL

VERSION_DIGITS_MAX = VERSION_DIGITS
OFFSET_DIGITS_MAX = OFFSET_DIGITS

cdef const char* VERSION_NAME = b"millstream-version"
cdef const char* OFFSET_NAME = b"millstream-offset"
cdef const char* EVENT_NAME = b"millstream-event-id"


cdef struct Condition:          # the headers of a record that are looked at
    int64_t version
    int64_t offset
    const uint8_t* event
    int64_t event_length


cdef inline int64_t parse_digits(const uint8_t* at, int64_t size, int64_t max_size) noexcept nogil:
    cdef int64_t value = 0
    cdef int64_t i
    if size < 1 or size > max_size:
        return BAD_VERSION
    for i in range(size):
        if at[i] < 48 or at[i] > 57:
            return BAD_VERSION
        value = value * 10 + (at[i] - 48)
    return value


cdef inline void read_condition(const uint8_t* at, const uint8_t* end,
                                Condition* condition) noexcept nogil:
    """The headers of a record that `read_record` has accepted; the last of a name counts."""
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef int64_t length, count, name_length
    condition.version = NO_VERSION
    condition.offset = NO_VERSION
    condition.event = NULL
    condition.event_length = 0
    read_varint(&at, end, &count)
    while count > 0:
        count -= 1
        read_field(&at, end, &name_length)
        name = at - name_length
        read_field(&at, end, &length)
        value = at - (length if length > 0 else 0)
        if name_length == 18 and memcmp(name, VERSION_NAME, 18) == 0:
            condition.version = parse_digits(value, length, VERSION_DIGITS)
        elif name_length == 17 and memcmp(name, OFFSET_NAME, 17) == 0:
            condition.offset = parse_digits(value, length, OFFSET_DIGITS)
        elif name_length == 19 and memcmp(name, EVENT_NAME, 19) == 0:
            condition.event = value
            condition.event_length = length


def check_offsets(buffer, Py_ssize_t start, Py_ssize_t end, header, int64_t base_offset):
    """Check that each record of a batch has the header with the offset that it will get.

    Returns None, or why the batch is refused: (reason, index of the record, its offset header).
    """
    cdef Py_buffer view
    cdef Batch batch
    cdef Record record
    cdef Condition condition
    cdef const uint8_t* at
    cdef int32_t index
    cdef Status status
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        open_section(&view, start, end, header, &batch)
        status = check_count(&batch)
        at = batch.records
        for index in range(batch.record_count):
            if status == DONE:
                status = read_record(&at, &batch, &record)
            if status == DONE and record.offset_delta != index:
                status = BAD_OFFSET
            if status != DONE:
                raise corrupt(status, header[0])
            read_condition(record.headers, record.end, &condition)
            if condition.offset == NO_VERSION:
                return REFUSED_NO_HEADER, index, -1
            if condition.offset == BAD_VERSION:
                return REFUSED_BAD_HEADER, index, -1
            if condition.offset != base_offset + index:
                return REFUSED_CONFLICT, index, condition.offset
        if at != batch.end:
            raise corrupt(BAD_TAIL, header[0])
    finally:
        PyBuffer_Release(&view)
    return None
