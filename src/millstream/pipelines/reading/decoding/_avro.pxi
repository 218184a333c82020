# Avro's binary encoding into columns, step by step.

cdef enum Operation:
    # what no column asks for
    NOTHING, SKIP, SKIP_NUMBER, SKIP_BYTES, SKIP_ITEMS,
    # what has parts
    RECORD, CHOICE, ITEMS, PAIRS,
    # values
    NULL_OF, BOOLEAN_OF, INTEGER_OF, INTEGER_AS_FLOATING, FLOAT_OF, DOUBLE_OF, BYTES_OF, FIXED_OF, UUID_OF,
    DECIMAL_OF,
    # what the writer did not write
    CONSTANT, DEFAULT, FAIL

OPERATIONS = {
    "nothing": NOTHING, "skip": SKIP, "skip number": SKIP_NUMBER, "skip bytes": SKIP_BYTES,
    "skip items": SKIP_ITEMS, "record": RECORD, "choice": CHOICE, "items": ITEMS, "pairs": PAIRS,
    "null": NULL_OF, "boolean": BOOLEAN_OF, "integer": INTEGER_OF,
    "integer as floating": INTEGER_AS_FLOATING, "float": FLOAT_OF, "double": DOUBLE_OF,
    "bytes": BYTES_OF, "fixed": FIXED_OF, "uuid": UUID_OF, "decimal": DECIMAL_OF,
    "constant": CONSTANT, "default": DEFAULT, "fail": FAIL,
}

cdef enum:
    NUMBER_BYTES_MAX = 10
    UUID_BYTES = 16
    UUID_TEXT_BYTES = 36
    DECIMAL_BYTES = 16
    ITEMS_MAX = 2147483647              # what offsets of 32 bits reach
    FREE_ITEMS_MAX = 1024               # items of no bytes in one value: nothing else bounds them

cdef extern from *:
    ctypedef long long int128_t "__int128_t"
    ctypedef unsigned long long uint128_t "__uint128_t"

cdef struct Step:
    Operation operation
    Column* column                      # where the value goes; NULL: nowhere
    int64_t size                        # of a fixed; of an item at least; -1: its length comes first
    int64_t low                         # what an integer may be
    int64_t high
    int64_t factor                      # multiplies an integer; negative: divides it
    const uint8_t* text                 # a constant, a default's bytes, or what was found instead
    int64_t text_length
    Problem problem                     # of FAIL
    Step** children
    int32_t child_count

cdef struct Source:
    const uint8_t* at
    const uint8_t* end
    Column* column                      # of the value that is a problem
    const uint8_t* found                # there, instead
    int64_t found_length
    int32_t depth
    int64_t free_items                  # how many more are allowed

cdef int64_t NUMBER_MAX = 9223372036854775807
cdef const char* HEX_DIGITS = "0123456789abcdef"


# Numbers and lengths


cdef inline Problem read_number(Source* source, int64_t* value) noexcept:
    """A zigzag varint of at most 64 bits."""
    cdef const uint8_t* at = source.at
    cdef uint64_t bits
    cdef int shift = 7
    if at >= source.end:
        return CUT_SHORT
    bits = at[0] & 0x7F
    while at[0] & 0x80:
        at += 1
        if at >= source.end:
            return CUT_SHORT
        if shift == 63 and at[0] > 1:
            return BAD_NUMBER
        bits |= <uint64_t>(at[0] & 0x7F) << shift
        shift += 7
    source.at = at + 1
    value[0] = <int64_t>(bits >> 1) ^ -<int64_t>(bits & 1)
    return FINE


cdef inline Problem read_length(Source* source, int64_t* length) noexcept:
    """The length of what follows, all of which is there."""
    cdef const uint8_t* start = source.at
    cdef Problem problem = read_number(source, length)
    if problem != FINE:
        return problem
    if length[0] < 0:
        source.at = start
        return BAD_LENGTH
    return FINE if length[0] <= source.end - source.at else CUT_SHORT


cdef inline Problem want(Source* source, int64_t size) noexcept:
    return FINE if size <= source.end - source.at else CUT_SHORT


# What no column asks for


cdef Problem skip_items(Source* source, const Step* step) noexcept:
    """Pass over the blocks of an array or a map; those that say their size in one step."""
    cdef int64_t count, size, number
    cdef Problem problem
    while True:
        problem = read_number(source, &count)
        if problem != FINE or count == 0:
            return problem
        if count < 0:
            problem = read_length(source, &size)
            if problem != FINE:
                return problem
            source.at += size
            continue
        if step.size == 0:
            continue                    # there are no bytes to pass over
        if count > (source.end - source.at) // step.size:
            return CUT_SHORT
        for number in range(count):
            problem = read_step(source, step.children[0])
            if problem != FINE:
                return problem


# What has parts


cdef Problem read_parts(Source* source, const Step* step) noexcept:
    """The fields of a record, in the writer's order, and then those that it did not write."""
    cdef Problem problem
    cdef int32_t index
    if source.depth >= DEPTH_MAX:
        return TOO_DEEP
    if step.column != NULL and not make_room(step.column):
        return NO_MEMORY
    source.depth += 1
    for index in range(step.child_count):
        problem = read_step(source, step.children[index])
        if problem != FINE:
            return problem
    source.depth -= 1
    if step.column != NULL:
        end_value(step.column)
    return FINE


cdef inline Problem read_choice(Source* source, const Step* step) noexcept:
    """The branch of a union, or the symbol of an enum, of which the number comes first."""
    cdef const uint8_t* start = source.at
    cdef int64_t number
    cdef Problem problem = read_number(source, &number)
    if problem != FINE:
        return problem
    if number < 0 or number >= step.child_count:
        source.at = start
        return BAD_CHOICE
    return read_step(source, step.children[number])


cdef Problem read_items(Source* source, const Step* step) noexcept:
    """An array, or a map: blocks of items until one is empty."""
    cdef Column* column = step.column
    cdef Column* first = &column.children[0]
    cdef int64_t begin = first.count
    cdef int64_t count, size, number
    cdef const uint8_t* block_end
    cdef Problem problem
    if source.depth >= DEPTH_MAX:
        return TOO_DEEP
    if not make_room(column):
        return NO_MEMORY
    source.depth += 1
    while True:
        block_end = NULL
        problem = read_number(source, &count)
        if problem != FINE:
            return problem
        if count == 0:
            break
        if count < 0:
            problem = read_length(source, &size)
            if problem != FINE:
                return problem
            block_end = source.at + size
            if count < -NUMBER_MAX:     # the one number that has no opposite
                return BAD_NUMBER
            count = -count
        problem = allow_items(source, step, first, count)
        if problem != FINE:
            return problem
        for number in range(count):
            problem = read_item(source, step)
            if problem != FINE:
                return problem
        if block_end != NULL and source.at != block_end:
            return BAD_BLOCK
    source.depth -= 1
    if step.operation == PAIRS and has_twins(first, begin):
        source.column = column
        return KEY_TWICE
    end_items(column)
    return FINE


cdef inline Problem allow_items(
    Source* source, const Step* step, const Column* column, int64_t count
) noexcept:
    """Whether so many more can be there, and can be held."""
    if step.size > 0:
        if count > (source.end - source.at) // step.size:
            return CUT_SHORT
    else:
        if count > source.free_items:
            return TOO_MANY
        source.free_items -= count
    return FINE if count <= ITEMS_MAX - column.count else TOO_MANY


cdef inline Problem read_item(Source* source, const Step* step) noexcept:
    cdef Problem problem = read_step(source, step.children[0])
    if problem == FINE and step.operation == PAIRS:
        problem = read_step(source, step.children[1])
    return problem


# Values


cdef inline Problem read_integer(Source* source, const Step* step) noexcept:
    """An int, a long, or what is counted in them; size 4: no more than 32 bits."""
    cdef Column* column = step.column
    cdef const uint8_t* start = source.at
    cdef int64_t value
    cdef Problem problem = read_number(source, &value)
    if problem != FINE:
        return problem
    if step.size == 4 and value != <int32_t>value:
        source.at = start
        return BAD_NUMBER
    if value < step.low or value > step.high:
        source.column = column
        return OUT_OF_RANGE
    if step.factor > 1:
        value *= step.factor
    elif step.factor < 0:
        value = value // -step.factor - (value % -step.factor < 0)
    if not make_room(column):
        return NO_MEMORY
    if column.width == 8:
        (<int64_t*>column.values)[column.count] = value
    elif column.width == 4:
        (<int32_t*>column.values)[column.count] = <int32_t>value
    elif column.width == 2:
        (<int16_t*>column.values)[column.count] = <int16_t>value
    else:
        (<int8_t*>column.values)[column.count] = <int8_t>value
    end_value(column)
    return FINE


cdef inline Problem append_floating(Column* column, double value) noexcept:
    if not make_room(column):
        return NO_MEMORY
    if column.kind == DOUBLE:
        (<double*>column.values)[column.count] = value
    else:
        (<float*>column.values)[column.count] = <float>value
    end_value(column)
    return FINE


cdef inline Problem read_floating(Source* source, const Step* step) noexcept:
    cdef int64_t whole
    cdef double value
    cdef float narrow
    cdef Problem problem
    if step.operation == INTEGER_AS_FLOATING:
        problem = read_number(source, &whole)
        return append_floating(step.column, <double>whole) if problem == FINE else problem
    if step.operation == FLOAT_OF:
        if want(source, sizeof(float)) != FINE:
            return CUT_SHORT
        memcpy(&narrow, source.at, sizeof(float))
        source.at += sizeof(float)
        value = narrow
    else:
        if want(source, sizeof(double)) != FINE:
            return CUT_SHORT
        memcpy(&value, source.at, sizeof(double))
        source.at += sizeof(double)
    return append_floating(step.column, value)


cdef inline Problem read_boolean(Source* source, Column* column) noexcept:
    if source.at >= source.end:
        return CUT_SHORT
    if source.at[0] > 1:
        return BAD_BOOLEAN
    if not make_room(column):
        return NO_MEMORY
    column.values[column.count] = source.at[0]
    source.at += 1
    end_value(column)
    return FINE


cdef inline Problem append_bytes(
    Source* source, Column* column, const uint8_t* start, int64_t length
) noexcept:
    """Bytes as they stand, if they are what the column holds."""
    cdef const uint8_t* text_end
    if column.kind == STRING:
        text_end = utf8_end(start, start + length)
        if text_end != start + length:
            source.at = text_end
            return NOT_UTF8
    if not make_room(column):
        return NO_MEMORY
    if length > ITEMS_MAX - offsets_of(column)[column.count]:
        return TOO_MANY
    return append_string(column, start, length)


cdef inline Problem read_bytes(Source* source, const Step* step) noexcept:
    cdef int64_t length = step.size
    cdef const uint8_t* start
    cdef Problem problem
    problem = read_length(source, &length) if length < 0 else want(source, length)
    if problem != FINE:
        return problem
    start = source.at
    problem = append_bytes(source, step.column, start, length)
    if problem == FINE:
        source.at = start + length
    return problem


cdef Problem read_uuid(Source* source, Column* column) noexcept:
    """Sixteen bytes as they are written for people."""
    cdef uint8_t[UUID_TEXT_BYTES] text
    cdef int index
    cdef int place = 0
    if want(source, UUID_BYTES) != FINE:
        return CUT_SHORT
    for index in range(UUID_BYTES):
        if index in (4, 6, 8, 10):
            text[place] = c"-"
            place += 1
        text[place] = HEX_DIGITS[source.at[index] >> 4]
        text[place + 1] = HEX_DIGITS[source.at[index] & 0xF]
        place += 2
    source.at += UUID_BYTES
    return append_bytes(source, column, text, UUID_TEXT_BYTES)


cdef Problem read_decimal(Source* source, const Step* step) noexcept:
    """A whole number in two's complement, big-endian; the scale is the schema's."""
    cdef Column* column = step.column
    cdef int64_t length = step.size
    cdef int64_t index
    cdef uint8_t sign
    cdef int128_t value
    cdef int128_t limit = 1
    cdef Problem problem
    problem = read_length(source, &length) if length < 0 else want(source, length)
    if problem != FINE:
        return problem
    sign = 0xFF if length > 0 and source.at[0] & 0x80 else 0
    source.column = column
    value = -<int128_t>1 if sign else 0
    for index in range(length):
        if index < length - DECIMAL_BYTES:
            if source.at[index] != sign:
                return NOT_EXACT
        else:
            if index == length - DECIMAL_BYTES and (source.at[index] ^ sign) & 0x80:
                return NOT_EXACT
            value = <int128_t>(<uint128_t>value << 8 | source.at[index])
    source.at += length
    for index in range(column.precision):
        limit *= 10
    for index in range(step.factor):    # a larger scale: more digits
        if value >= limit // 10 or value <= -(limit // 10):
            return NOT_EXACT
        value *= 10
    for index in range(-step.factor):
        if value % 10 != 0:
            return NOT_EXACT
        value = value // 10
    if value >= limit or value <= -limit:
        return NOT_EXACT
    if not make_room(column):
        return NO_MEMORY
    memcpy(column.values + column.count * DECIMAL_BYTES, &value, DECIMAL_BYTES)
    end_value(column)
    return FINE


# What the writer did not write


cdef Problem read_default(Source* source, const Step* step) noexcept:
    """A value that the reader's schema has in store, in Avro as any other."""
    cdef const uint8_t* at = source.at
    cdef const uint8_t* end = source.end
    cdef Problem problem
    source.at = step.text
    source.end = step.text + step.text_length
    problem = read_step(source, step.children[0])
    source.at = at
    source.end = end
    return problem


cdef Problem fail(Source* source, const Step* step) noexcept:
    source.column = step.column
    source.found = step.text
    source.found_length = step.text_length
    return step.problem


cdef Problem read_step(Source* source, const Step* step) noexcept:
    cdef Operation operation = step.operation
    cdef int64_t number
    cdef Problem problem
    if operation == INTEGER_OF:
        return read_integer(source, step)
    elif operation == BYTES_OF or operation == FIXED_OF:
        return read_bytes(source, step)
    elif operation == CHOICE:
        return read_choice(source, step)
    elif operation == FLOAT_OF or operation == DOUBLE_OF or operation == INTEGER_AS_FLOATING:
        return read_floating(source, step)
    elif operation == RECORD:
        return read_parts(source, step)
    elif operation == NULL_OF:
        return FINE if append_null(step.column) else NO_MEMORY
    elif operation == BOOLEAN_OF:
        return read_boolean(source, step.column)
    elif operation == CONSTANT:
        return append_bytes(source, step.column, step.text, step.text_length)
    elif operation == SKIP_BYTES:
        problem = read_length(source, &number)
        if problem == FINE:
            source.at += number
        return problem
    elif operation == SKIP_NUMBER:
        return read_number(source, &number)
    elif operation == SKIP:
        if want(source, step.size) != FINE:
            return CUT_SHORT
        source.at += step.size
        return FINE
    elif operation == ITEMS or operation == PAIRS:
        return read_items(source, step)
    elif operation == SKIP_ITEMS:
        return skip_items(source, step)
    elif operation == DECIMAL_OF:
        return read_decimal(source, step)
    elif operation == UUID_OF:
        return read_uuid(source, step.column)
    elif operation == DEFAULT:
        return read_default(source, step)
    elif operation == FAIL:
        return fail(source, step)
    return FINE                         # NOTHING
