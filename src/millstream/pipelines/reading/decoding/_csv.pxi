# One line of CSV into columns, by position.

cdef struct Dialect:
    uint8_t separator
    uint8_t quote
    uint8_t escape


cdef Problem read_csv(Reader* reader, Column* root, const Dialect* dialect) noexcept:
    """A record's value as a row: one line with as many fields as the schema."""
    cdef int32_t field = 0
    cdef bint quoted = False
    cdef Problem problem
    reader.column = root
    if reader.end > reader.at and (reader.end - 1)[0] == c"\n":
        reader.end -= 1
        if reader.end > reader.at and (reader.end - 1)[0] == c"\r":
            reader.end -= 1
    if reader.at == reader.end:
        return EMPTY
    while True:
        problem = scan_field(reader, dialect, &quoted)
        if problem != FINE:
            return problem
        if field == root.child_count:
            reader.column = root
            return FIELD_COUNT
        reader.column = &root.children[field]
        problem = append_text(reader, reader.column, quoted)
        if problem != FINE:
            return problem
        field += 1
        if reader.at == reader.end:
            break
        reader.at += 1                  # the separator
    if field < root.child_count:
        reader.column = root
        return FIELD_COUNT
    end_value(root)
    return FINE


cdef Problem scan_field(Reader* reader, const Dialect* dialect, bint* quoted) noexcept:
    """Up to the separator or the end; the field's text is then in the reader."""
    cdef const uint8_t* at = reader.at
    quoted[0] = at < reader.end and at[0] == dialect.quote
    if quoted[0]:
        return scan_quoted(reader, dialect)
    reader.text = at
    while at < reader.end and at[0] != dialect.separator:
        if at[0] == c"\n":
            reader.at = at
            return SECOND_LINE
        at += 1
    reader.text_length = at - reader.text
    reader.at = at
    return FINE


cdef Problem scan_quoted(Reader* reader, const Dialect* dialect) noexcept:
    cdef const uint8_t* at = reader.at + 1
    cdef uint8_t* target = reader.scratch
    while at < reader.end:
        if at[0] == dialect.quote:
            if at + 1 < reader.end and at[1] == dialect.quote:
                at += 1
            else:
                break
        elif at[0] == dialect.escape and at + 1 < reader.end and at[1] in (
            dialect.quote, dialect.escape
        ):
            at += 1
        target[0] = at[0]
        target += 1
        at += 1
    reader.at = at
    if at >= reader.end:
        return CUT_SHORT
    reader.at = at + 1
    if reader.at < reader.end and reader.at[0] != dialect.separator:
        return AFTER_QUOTE
    reader.text = reader.scratch
    reader.text_length = target - reader.scratch
    return FINE


cdef Problem append_text(Reader* reader, Column* column, bint quoted) noexcept:
    """The scanned text as the column's next value; an empty field is null unless it is quoted."""
    cdef Number number
    cdef const uint8_t* text = reader.text
    cdef int64_t length = reader.text_length
    if not make_room(column):
        return NO_MEMORY
    if length == 0 and not quoted:
        if not column.nullable:
            return MISSING
        return FINE if append_null(column) else NO_MEMORY
    if column.kind == STRING:
        if utf8_end(text, text + length) != text + length:
            return NOT_UTF8
        return append_string(column, text, length)
    if column.kind == BINARY:
        return append_base64(column, text, length)
    if column.kind == BOOLEAN:
        return append_boolean(column, text, length)
    if column.kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        if (column.kind == TIMESTAMP and column.scale
                and scan_number(text, text + length, &number) and number.end == text + length):
            return append_epoch(column, &number)
        return append_moment(column, text, length)
    if not scan_number(text, text + length, &number) or number.end != text + length:
        if column.kind in (DOUBLE, FLOAT) and append_special(column, text, length):
            return FINE
        return WRONG_TYPE
    if column.kind == INTEGER:
        return append_integer(column, &number)
    if column.kind == DECIMAL:
        return append_decimal(column, text, &number)
    # The first half of the scratch space may hold the text itself.
    return append_floating(column, text, &number, reader.scratch + reader.scratch_capacity // 2)


cdef Problem append_boolean(Column* column, const uint8_t* text, int64_t length) noexcept:
    """`true` or `false`, in any case."""
    cdef uint8_t[5] lower
    cdef int64_t index
    if length != 4 and length != 5:
        return WRONG_TYPE
    for index in range(length):
        lower[index] = text[index] | 0x20
    if length == 4 and memcmp(lower, b"true", 4) == 0:
        column.values[column.count] = 1
    elif length == 5 and memcmp(lower, b"false", 5) == 0:
        column.values[column.count] = 0
    else:
        return WRONG_TYPE
    end_value(column)
    return FINE


cdef Problem read_text(Reader* reader, Column* root) noexcept:
    """A record's value as the one string of a row."""
    reader.column = &root.children[0]
    reader.text = reader.at
    reader.at = utf8_end(reader.at, reader.end)
    if reader.at != reader.end:
        return NOT_UTF8
    if not make_room(reader.column):
        return NO_MEMORY
    end_value(root)
    return append_string(reader.column, reader.text, reader.end - reader.text)
