# Values as JSON, by the kind of their type. Nested types (arrays, composites, hstore) are walked in
# the text that PostgreSQL prints; elements that were escaped there are unescaped into the scratch
# buffer of their depth.

cdef enum:
    DEPTH_MAX = 16          # of composites within arrays within composites ...
    DIMENSIONS_MAX = 6      # of PostgreSQL's arrays
    DIGITS_AT_ONCE = 4000   # of an integer that Python parses

cdef enum Kind:             # types.Kind has the same numbers
    TEXT, INTEGER, FLOAT, BOOLEAN, BYTES, BITS, DATE, TIME_MILLIS, TIME_MICROS, TIME_ZONED
    TIMESTAMP_MILLIS, TIMESTAMP_MICROS, TIMESTAMP_ZONED, DECIMAL, VARIABLE_DECIMAL, MONEY, POINT
    HSTORE_JSON, HSTORE_MAP, ARRAY, COMPOSITE

cdef struct Node:           # a types.ValueType
    Kind kind
    int first_item          # among the nodes
    int items
    int scale               # of a decimal; the digits of a timestamp's seconds
    bint is_wide
    bint is_required        # Avro: a column that cannot be null
    uint8_t delimiter
    const uint8_t* label    # of an attribute: `"name":`
    int64_t label_size

cdef struct Scratch:
    Out[DEPTH_MAX + 1] at_depth
    Out spare               # for text that is written into other text
    bint with_text          # Avro: the schema has a branch `string` for what does not fit


cdef Status json_value(Out* out, const Node* nodes, int index, const uint8_t* text, int64_t size,
                       Scratch* scratch, int depth):
    cdef const Node* node = &nodes[index]
    cdef Kind kind = node.kind
    if kind == TEXT:
        return put_string(out, text, size)
    if kind == INTEGER:
        return put(out, text, size) if is_integer(text, size) else BAD_NUMBER
    if kind == TIMESTAMP_ZONED or kind == DATE or TIMESTAMP_MILLIS <= kind <= TIMESTAMP_MICROS:
        return json_moment(out, node, text, size)
    if kind == BOOLEAN:
        if size == 1 and (text[0] == c"t" or text[0] == c"1"):
            return put(out, b"true", 4)
        if size == 1 and (text[0] == c"f" or text[0] == c"0"):
            return put(out, b"false", 5)
        return BAD_BOOLEAN
    if kind == FLOAT:
        if is_number(text, size):
            return put(out, text, size)
        if is_special(text, size):
            return put_string(out, text, size)
        return BAD_NUMBER
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    if kind == ARRAY:
        return json_array(out, nodes, node.first_item, node.delimiter, text, size, scratch, depth)
    if kind == COMPOSITE:
        return json_composite(out, nodes, node, text, size, scratch, depth)
    return json_rare(out, node, text, size, &scratch.at_depth[depth], scratch)


cdef bint is_special(const uint8_t* text, int64_t size) noexcept nogil:
    """Whether a number is none: NaN, Infinity, -Infinity."""
    return ((size == 3 and memcmp(text, b"NaN", 3) == 0)
            or (size == 8 and memcmp(text, b"Infinity", 8) == 0)
            or (size == 9 and memcmp(text, b"-Infinity", 9) == 0))


cdef Status json_moment(Out* out, const Node* node, const uint8_t* text,
                        int64_t size) noexcept nogil:
    cdef Kind kind = node.kind
    cdef Moment moment
    cdef int64_t micros
    cdef Status status = read_moment(text, size, kind != DATE, kind == TIMESTAMP_ZONED, &moment)
    if status != DONE:
        return status
    if moment.infinity:
        return put_string(out, text, size)
    if kind == DATE:
        return put_number(out, moment.days)
    if kind != TIMESTAMP_ZONED and micros_of(&moment, &micros):
        # Rounds down: the server has rounded to milliseconds.
        return put_number(out, floor_divided(micros, 1000) if kind == TIMESTAMP_MILLIS else micros)
    status = put_byte(out, c'"')
    if status == DONE:
        status = put_moment(out, &moment, node.scale, kind == TIMESTAMP_ZONED)
    return put_byte(out, c'"') if status == DONE else status


cdef inline int64_t floor_divided(int64_t value, int64_t by) noexcept nogil:
    return value // by - (1 if value % by < 0 else 0)


cdef Status json_rare(Out* out, const Node* node, const uint8_t* text, int64_t size, Out* scratch,
                      Scratch* all_scratch):
    cdef const uint8_t* at = text
    cdef int64_t micros
    cdef Status status
    cdef Kind kind = node.kind
    scratch.size = 0
    if kind == BYTES or kind == BITS:
        status = read_hex(scratch, text, size) if kind == BYTES else read_bits(scratch, text, size)
        return put_base64(out, scratch.start, scratch.size) if status == DONE else status
    if kind == TIME_MILLIS or kind == TIME_MICROS:
        if not read_time(&at, text + size, &micros) or at != text + size:
            return BAD_TIME
        return put_number(out, micros // 1000 if kind == TIME_MILLIS else micros)
    if kind == TIME_ZONED:
        status = put_zoned_time(scratch, text, size)
        return put_string(out, scratch.start, scratch.size) if status == DONE else status
    if kind == MONEY:
        status = read_money(scratch, text, size)
        return put_string(out, scratch.start, scratch.size) if status == DONE else status
    if kind == HSTORE_JSON:
        status = json_hstore(scratch, text, size, &all_scratch.at_depth[DEPTH_MAX])
        return put_string(out, scratch.start, scratch.size) if status == DONE else status
    if kind == HSTORE_MAP:
        return json_hstore(out, text, size, scratch)
    if kind == POINT:
        return json_point(out, text, size)
    return json_decimal(out, node, text, size)


cdef Status read_money(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """`-$1,234.56`, as lc_monetary C prints it, as `-1234.56`."""
    cdef int64_t i
    for i in range(size):
        if is_digit(text[i]) or text[i] == c"-" or text[i] == c".":
            if put_byte(out, text[i]) != DONE:
                return NO_MEMORY
        elif text[i] != c"$" and text[i] != c",":
            return BAD_NUMBER
    return DONE if is_number(out.start, out.size) else BAD_NUMBER


cdef Status json_decimal(Out* out, const Node* node, const uint8_t* text, int64_t size):
    """Debezium's form of exact decimals: base64 of the unscaled value, with the scale if the type
    has none. NaN and infinities have no such form, and stay text."""
    if is_special(text, size):
        return put_string(out, text, size)
    if not is_number(text, size) or memchr(text, c"e", size) != NULL:
        return BAD_NUMBER
    unscaled, scale = unscale(<bytes>text[:size], node.scale if node.kind == DECIMAL else -1)
    if node.kind == DECIMAL:
        return put_base64(out, unscaled, len(unscaled))
    prefix = b'{"scale":%d,"value":' % scale
    if put_bytes(out, prefix) != DONE or put_base64(out, unscaled, len(unscaled)) != DONE:
        return NO_MEMORY
    return put_byte(out, c"}")


cdef tuple unscale(bytes text, int wanted_scale):
    """The digits without a point as big-endian two's complement, and how many are behind it."""
    whole, _, fraction = text.partition(b".")
    if wanted_scale >= 0:
        fraction = fraction[:wanted_scale].ljust(wanted_scale, b"0")
    number = long_integer(whole + fraction)
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True), len(
        fraction)


cdef object long_integer(bytes digits):
    """Python refuses to parse more than 4,300 digits at once; numeric has up to 147,455."""
    cdef Py_ssize_t at = 1 if digits.startswith(b"-") else 0
    number = 0
    while at < len(digits):
        part = digits[at:at + DIGITS_AT_ONCE]
        number = number * pow(TEN, len(part)) + int(part)
        at += DIGITS_AT_ONCE
    return -number if digits.startswith(b"-") else number


cdef Status read_point(const uint8_t* text, int64_t size, double* x, double* y):
    cdef bytes inside
    if size < 5 or text[0] != c"(" or text[size - 1] != c")":
        return BAD_POINT
    inside = <bytes>text[1:size - 1]
    parts = inside.split(b",")
    if len(parts) != 2 or not all([is_number(it, len(it)) or is_special(it, len(it))
                                   for it in parts]):
        return BAD_POINT
    x[0], y[0] = float(parts[0]), float(parts[1])
    return DONE


cdef Status json_point(Out* out, const uint8_t* text, int64_t size):
    """Debezium's form of a point: coordinates, and the same as well-known binary."""
    cdef double x = 0, y = 0
    cdef Status status = read_point(text, size, &x, &y)
    if status != DONE:
        return status
    inside = (<bytes>text[1:size - 1]).split(b",")
    numbers = [it if is_number(it, len(it)) else b'"%s"' % it for it in inside]
    if put_bytes(out, b'{"x":%s,"y":%s,"wkb":' % tuple(numbers)) != DONE:
        return NO_MEMORY
    binary = WKB_POINT.pack(1, 1, x, y)
    if put_base64(out, binary, len(binary)) != DONE:
        return NO_MEMORY
    return put(out, b',"srid":null}', 13)


# hstore: "a"=>"1", "b"=>NULL


cdef const uint8_t* read_quoted(const uint8_t* at, const uint8_t* end, Out* scratch, Status* status,
                                const uint8_t** start, int64_t* size) noexcept nogil:
    """What is between quotes, where a backslash quotes the next byte; `at` is behind the first
    quote, the result is behind the last one. Copies only what has a backslash in it."""
    cdef const uint8_t* from_ = at
    start[0] = at
    while at < end and at[0] != c'"' and at[0] != c"\\":
        at += 1
    if at < end and at[0] == c'"':
        size[0] = at - from_
        return at + 1
    scratch.size = 0
    if put(scratch, from_, at - from_) != DONE:
        status[0] = NO_MEMORY
        return NULL
    while at < end and at[0] != c'"':
        if at[0] == c"\\":
            at += 1
            if at == end:
                break
        if put_byte(scratch, at[0]) != DONE:
            status[0] = NO_MEMORY
            return NULL
        at += 1
    if at >= end:
        return NULL
    start[0] = scratch.start
    size[0] = scratch.size
    return at + 1


cdef Status json_hstore(Out* out, const uint8_t* text, int64_t size, Out* scratch) noexcept nogil:
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef const uint8_t* start = NULL
    cdef int64_t length = 0
    cdef Status status = BAD_HSTORE
    if put_byte(out, c"{") != DONE:
        return NO_MEMORY
    while at < end:
        if at > text:
            if end - at < 2 or at[0] != c"," or at[1] != c" ":
                return BAD_HSTORE
            at += 2
            put_byte(out, c",")
        if at >= end or at[0] != c'"':
            return BAD_HSTORE
        at = read_quoted(at + 1, end, scratch, &status, &start, &length)
        if at == NULL:
            return status
        if end - at < 3 or at[0] != c"=" or at[1] != c">":
            return BAD_HSTORE
        at += 2
        status = put_string(out, start, length)
        if status == DONE:
            status = put_byte(out, c":")
        if status != DONE:
            return status
        status = BAD_HSTORE
        if at[0] == c'"':
            at = read_quoted(at + 1, end, scratch, &status, &start, &length)
            if at == NULL:
                return status
            status = put_string(out, start, length)
        elif end - at >= 4 and memcmp(at, b"NULL", 4) == 0:
            at += 4
            status = put(out, b"null", 4)
        if status != DONE:
            return status
        status = BAD_HSTORE
    return put_byte(out, c"}")


# Arrays: {a,"b,c",NULL}, {{1,2},{3,4}}, [0:1]={1,2}


cdef const uint8_t* array_start(const uint8_t* text, const uint8_t* end) noexcept nogil:
    """Behind the bounds, which PostgreSQL prints if one is not 1."""
    cdef const uint8_t* at = text
    if at < end and at[0] == c"[":
        while at < end and at[0] != c"=":
            at += 1
        at += 1
    return at


cdef Status json_array(Out* out, const Node* nodes, int element, uint8_t delimiter,
                       const uint8_t* text, int64_t size, Scratch* scratch, int depth):
    cdef const uint8_t* end = text + size
    cdef const uint8_t* at = array_start(text, end)
    cdef Status status = json_dimension(out, nodes, element, delimiter, &at, end, scratch, depth, 1)
    return BAD_ARRAY if status == DONE and at != end else status


cdef const uint8_t* read_element(const uint8_t* at, const uint8_t* end, uint8_t delimiter,
                                 Out* scratch, Status* status, const uint8_t** start,
                                 int64_t* size) noexcept nogil:
    """One element that is no array; a size of -1 is NULL."""
    if at[0] == c'"':
        return read_quoted(at + 1, end, scratch, status, start, size)
    start[0] = at
    while at < end and at[0] != delimiter and at[0] != c"}":
        if at[0] == c"{" or at[0] == c'"' or at[0] == c"\\":
            return NULL
        at += 1
    size[0] = at - start[0]
    if size[0] == 0:
        return NULL
    if size[0] == 4 and memcmp(start[0], b"NULL", 4) == 0:
        size[0] = -1
    return at


cdef Status json_dimension(Out* out, const Node* nodes, int element, uint8_t delimiter,
                           const uint8_t** at, const uint8_t* end, Scratch* scratch, int depth,
                           int dimension):
    cdef const uint8_t* start = NULL
    cdef int64_t size = 0
    cdef Status status
    cdef bint is_first = True
    if dimension > DIMENSIONS_MAX or not read_mark(at, end, c"{"):
        return BAD_ARRAY
    if put_byte(out, c"[") != DONE:
        return NO_MEMORY
    if at[0] < end and at[0][0] == c"}":
        at[0] += 1
        return put_byte(out, c"]")
    while True:
        if at[0] >= end:
            return BAD_ARRAY
        if not is_first and put_byte(out, c",") != DONE:
            return NO_MEMORY
        is_first = False
        if at[0][0] == c"{":
            status = json_dimension(out, nodes, element, delimiter, at, end, scratch, depth,
                                    dimension + 1)
        else:
            status = BAD_ARRAY
            at[0] = read_element(at[0], end, delimiter, &scratch.at_depth[depth], &status, &start,
                                 &size)
            if at[0] == NULL:
                return status
            if size < 0:
                status = put(out, b"null", 4)
            else:
                status = json_value(out, nodes, element, start, size, scratch, depth + 1)
        if status != DONE:
            return status
        if read_mark(at, end, c"}"):
            return put_byte(out, c"]")
        if not read_mark(at, end, delimiter):
            return BAD_ARRAY


# Composites: (1,"q,""z",)


cdef const uint8_t* read_attribute(const uint8_t* at, const uint8_t* end, Out* scratch,
                                   Status* status, int64_t* size) noexcept nogil:
    """An attribute, unescaped into the scratch buffer; a size of -1 is NULL."""
    cdef bint quoted = False
    scratch.size = 0
    if at < end and (at[0] == c"," or at[0] == c")"):
        size[0] = -1
        return at
    while at < end:
        if at[0] == c'"':
            if quoted and end - at > 1 and at[1] == c'"':
                at += 1
            else:
                quoted = not quoted
                at += 1
                continue
        elif at[0] == c"\\":
            at += 1
            if at == end:
                return NULL
        elif not quoted and (at[0] == c"," or at[0] == c")"):
            size[0] = scratch.size
            return at
        if put_byte(scratch, at[0]) != DONE:
            status[0] = NO_MEMORY
            return NULL
        at += 1
    return NULL


cdef Status json_composite(Out* out, const Node* nodes, const Node* node, const uint8_t* text,
                           int64_t size, Scratch* scratch, int depth):
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef const Node* item
    cdef int64_t length = 0
    cdef Status status
    cdef int i
    if not read_mark(&at, end, c"("):
        return BAD_COMPOSITE
    if put_byte(out, c"{") != DONE:
        return NO_MEMORY
    for i in range(node.items):
        item = &nodes[node.first_item + i]
        if i and (put_byte(out, c",") != DONE or not read_mark(&at, end, c",")):
            return OTHER_ATTRIBUTES
        status = put(out, item.label, item.label_size)
        if status != DONE:
            return status
        status = BAD_COMPOSITE
        at = read_attribute(at, end, &scratch.at_depth[depth], &status, &length)
        if at == NULL:
            return status
        if length < 0:
            status = put(out, b"null", 4)
        else:
            status = json_value(out, nodes, node.first_item + i, scratch.at_depth[depth].start,
                                length, scratch, depth + 1)
        if status != DONE:
            return status
    if not read_mark(&at, end, c")"):
        return OTHER_ATTRIBUTES
    return put_byte(out, c"}") if at == end else BAD_COMPOSITE
