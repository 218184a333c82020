# Hashes of keys. Part of _walk.pyx and of storage/_core.pyx.

cdef struct Hash:
    uint64_t low
    uint64_t high


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] += v[3]
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


cdef inline uint64_t sip_finish(uint64_t* v) noexcept nogil:
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline uint64_t load_little(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = 0
    while size > 0:
        size -= 1
        value = (value << 8) | at[size]
    return value


cdef inline uint64_t load_little_word(const uint8_t* at) noexcept nogil:
    """Eight bytes, in a form that compilers turn into one load."""
    return (<uint64_t>at[0] | (<uint64_t>at[1] << 8) | (<uint64_t>at[2] << 16)
            | (<uint64_t>at[3] << 24) | (<uint64_t>at[4] << 32) | (<uint64_t>at[5] << 40)
            | (<uint64_t>at[6] << 48) | (<uint64_t>at[7] << 56))


cdef Hash sip_hash(const uint8_t* key, Py_ssize_t size, const uint64_t* secret) noexcept nogil:
    """SipHash-1-3 with 128 bits: no sender can make two keys collide without the secret."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t left = size
    cdef Hash result
    v[0] = secret[0] ^ 0x736F6D6570736575ULL
    v[1] = secret[1] ^ 0x646F72616E646F6DULL ^ 0xEE
    v[2] = secret[0] ^ 0x6C7967656E657261ULL
    v[3] = secret[1] ^ 0x7465646279746573ULL
    while left >= 8:
        word = load_little_word(key)
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
        key += 8
        left -= 8
    word = (<uint64_t>size << 56) | load_little(key, left)
    v[3] ^= word
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    result.low = sip_finish(v)
    v[1] ^= 0xDD
    result.high = sip_finish(v)
    return result
