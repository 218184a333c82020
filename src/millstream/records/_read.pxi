# Reading headers and records, without the GIL. Part of _walk.pyx and _columns.pyx.

include "_crc.pxi"

cdef enum:
    HEADER_SIZE = 61
    ATTRIBUTES_AT = 21
    MIN_RECORD_SIZE = 7         # length, attributes, two deltas, two lengths, header count
    MAX_RECORD_GROWTH = 13      # a new timestamp delta (+9) and its length (+4)
    COMPRESSION_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    NO_TIMESTAMP = -1
    RELEASE_GIL_FROM_BYTES = 65536
    MAX_PROBLEMS = 64
    MAGIC_V2 = 2
    SMALL_BATCH = 32768         # checked in one step, with the GIL; for larger ones that is slower
    PROBLEM_NULL_KEY = 1
    PROBLEM_TIMESTAMP = 2

cdef enum Status:
    DONE = 0            # every whole batch was walked
    OPAQUE = 1          # the next batch is compressed, transactional or a control batch
    FULL = 2            # no room: in the map, or in the output
    BAD_NUMBER = 3
    BAD_LENGTH = 4
    BAD_FIELD = 5
    BAD_HEADERS = 6
    BAD_OFFSET = 7
    BAD_COUNT = 8
    BAD_TAIL = 9
    BAD_HEADER = 10
    BAD_CRC = 11
    NO_MEMORY = 12

WALK_DONE = DONE
WALK_OPAQUE = OPAQUE
WALK_FULL = FULL

NULL_KEY = PROBLEM_NULL_KEY
TIMESTAMP_OUT_OF_RANGE = PROBLEM_TIMESTAMP

cdef dict _REASONS = {
    BAD_NUMBER: "a record ends, or runs on, inside a number",
    BAD_LENGTH: "a record claims more bytes than are left",
    BAD_FIELD: "a record's key or value claims more bytes than are left",
    BAD_HEADERS: "a record's headers are malformed",
    BAD_OFFSET: "a record's offset lies outside the batch or out of order",
    BAD_COUNT: "there are not as many records as the header says",
    BAD_TAIL: "bytes follow the last record",
    BAD_HEADER: "the batch header is malformed",
    BAD_CRC: "the CRC does not match",
}


cdef struct Batch:              # a batch's header, and where its (uncompressed) records lie
    const uint8_t* records
    const uint8_t* end
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t last_offset_delta
    int32_t record_count
    int32_t size
    int16_t attributes


cdef struct Record:
    const uint8_t* start        # at its length
    const uint8_t* body         # after its length
    const uint8_t* end
    const uint8_t* after_timestamp
    const uint8_t* key
    const uint8_t* headers      # at their count
    int64_t key_length          # -1: null
    int64_t value_length        # -1: null
    int64_t timestamp
    int64_t offset_delta


# Reading numbers, records and headers


cdef inline int64_t load_int64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value = (value << 8) | at[i]
    return <int64_t>value


cdef inline int32_t load_int32(const uint8_t* at) noexcept nogil:
    return <int32_t>((<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16)
                     | (<uint32_t>at[2] << 8) | at[3])


cdef inline void store_int64(uint8_t* at, int64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        at[i] = <uint8_t>(<uint64_t>value >> (56 - 8 * i))


cdef inline void store_int32(uint8_t* at, int32_t value) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <uint8_t>(<uint32_t>value >> (24 - 8 * i))


cdef inline int64_t wrapping_add(int64_t left, int64_t right) noexcept nogil:
    return <int64_t>(<uint64_t>left + <uint64_t>right)


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef const uint8_t* position = at[0]
    if position < end and position[0] < 0x80:   # most are small
        at[0] = position + 1
        value[0] = (position[0] >> 1) ^ -<int64_t>(position[0] & 1)
        return True
    while position < end and shift < 70:
        raw |= <uint64_t>(position[0] & 0x7F) << shift
        shift += 7
        position += 1
        if position[-1] < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            at[0] = position
            return True
    return False


cdef inline uint8_t* write_varint(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while raw > 0x7F:
        at[0] = <uint8_t>(raw & 0x7F) | 0x80
        at += 1
        raw >>= 7
    at[0] = <uint8_t>raw
    return at + 1


cdef inline Status read_field(const uint8_t** at, const uint8_t* end, int64_t* length) noexcept nogil:
    """Skip a nullable field, leaving its length (-1: null)."""
    if not read_varint(at, end, length):
        return BAD_NUMBER
    if length[0] < -1 or length[0] > end - at[0]:
        return BAD_FIELD
    if length[0] > 0:
        at[0] += length[0]
    return DONE


cdef inline Status read_headers(const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int64_t count, length
    if not read_varint(at, end, &count):
        return BAD_NUMBER
    if count < 0 or count > end - at[0]:
        return BAD_HEADERS
    while count > 0:
        if read_field(at, end, &length) != DONE or length < 0:
            return BAD_HEADERS
        if read_field(at, end, &length) != DONE:
            return BAD_HEADERS
        count -= 1
    return DONE


cdef inline Status read_record(const uint8_t** at, const Batch* batch, Record* record) noexcept nogil:
    cdef const uint8_t* position = at[0]
    cdef const uint8_t* end = batch.end
    cdef int64_t length, timestamp_delta
    cdef Status status
    record.start = position
    if not read_varint(&position, end, &length):
        return BAD_NUMBER
    if length < 1 or length > end - position:
        return BAD_LENGTH
    end = position + length
    record.body = position
    record.end = end
    position += 1
    if not read_varint(&position, end, &timestamp_delta):
        return BAD_NUMBER
    record.after_timestamp = position
    if batch.attributes & LOG_APPEND_TIME:
        record.timestamp = batch.max_timestamp
    else:
        record.timestamp = wrapping_add(batch.base_timestamp, timestamp_delta)
    if not read_varint(&position, end, &record.offset_delta):
        return BAD_NUMBER
    if record.offset_delta < 0 or record.offset_delta > batch.last_offset_delta:
        return BAD_OFFSET
    status = read_field(&position, end, &record.key_length)
    if status != DONE:
        return status
    record.key = position - (record.key_length if record.key_length > 0 else 0)
    status = read_field(&position, end, &record.value_length)
    if status != DONE:
        return status
    record.headers = position
    status = read_headers(&position, end)
    if status != DONE:
        return status
    at[0] = end
    return DONE if position == end else BAD_LENGTH


cdef inline Status check_count(const Batch* batch) noexcept nogil:
    if <int64_t>batch.record_count * MIN_RECORD_SIZE > batch.end - batch.records:
        return BAD_COUNT
    return DONE


cdef Status read_batch(const uint8_t* at, const uint8_t* end, Batch* batch) noexcept nogil:
    """The batch at `at`; FULL if its end is missing, OPAQUE if it cannot be walked as it stands."""
    cdef int32_t length
    if end - at < HEADER_SIZE:
        return FULL
    length = load_int32(at + 8)
    if length < HEADER_SIZE - 12 or at[16] != 2:
        return BAD_HEADER
    if length > end - at - 12:
        return FULL
    batch.size = length + 12
    batch.records = at + HEADER_SIZE
    batch.end = at + batch.size
    batch.base_offset = load_int64(at)
    batch.attributes = <int16_t>((<int16_t>at[21] << 8) | at[22])
    batch.last_offset_delta = load_int32(at + 23)
    batch.base_timestamp = load_int64(at + 27)
    batch.max_timestamp = load_int64(at + 35)
    batch.producer_id = load_int64(at + 43)
    batch.record_count = load_int32(at + 57)
    if batch.last_offset_delta < 0 or batch.record_count < 0:
        return BAD_HEADER
    if <uint32_t>load_int32(at + 17) != crc32c(at + ATTRIBUTES_AT, batch.size - ATTRIBUTES_AT):
        return BAD_CRC
    if batch.attributes & (COMPRESSION_MASK | TRANSACTIONAL | CONTROL):
        return OPAQUE
    return check_count(batch)


# Beginning and failing, with the GIL


cdef int open_section(Py_buffer* view, Py_ssize_t start, Py_ssize_t end, header,
                      Batch* batch) except -1:
    if start < 0 or end < start or end > view.len:
        raise CorruptBatch(f"records at {start} to {end} lie outside a buffer of {view.len} bytes")
    batch.records = <const uint8_t*>view.buf + start
    batch.end = <const uint8_t*>view.buf + end
    batch.size = 0
    if not isinstance(header, tuple) or len(header) < 13:
        raise TypeError("the header must be a BatchHeader")
    fields = <tuple>header
    batch.base_offset = fields[0]
    batch.attributes = fields[5]
    batch.last_offset_delta = fields[6]
    batch.base_timestamp = fields[7]
    batch.max_timestamp = fields[8]
    batch.producer_id = fields[9]
    batch.record_count = fields[12]
    return 0


cdef object corrupt(Status status, base_offset):
    if status == NO_MEMORY:
        return MemoryError()
    return CorruptBatch(f"batch with base offset {base_offset}: {_REASONS[status]}")
