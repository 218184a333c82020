# Bytes that grow, and the scalars that are written into them. Nothing here raises: a status is
# returned, and the caller knows the table and the column for the message.

cdef enum Status:
    DONE, NO_MEMORY, BAD_TEXT, BAD_NUMBER, BAD_BOOLEAN, BAD_BYTES, BAD_BITS, BAD_TIME, BAD_POINT
    BAD_HSTORE, BAD_ARRAY, BAD_COMPOSITE, OTHER_ATTRIBUTES, TOO_DEEP, BAD_TUPLE, OTHER_COLUMNS
    BINARY_TUPLE, NO_KEY_VALUE, NULL_KEY, TOO_LARGE, NEEDS_TEXT

cdef struct Out:
    uint8_t* start
    int64_t size
    int64_t capacity


cdef bint grow(Out* out, int64_t more) noexcept nogil:
    cdef int64_t capacity = max(2 * out.capacity, out.size + more, 256)
    cdef uint8_t* larger = <uint8_t*>realloc(out.start, capacity)
    if larger == NULL:
        return False
    out.start = larger
    out.capacity = capacity
    return True


cdef inline bint room(Out* out, int64_t more) noexcept nogil:
    return out.size + more <= out.capacity or grow(out, more)


cdef inline Status put(Out* out, const void* bytes, int64_t size) noexcept nogil:
    if size == 0:
        return DONE
    if not room(out, size):
        return NO_MEMORY
    memcpy(out.start + out.size, bytes, size)
    out.size += size
    return DONE


cdef inline Status put_byte(Out* out, uint8_t byte) noexcept nogil:
    if not room(out, 1):
        return NO_MEMORY
    out.start[out.size] = byte
    out.size += 1
    return DONE


cdef inline Status put_bytes(Out* out, bytes text):
    return put(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef Status put_number(Out* out, int64_t value) noexcept nogil:
    """A number in decimal digits."""
    cdef uint8_t[24] digits
    cdef int at = 24
    cdef uint64_t rest = <uint64_t>value if value >= 0 else 0 - <uint64_t>value
    while True:
        at -= 1
        digits[at] = 48 + <uint8_t>(rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        digits[at] = c"-"
    return put(out, &digits[at], 24 - at)


cdef inline uint8_t* two_digits(uint8_t* at, int64_t value) noexcept nogil:
    at[0] = 48 + <uint8_t>(value // 10)
    at[1] = 48 + <uint8_t>(value % 10)
    return at + 2


cdef bint is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint32_t code
    cdef int more, i
    while at < end:
        if at[0] < 0x80:
            at += 1
            continue
        if at[0] < 0xC2:
            return False
        if at[0] < 0xE0:
            more, code = 1, at[0] & 0x1F
        elif at[0] < 0xF0:
            more, code = 2, at[0] & 0x0F
        elif at[0] < 0xF5:
            more, code = 3, at[0] & 0x07
        else:
            return False
        if end - at <= more:
            return False
        for i in range(1, more + 1):
            if at[i] & 0xC0 != 0x80:
                return False
            code = code << 6 | (at[i] & 0x3F)
        if (more == 2 and (code < 0x800 or 0xD800 <= code < 0xE000)) or (
                more == 3 and not 0x10000 <= code < 0x110000):
            return False
        at += more + 1
    return True


cdef inline uint64_t bytes_below(uint64_t word, uint64_t limit) noexcept nogil:
    """A bit for each byte of `word` that is less than `limit`, which is at most 128."""
    return (word - limit * 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL


cdef inline uint8_t* escape(uint8_t* to, uint8_t byte) noexcept nogil:
    cdef const char* hexadecimal = b"0123456789abcdef"
    if byte >= 0x20 and byte != c'"' and byte != c"\\":
        to[0] = byte
        return to + 1
    to[0] = c"\\"
    if byte == c'"' or byte == c"\\":
        to[1] = byte
    elif byte == c"\n":
        to[1] = c"n"
    elif byte == c"\r":
        to[1] = c"r"
    elif byte == c"\t":
        to[1] = c"t"
    elif byte == 8:
        to[1] = c"b"
    elif byte == 12:
        to[1] = c"f"
    else:
        memcpy(to, b"\\u00", 4)
        to[4] = hexadecimal[byte >> 4]
        to[5] = hexadecimal[byte & 15]
        return to + 6
    return to + 2


cdef Status put_escaped(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """The inside of a JSON string. Eight bytes at a time where none needs an escape."""
    cdef uint8_t* to
    cdef uint64_t word
    cdef uint64_t high = 0
    cdef int64_t at = 0
    cdef int i
    if not room(out, 6 * size + 8):
        return NO_MEMORY
    to = out.start + out.size
    while at + 8 <= size:
        memcpy(&word, text + at, 8)
        high |= word & 0x8080808080808080ULL
        if (bytes_below(word, 0x20) | bytes_below(word ^ 0x2222222222222222ULL, 1)
                | bytes_below(word ^ 0x5C5C5C5C5C5C5C5CULL, 1)):
            for i in range(8):
                to = escape(to, text[at + i])
        else:
            memcpy(to, &word, 8)
            to += 8
        at += 8
    while at < size:
        high |= text[at] & 0x80
        to = escape(to, text[at])
        at += 1
    if high and not is_utf8(text, size):
        return BAD_TEXT
    out.size = to - out.start
    return DONE


cdef Status put_string(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    """A JSON string."""
    cdef Status status = put_byte(out, c'"')
    if status == DONE:
        status = put_escaped(out, text, size)
    if status == DONE:
        status = put_byte(out, c'"')
    return status


cdef Status put_base64(Out* out, const uint8_t* at, int64_t size) noexcept nogil:
    """A JSON string with the bytes in base64."""
    cdef const char* alphabet = (
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    cdef uint8_t* to
    cdef uint32_t group
    if not room(out, (size + 2) // 3 * 4 + 2):
        return NO_MEMORY
    to = out.start + out.size
    to[0] = c'"'
    to += 1
    while size > 0:
        group = <uint32_t>at[0] << 16
        if size > 1:
            group |= <uint32_t>at[1] << 8
        if size > 2:
            group |= at[2]
        to[0] = alphabet[group >> 18]
        to[1] = alphabet[(group >> 12) & 63]
        to[2] = alphabet[(group >> 6) & 63] if size > 1 else c"="
        to[3] = alphabet[group & 63] if size > 2 else c"="
        to += 4
        at += 3
        size -= 3
    to[0] = c'"'
    out.size = to + 1 - out.start
    return DONE
