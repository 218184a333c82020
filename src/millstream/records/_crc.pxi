# CRC-32C without the GIL (the library's function cannot be called without it). Part of _read.pxi.
#
# The processor's own instruction where it has one; otherwise tables, eight bytes at a time, which
# take several times as long. `crc32c` and `crc32c_from` choose.

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <nmmintrin.h>
    #define MILLSTREAM_CRC_TARGET __attribute__((target("sse4.2")))
    #define millstream_crc_word(crc, word) _mm_crc32_u64(crc, word)
    #define millstream_crc_byte(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
    static int millstream_crc_is_built_in(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
    #include <arm_acle.h>
    #define MILLSTREAM_CRC_TARGET
    #define millstream_crc_word(crc, word) __crc32cd((uint32_t)(crc), word)
    #define millstream_crc_byte(crc, byte) __crc32cb((uint32_t)(crc), byte)
    static int millstream_crc_is_built_in(void) { return 1; }
    #endif

    #ifdef MILLSTREAM_CRC_TARGET
    MILLSTREAM_CRC_TARGET
    static uint32_t millstream_crc(uint32_t before, const uint8_t *at, ptrdiff_t size) {
        uint64_t crc = before, word;
        for (; size >= 8; at += 8, size -= 8) {
            memcpy(&word, at, 8);
            crc = millstream_crc_word(crc, word);
        }
        for (; size > 0; at++, size--) crc = millstream_crc_byte(crc, *at);
        return (uint32_t)crc;
    }
    #else
    static int millstream_crc_is_built_in(void) { return 0; }
    static uint32_t millstream_crc(uint32_t before, const uint8_t *at, ptrdiff_t size) {
        return before;
    }
    #endif
    """
    bint crc_is_built_in "millstream_crc_is_built_in"() noexcept nogil
    uint32_t built_in_crc "millstream_crc"(uint32_t before, const uint8_t* at,
                                           Py_ssize_t size) noexcept nogil


cdef bint has_built_in_crc = crc_is_built_in()
cdef uint32_t crc_table[8][256]


cdef void fill_crc_table() noexcept nogil:
    cdef uint32_t crc
    cdef int byte, bit, row
    for byte in range(256):
        crc = <uint32_t>byte
        for bit in range(8):
            crc = (crc >> 1) ^ (0x82F63B78u if crc & 1 else 0)
        crc_table[0][byte] = crc
    for byte in range(256):
        for row in range(1, 8):
            crc = crc_table[row - 1][byte]
            crc_table[row][byte] = (crc >> 8) ^ crc_table[0][crc & 0xFF]


cdef inline uint32_t crc32c(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    return crc32c_from(0, at, size)


cdef inline uint32_t crc32c_from(uint32_t before, const uint8_t* at,
                                 Py_ssize_t size) noexcept nogil:
    """The CRC of these bytes after others whose CRC is `before`."""
    cdef uint32_t crc = before ^ 0xFFFFFFFFu
    if has_built_in_crc:
        crc = built_in_crc(crc, at, size)
    else:
        crc = table_crc(crc, at, size)
    return crc ^ 0xFFFFFFFFu


cdef uint32_t table_crc(uint32_t crc, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t high
    while size >= 8:
        crc ^= at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)
        high = at[4] | (<uint32_t>at[5] << 8) | (<uint32_t>at[6] << 16) | (<uint32_t>at[7] << 24)
        crc = (crc_table[7][crc & 0xFF] ^ crc_table[6][(crc >> 8) & 0xFF]
               ^ crc_table[5][(crc >> 16) & 0xFF] ^ crc_table[4][crc >> 24]
               ^ crc_table[3][high & 0xFF] ^ crc_table[2][(high >> 8) & 0xFF]
               ^ crc_table[1][(high >> 16) & 0xFF] ^ crc_table[0][high >> 24])
        at += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ crc_table[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return crc


fill_crc_table()
