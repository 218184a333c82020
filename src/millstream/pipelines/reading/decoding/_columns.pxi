# Columns that grow: Arrow arrays under construction, nested as the schema is.
#
# A row is written field by field, and a row that fails half-way is taken back: a column's length
# says how many values count, whatever lies behind it. So nothing has to be remembered per row.

cdef enum Kind:
    BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ,
    STRUCT, LIST, MAP

KINDS = {
    "boolean": BOOLEAN, "byte": INTEGER, "short": INTEGER, "int": INTEGER, "long": INTEGER,
    "float": FLOAT, "double": DOUBLE, "decimal": DECIMAL, "string": STRING, "binary": BINARY,
    "date": DATE, "timestamp": TIMESTAMP, "timestamp_ntz": TIMESTAMP_NTZ,
    "time": INTEGER, "struct": STRUCT, "array": LIST, "map": MAP,
}
WIDTHS = {
    "boolean": 1, "byte": 1, "short": 2, "int": 4, "long": 8, "float": 4, "double": 8,
    "decimal": 16, "date": 4, "timestamp": 8, "timestamp_ntz": 8, "time": 8,
    "struct": 0,
}
OFFSET_BYTES = 4                # of strings, lists and maps: where each value begins

cdef struct Column:
    Kind kind
    bint nullable
    int32_t width               # bytes per entry of `values`
    int32_t precision           # of decimals
    int32_t scale               # and of timestamps: microseconds in a unit, or 0: no numbers
    const uint8_t* name         # kept alive by the decoder
    int64_t name_length
    bint name_is_plain          # JSON writes it as it stands
    Column* parent
    Column* children
    int32_t child_count
    int32_t* following          # [i + 1] is the field that came after field i last time
    int64_t count
    int64_t capacity
    uint8_t* valid              # a byte per value: 0 is null
    uint8_t* values             # numbers, or int32 offsets with one more at the end
    uint8_t* data               # the bytes of strings
    int64_t data_capacity


cdef inline bint has_offsets(const Column* column) noexcept:
    return column.kind in (STRING, BINARY, LIST, MAP)


cdef inline int32_t* offsets_of(const Column* column) noexcept:
    return <int32_t*>column.values


cdef bint open_column(Column* column, int64_t capacity) noexcept:
    """Room for so many values; False if there is no memory."""
    cdef int32_t index
    column.count = 0
    column.capacity = max(capacity, 8)
    column.data_capacity = 0
    column.valid = <uint8_t*>malloc(column.capacity)
    column.values = <uint8_t*>malloc((column.capacity + 1) * max(column.width, 1))
    column.data = NULL
    if column.valid == NULL or column.values == NULL:
        return False
    if has_offsets(column):
        offsets_of(column)[0] = 0
        column.data_capacity = 8 * column.capacity
        column.data = <uint8_t*>malloc(column.data_capacity)
        if column.data == NULL:
            return False
    for index in range(column.child_count):
        if not open_column(&column.children[index], capacity):
            return False
    return True


cdef void close_column(Column* column) noexcept:
    cdef int32_t index
    free(column.valid)
    free(column.values)
    free(column.data)
    column.valid = column.values = column.data = NULL
    for index in range(column.child_count):
        close_column(&column.children[index])


cdef bint grow(Column* column) noexcept:
    cdef int64_t capacity = 2 * column.capacity
    cdef void* larger = realloc(column.valid, capacity)
    if larger == NULL:
        return False
    column.valid = <uint8_t*>larger
    larger = realloc(column.values, (capacity + 1) * max(column.width, 1))
    if larger == NULL:
        return False
    column.values = <uint8_t*>larger
    column.capacity = capacity
    return True


cdef inline bint make_room(Column* column) noexcept:
    """Room for one more value."""
    return column.count < column.capacity or grow(column)


cdef inline uint8_t* data_room(Column* column, int64_t size) noexcept:
    """Where the bytes of the next string go, with room for `size` of them; NULL without memory."""
    cdef int64_t used = offsets_of(column)[column.count]
    cdef int64_t capacity
    cdef void* larger
    if used + size > column.data_capacity:
        capacity = max(2 * column.data_capacity, used + size)
        larger = realloc(column.data, capacity)
        if larger == NULL:
            return NULL
        column.data = <uint8_t*>larger
        column.data_capacity = capacity
    return column.data + used


cdef inline void end_value(Column* column) noexcept:
    """The value just written counts."""
    column.valid[column.count] = 1
    column.count += 1


cdef inline void end_data(Column* column, int64_t size) noexcept:
    """The string just written, of so many bytes, counts."""
    offsets_of(column)[column.count + 1] = offsets_of(column)[column.count] + <int32_t>size
    end_value(column)


cdef inline void end_items(Column* column) noexcept:
    offsets_of(column)[column.count + 1] = <int32_t>column.children[0].count
    end_value(column)


cdef bint append_null(Column* column) noexcept:
    cdef int32_t index
    if not make_room(column):
        return False
    if has_offsets(column):
        offsets_of(column)[column.count + 1] = offsets_of(column)[column.count]
    else:
        memset(column.values + column.count * column.width, 0, column.width)
    if column.kind == STRUCT:
        for index in range(column.child_count):
            if not append_null(&column.children[index]):
                return False
    column.valid[column.count] = 0
    column.count += 1
    return True


cdef void truncate_column(Column* column, int64_t count) noexcept:
    """Take back all values from number `count` on, and what was begun of one."""
    cdef int32_t index
    cdef int64_t below = count
    if column.kind == LIST or column.kind == MAP:
        below = offsets_of(column)[count]
    column.count = count
    for index in range(column.child_count):
        truncate_column(&column.children[index], below)


cdef object pack_bits(const uint8_t* flags, int64_t count):
    """A bitmap of bytes that are 0 or 1."""
    cdef uint8_t* bits = <uint8_t*>calloc(count // 8 + 1, 1)
    cdef int64_t index
    if bits == NULL:
        raise MemoryError()
    for index in range(count):
        bits[index >> 3] |= flags[index] << (index & 7)
    return own(bits, (count + 7) // 8)


cdef tuple take_column(Column* column):
    """(count, null count, validity or None, values or None, data or None, children)."""
    cdef int64_t count = column.count
    cdef int64_t index
    cdef int64_t nulls = 0
    for index in range(count):
        nulls += 1 - column.valid[index]
    validity = pack_bits(column.valid, count) if nulls else None
    values = data = None
    if column.kind == BOOLEAN:
        values = pack_bits(column.values, count)
    elif has_offsets(column):
        if column.kind == STRING or column.kind == BINARY:
            data = own(column.data, offsets_of(column)[count])
            column.data = NULL
        values = own(column.values, (count + 1) * OFFSET_BYTES)
        column.values = NULL
    elif column.kind != STRUCT:
        values = own(column.values, count * column.width)
        column.values = NULL
    children = [take_column(&column.children[it]) for it in range(column.child_count)]
    return count, nulls, validity, values, data, children
