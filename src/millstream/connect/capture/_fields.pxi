# The fields of a row, as pgoutput and COPY send them.

cdef enum:
    WAL_HEADER_BYTES = 25       # `w`, start LSN, end LSN, clock

cdef enum FieldKind:
    IS_NULL, UNCHANGED, PRESENT     # unchanged: a TOAST value that was not sent

cdef struct Field:
    FieldKind kind
    const uint8_t* text
    int64_t size


cdef inline uint32_t read_be32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t read_be64(const uint8_t* at) noexcept nogil:
    return <uint64_t>read_be32(at) << 32 | read_be32(at + 4)


cdef Status read_tuple(const uint8_t** position, const uint8_t* end, Field* fields, int columns,
                       int* bad_column) noexcept nogil:
    """TupleData of pgoutput."""
    cdef const uint8_t* at = position[0]
    cdef uint8_t kind
    cdef int64_t size
    cdef int i
    if end - at < 2:
        return BAD_TUPLE
    if (at[0] << 8 | at[1]) != columns:
        return OTHER_COLUMNS
    at += 2
    for i in range(columns):
        if at >= end:
            return BAD_TUPLE
        kind = at[0]
        at += 1
        if kind == c"t":
            if end - at < 4:
                return BAD_TUPLE
            size = read_be32(at)
            at += 4
            if size > end - at:
                return BAD_TUPLE
            fields[i].kind = PRESENT
            fields[i].text = at
            fields[i].size = size
            at += size
        else:
            fields[i].text = NULL
            fields[i].size = 0
            if kind == c"n":
                fields[i].kind = IS_NULL
            elif kind == c"u":
                fields[i].kind = UNCHANGED
            else:
                bad_column[0] = i
                return BINARY_TUPLE if kind == c"b" else BAD_TUPLE
    position[0] = at
    return DONE


cdef Status read_line(const uint8_t** position, const uint8_t* end, Field* fields, int columns,
                      Out* unescaped, int* bad_column) noexcept nogil:
    """A line of COPY in text format. Values without a backslash stay where they are."""
    cdef const uint8_t* at = position[0]
    cdef const uint8_t* line_end = <const uint8_t*>memchr(at, c"\n", end - at)
    cdef const uint8_t* start
    cdef int64_t offset
    cdef bint is_escaped
    cdef int i
    if line_end == NULL:
        return BAD_TUPLE
    unescaped.size = 0
    if not room(unescaped, line_end - at):      # so that it does not move
        return NO_MEMORY
    if columns == 0:
        position[0] = line_end + 1
        return DONE if line_end == at else OTHER_COLUMNS
    for i in range(columns):
        start = at
        is_escaped = False
        while at < line_end and at[0] != c"\t":
            if at[0] == c"\\":
                is_escaped = True
                at += 1
                if at >= line_end:
                    return BAD_TUPLE
            at += 1
        if (at == line_end) != (i == columns - 1):
            return OTHER_COLUMNS
        fields[i].kind = PRESENT
        fields[i].text = start
        fields[i].size = at - start
        if is_escaped:
            if at - start == 2 and start[1] == c"N":
                fields[i].kind = IS_NULL
            else:
                offset = unescaped.size
                if not unescape(start, at, unescaped):
                    bad_column[0] = i
                    return BAD_TUPLE
                fields[i].text = unescaped.start + offset
                fields[i].size = unescaped.size - offset
        at += 1
    position[0] = line_end + 1
    return DONE


cdef bint unescape(const uint8_t* at, const uint8_t* end, Out* out) noexcept nogil:
    """COPY's escapes; there is room."""
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        if byte == c"\\":
            at += 1
            byte = at[0]
            if byte == c"n":
                byte = c"\n"
            elif byte == c"t":
                byte = c"\t"
            elif byte == c"r":
                byte = c"\r"
            elif byte == c"b":
                byte = 8
            elif byte == c"f":
                byte = 12
            elif byte == c"v":
                byte = 11
            elif byte != c"\\":
                return False
        out.start[out.size] = byte
        out.size += 1
        at += 1
    return True
