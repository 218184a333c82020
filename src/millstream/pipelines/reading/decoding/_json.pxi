# JSON (RFC 8259) into columns, in one pass: each value is checked and laid down where it belongs.

cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    Column* column              # of the value that is a problem
    const uint8_t* text         # the string just scanned, as it stands between its quotes
    int64_t text_length
    bint text_has_escapes
    uint8_t* scratch            # room for twice the record
    int64_t scratch_capacity


cdef inline bint is_space(uint8_t it) noexcept:
    return it == c" " or it == c"\n" or it == c"\r" or it == c"\t"


cdef inline void skip_space(Reader* reader) noexcept:
    while reader.at < reader.end and is_space(reader.at[0]):
        reader.at += 1


cdef inline Problem unexpected(const Reader* reader) noexcept:
    return CUT_SHORT if reader.at >= reader.end else UNEXPECTED


# Strings


cdef inline uint64_t special_bytes(uint64_t word) noexcept:
    """The lowest byte with its top bit set here ends a run of plain characters in a string."""
    cdef uint64_t quotes = word ^ <uint64_t>0x2222222222222222
    cdef uint64_t slashes = word ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    cdef uint64_t ones = <uint64_t>0x0101010101010101
    cdef uint64_t found = (quotes - ones) & ~quotes
    found |= (slashes - ones) & ~slashes
    found |= (word - 0x20 * ones) & ~word
    found |= word
    return found & <uint64_t>0x8080808080808080


cdef inline Problem scan_string(Reader* reader) noexcept:
    """Step over the string whose opening quote is behind us; its text is then in the reader."""
    cdef const uint8_t* at = reader.at
    cdef const uint8_t* end = reader.end
    cdef uint64_t word
    cdef int length
    cdef Problem problem
    reader.text = at
    reader.text_has_escapes = False
    while True:
        while end - at >= 8:
            memcpy(&word, at, 8)
            word = special_bytes(word)
            if word:
                at += count_trailing_zeros(word) >> 3
                break
            at += 8
        reader.at = at
        if at >= end:
            return CUT_SHORT
        if at[0] == c'"':
            reader.text_length = at - reader.text
            reader.at = at + 1
            return FINE
        if at[0] == c"\\":
            problem = scan_escape(reader)
            if problem != FINE:
                return problem
            at = reader.at
        elif at[0] < 0x20:
            return CONTROL
        else:
            length = utf8_length(at, end)
            if length == 0:
                return NOT_UTF8
            at += length


cdef inline int hex4(const uint8_t* at) noexcept:
    """The number of four hexadecimal digits; negative if they are none."""
    cdef int value = 0
    cdef int index, digit
    cdef uint8_t it
    for index in range(4):
        it = at[index]
        if is_digit(it):
            digit = it - c"0"
        elif c"a" <= it | 0x20 <= c"f":
            digit = (it | 0x20) - c"a" + 10
        else:
            return -1
        value = value << 4 | digit
    return value


cdef Problem scan_escape(Reader* reader) noexcept:
    cdef const uint8_t* at = reader.at + 1
    cdef int unit, second
    reader.text_has_escapes = True
    if at >= reader.end:
        return CUT_SHORT
    if at[0] != c"u":
        if at[0] not in b'"\\/bfnrt':
            return BAD_ESCAPE
        reader.at = at + 1
        return FINE
    if reader.end - at < 5:
        return CUT_SHORT
    unit = hex4(at + 1)
    if unit < 0:
        return BAD_ESCAPE
    at += 5
    if 0xD800 <= unit < 0xE000:
        if unit >= 0xDC00 or reader.end - at < 6 or at[0] != c"\\" or at[1] != c"u":
            return LONE_SURROGATE
        second = hex4(at + 2)
        if not 0xDC00 <= second < 0xE000:
            return LONE_SURROGATE
        at += 6
    reader.at = at
    return FINE


cdef inline uint8_t meant_by(uint8_t letter) noexcept:
    """What a backslash and this letter stand for."""
    if letter == c"n":
        return c"\n"
    if letter == c"t":
        return c"\t"
    if letter == c"r":
        return c"\r"
    if letter == c"b":
        return c"\b"
    return c"\f" if letter == c"f" else letter


cdef int64_t unescape(const uint8_t* at, int64_t length, uint8_t* target) noexcept:
    """A scanned string without its escapes, which are never shorter than what they stand for."""
    cdef const uint8_t* end = at + length
    cdef uint8_t* start = target
    cdef uint32_t point
    while at < end:
        if at[0] != c"\\":
            target[0] = at[0]
            at += 1
            target += 1
            continue
        if at[1] != c"u":
            target[0] = meant_by(at[1])
            at += 2
            target += 1
            continue
        point = hex4(at + 2)
        at += 6
        if 0xD800 <= point < 0xDC00:
            point = 0x10000 + ((point - 0xD800) << 10) + (hex4(at + 2) - 0xDC00)
            at += 6
        target += write_utf8(point, target)
    return target - start


cdef int write_utf8(uint32_t point, uint8_t* target) noexcept:
    if point < 0x80:
        target[0] = point
        return 1
    if point < 0x800:
        target[0] = 0xC0 | point >> 6
        target[1] = 0x80 | point & 0x3F
        return 2
    if point < 0x10000:
        target[0] = 0xE0 | point >> 12
        target[1] = 0x80 | point >> 6 & 0x3F
        target[2] = 0x80 | point & 0x3F
        return 3
    target[0] = 0xF0 | point >> 18
    target[1] = 0x80 | point >> 12 & 0x3F
    target[2] = 0x80 | point >> 6 & 0x3F
    target[3] = 0x80 | point & 0x3F
    return 4


cdef inline void settle_text(Reader* reader) noexcept:
    """The scanned text as it is meant: without escapes, in the scratch space if it had any."""
    if reader.text_has_escapes:
        reader.text_length = unescape(reader.text, reader.text_length, reader.scratch)
        reader.text = reader.scratch
        reader.text_has_escapes = False


# What the schema does not ask for


cdef Problem skip_value(Reader* reader, int depth) noexcept:
    """Step over any value, checking that it is JSON."""
    cdef uint8_t first, close
    cdef bint is_object
    cdef Number number
    cdef Problem problem
    skip_space(reader)
    if reader.at >= reader.end:
        return CUT_SHORT
    first = reader.at[0]
    if first == c'"':
        reader.at += 1
        return scan_string(reader)
    if first != c"{" and first != c"[":
        return skip_scalar(reader)
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    is_object = first == c"{"
    close = c"}" if is_object else c"]"
    reader.at += 1
    skip_space(reader)
    if reader.at < reader.end and reader.at[0] == close:
        reader.at += 1
        return FINE
    while True:
        if is_object:
            problem = skip_name(reader)
            if problem != FINE:
                return problem
        problem = skip_value(reader, depth + 1)
        if problem != FINE:
            return problem
        skip_space(reader)
        if reader.at < reader.end and reader.at[0] == close:
            reader.at += 1
            return FINE
        problem = expect(reader, c",")
        if problem != FINE:
            return problem


cdef Problem skip_scalar(Reader* reader) noexcept:
    cdef Number number
    cdef uint8_t first = reader.at[0]
    if first == c"-" or is_digit(first):
        if not scan_number(reader.at, reader.end, &number) or number.leading_zero:
            return UNEXPECTED
        reader.at = number.end
        return FINE
    if first == c"t":
        return expect_word(reader, b"true", 4)
    if first == c"f":
        return expect_word(reader, b"false", 5)
    return expect_word(reader, b"null", 4)


cdef Problem skip_name(Reader* reader) noexcept:
    """A field's name and the colon after it."""
    cdef Problem problem
    skip_space(reader)
    problem = expect(reader, c'"')
    if problem == FINE:
        problem = scan_string(reader)
    if problem == FINE:
        skip_space(reader)
        problem = expect(reader, c":")
    return problem


cdef inline Problem expect(Reader* reader, uint8_t wanted) noexcept:
    if reader.at >= reader.end or reader.at[0] != wanted:
        return unexpected(reader)
    reader.at += 1
    return FINE


cdef inline Problem expect_word(Reader* reader, const char* word, int64_t length) noexcept:
    cdef int64_t index
    for index in range(length):
        if reader.at >= reader.end or reader.at[0] != <uint8_t>word[index]:
            return unexpected(reader)
        reader.at += 1
    return FINE


# What it asks for


cdef Problem read_value(Reader* reader, Column* column, int depth) noexcept:
    """The value at hand as the column's next."""
    cdef uint8_t first
    cdef Problem problem
    skip_space(reader)
    reader.column = column
    if reader.at >= reader.end:
        return CUT_SHORT
    if not make_room(column):
        return NO_MEMORY
    first = reader.at[0]
    if first == c'"':
        return read_string(reader, column)
    if first == c"-" or is_digit(first):
        return read_number(reader, column)
    if first == c"n":
        problem = expect_word(reader, b"null", 4)
        if problem != FINE:
            return problem
        if not column.nullable:
            return NULL_VALUE
        return FINE if append_null(column) else NO_MEMORY
    if first == c"{":
        if column.kind == STRUCT:
            return read_object(reader, column, depth)
        return read_map(reader, column, depth) if column.kind == MAP else WRONG_TYPE
    if first == c"[":
        return read_list(reader, column, depth) if column.kind == LIST else WRONG_TYPE
    if column.kind == BOOLEAN and (first == c"t" or first == c"f"):
        problem = skip_scalar(reader)
        if problem == FINE:
            column.values[column.count] = first == c"t"
            end_value(column)
        return problem
    return WRONG_TYPE if first == c"t" or first == c"f" else UNEXPECTED


cdef inline Problem read_number(Reader* reader, Column* column) noexcept:
    cdef Number number
    cdef const uint8_t* start = reader.at
    cdef Problem problem
    if not scan_number(start, reader.end, &number) or number.leading_zero:
        return UNEXPECTED
    if column.kind == INTEGER:
        problem = append_integer(column, &number)
    elif column.kind == DOUBLE or column.kind == FLOAT:
        problem = append_floating(column, start, &number, reader.scratch)
    elif column.kind == DECIMAL:
        problem = append_decimal(column, start, &number)
    elif column.kind == TIMESTAMP and column.scale:
        problem = append_epoch(column, &number)
    else:
        return EPOCH if column.kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ) else WRONG_TYPE
    if problem == FINE:
        reader.at = number.end
    return problem


cdef inline Problem read_string(Reader* reader, Column* column) noexcept:
    cdef const uint8_t* start = reader.at
    cdef uint8_t* target
    cdef Problem problem
    reader.at += 1
    problem = scan_string(reader)
    if problem != FINE:
        return problem
    if column.kind == STRING:
        if not reader.text_has_escapes:
            return append_string(column, reader.text, reader.text_length)
        target = data_room(column, reader.text_length)
        if target == NULL:
            return NO_MEMORY
        end_data(column, unescape(reader.text, reader.text_length, target))
        return FINE
    settle_text(reader)
    problem = append_quoted(reader, column)
    if problem != FINE:
        reader.at = start
    return problem


cdef Problem append_quoted(Reader* reader, Column* column) noexcept:
    """The scanned text where the column is of another type that JSON can only write as a string."""
    cdef Number number
    if column.kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return append_moment(column, reader.text, reader.text_length)
    if column.kind == BINARY:
        return append_base64(column, reader.text, reader.text_length)
    if column.kind == DECIMAL:
        if (not scan_number(reader.text, reader.text + reader.text_length, &number)
                or number.end != reader.text + reader.text_length):
            return WRONG_TYPE
        return append_decimal(column, reader.text, &number)
    if column.kind == DOUBLE or column.kind == FLOAT:
        if append_special(column, reader.text, reader.text_length):
            return FINE
    return WRONG_TYPE


cdef int32_t find_field(Reader* reader, const Column* column) noexcept:
    """Which field of the struct has the scanned name; -1 if none has."""
    cdef int32_t index
    cdef const Column* child
    settle_text(reader)
    for index in range(column.child_count):
        child = &column.children[index]
        if (child.name_length == reader.text_length
                and memcmp(child.name, reader.text, reader.text_length) == 0):
            return index
    return -1


cdef inline Problem read_name(Reader* reader, Column* column, int32_t last, int32_t* found) noexcept:
    """A field's name and the colon after it. Records are alike: the guess is mostly right."""
    cdef int32_t guess = column.following[last + 1]
    cdef const Column* child
    cdef Problem problem
    if guess >= 0 and reader.at < reader.end and reader.at[0] == c'"':
        child = &column.children[guess]
        if (child.name_is_plain and reader.end - reader.at > child.name_length + 2
                and reader.at[child.name_length + 1] == c'"'
                and memcmp(reader.at + 1, child.name, child.name_length) == 0):
            reader.at += child.name_length + 2
            found[0] = guess
            if reader.at[0] == c":":
                reader.at += 1
                return FINE
            skip_space(reader)
            return expect(reader, c":")
    problem = skip_name(reader)
    if problem == FINE:
        found[0] = find_field(reader, column)
        if found[0] >= 0:
            column.following[last + 1] = found[0]
    return problem


cdef Problem read_object(Reader* reader, Column* column, int depth) noexcept:
    """An object as a struct: fields in any order, those that the schema does not name skipped."""
    cdef int64_t row = column.count
    cdef int32_t missing = column.child_count
    cdef int32_t last = -1
    cdef int32_t field = -1
    cdef Problem problem
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    reader.at += 1
    skip_space(reader)
    if reader.at < reader.end and reader.at[0] == c"}":
        reader.at += 1
        return end_object(reader, column, missing)
    while True:
        problem = read_name(reader, column, last, &field)
        if problem != FINE:
            return problem
        if field < 0:
            problem = skip_value(reader, depth + 1)
        elif column.children[field].count > row:
            reader.column = &column.children[field]
            return TWICE
        else:
            last = field
            missing -= 1
            problem = read_value(reader, &column.children[field], depth + 1)
        if problem != FINE:
            return problem
        skip_space(reader)
        if reader.at < reader.end and reader.at[0] == c"}":
            reader.at += 1
            return end_object(reader, column, missing)
        problem = expect(reader, c",")
        if problem != FINE:
            return problem
        skip_space(reader)


cdef Problem end_object(Reader* reader, Column* column, int32_t missing) noexcept:
    cdef int32_t index
    cdef Column* child
    if missing:
        for index in range(column.child_count):
            child = &column.children[index]
            if child.count > column.count:
                continue
            if not child.nullable:
                reader.column = child
                return MISSING
            if not append_null(child):
                return NO_MEMORY
    end_value(column)
    return FINE


cdef Problem read_list(Reader* reader, Column* column, int depth) noexcept:
    cdef Problem problem
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    reader.at += 1
    skip_space(reader)
    if reader.at < reader.end and reader.at[0] == c"]":
        reader.at += 1
        end_items(column)
        return FINE
    while True:
        problem = read_value(reader, &column.children[0], depth + 1)
        if problem != FINE:
            return problem
        skip_space(reader)
        if reader.at < reader.end and reader.at[0] == c"]":
            reader.at += 1
            end_items(column)
            return FINE
        problem = expect(reader, c",")
        if problem != FINE:
            return problem


cdef Problem read_map(Reader* reader, Column* column, int depth) noexcept:
    """An object as a map: its names are the keys, each there once."""
    cdef Column* keys = &column.children[0]
    cdef Problem problem
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    reader.at += 1
    skip_space(reader)
    if reader.at < reader.end and reader.at[0] == c"}":
        reader.at += 1
        end_items(column)
        return FINE
    while True:
        problem = skip_name(reader)
        if problem != FINE:
            return problem
        settle_text(reader)
        if not make_room(keys):
            return NO_MEMORY
        problem = append_string(keys, reader.text, reader.text_length)
        if problem == FINE:
            problem = read_value(reader, &column.children[1], depth + 1)
        if problem != FINE:
            return problem
        skip_space(reader)
        if reader.at < reader.end and reader.at[0] == c"}":
            reader.at += 1
            reader.column = column
            if has_twins(keys, offsets_of(column)[column.count]):
                return KEY_TWICE
            end_items(column)
            return FINE
        problem = expect(reader, c",")
        if problem != FINE:
            return problem


cdef Problem read_json(Reader* reader, Column* root) noexcept:
    """A record's value as a row: one object, and nothing after it."""
    cdef const uint8_t* start = reader.at
    cdef Problem problem
    if reader.at >= reader.end:
        return EMPTY
    skip_space(reader)
    reader.column = root
    if reader.at >= reader.end:
        return EMPTY
    if reader.at[0] == c"{":
        problem = read_object(reader, root, 0)
    else:
        problem = skip_value(reader, 0)
        if problem == FINE:
            reader.at = start
            skip_space(reader)
            return WRONG_TYPE
    if problem == FINE:
        skip_space(reader)
        if reader.at < reader.end:
            problem = TRAILING
    return problem
