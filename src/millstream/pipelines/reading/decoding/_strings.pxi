# Strings of UTF-8, and the keys of maps.

cdef inline int utf8_length(const uint8_t* at, const uint8_t* end) noexcept:
    """How many bytes the character has that begins here; 0 if it is none (RFC 3629)."""
    cdef uint8_t first = at[0]
    cdef int64_t left = end - at
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 0
    if first < 0xE0:
        return 2 if left >= 2 and at[1] & 0xC0 == 0x80 else 0
    if first < 0xF0:
        low = 0xA0 if first == 0xE0 else 0x80
        high = 0x9F if first == 0xED else 0xBF          # no surrogates
        if left < 3 or not low <= at[1] <= high or at[2] & 0xC0 != 0x80:
            return 0
        return 3
    low = 0x90 if first == 0xF0 else 0x80
    high = 0x8F if first == 0xF4 else 0xBF
    if left < 4 or not low <= at[1] <= high or at[2] & 0xC0 != 0x80 or at[3] & 0xC0 != 0x80:
        return 0
    return 4


cdef const uint8_t* utf8_end(const uint8_t* at, const uint8_t* end) noexcept:
    """Where it stops to be UTF-8; `end` if it does not."""
    cdef uint64_t word
    cdef int length
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if word & <uint64_t>0x8080808080808080 == 0:
                at += 8
                continue
        length = utf8_length(at, end)
        if length == 0:
            return at
        at += length
    return end


cdef inline Problem append_string(Column* column, const uint8_t* text, int64_t length) noexcept:
    cdef uint8_t* target = data_room(column, length)
    if target == NULL:
        return NO_MEMORY
    memcpy(target, text, length)
    end_data(column, length)
    return FINE


cdef bint has_twins(const Column* keys, int64_t first) noexcept:
    """Whether a key from number `first` on is there twice."""
    cdef int32_t* starts = offsets_of(keys)
    cdef int64_t index, other, length
    if keys.count - first > 32:
        return len({keys.data[starts[it]:starts[it + 1]] for it in range(first, keys.count)}) < (
            keys.count - first
        )
    for index in range(first + 1, keys.count):
        length = starts[index + 1] - starts[index]
        for other in range(first, index):
            if (starts[other + 1] - starts[other] == length
                    and memcmp(keys.data + starts[other], keys.data + starts[index], length) == 0):
                return True
    return False
