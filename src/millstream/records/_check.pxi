# Checks of what a producer sent. Part of _walk.pyx and of storage/_core.pyx, after _read.pxi.

cdef struct Problem:
    int32_t index
    int32_t kind


cdef struct KeyAndHeaders:      # of a record
    const uint8_t* key
    const uint8_t* headers      # at their count
    const uint8_t* end
    int64_t key_length          # -1: null


cdef inline KeyAndHeaders key_and_headers(const Record* record) noexcept nogil:
    cdef KeyAndHeaders found
    found.key = record.key
    found.key_length = record.key_length
    found.headers = record.headers
    found.end = record.end
    return found


cdef Status check(const Batch* batch, int64_t earliest, int64_t latest, bint keys_required,
                  int64_t* max_timestamp, Problem* problems, int* problem_count,
                  KeyAndHeaders* found) noexcept nogil:
    """`found` receives those of all records, unless it is NULL."""
    cdef const uint8_t* at = batch.records
    cdef Record record
    cdef int32_t index
    cdef int kind
    cdef Status status = check_count(batch)
    max_timestamp[0] = NO_TIMESTAMP
    problem_count[0] = 0
    if status != DONE:
        return status
    for index in range(batch.record_count):
        status = read_record(&at, batch, &record)
        if status != DONE:
            return status
        if record.offset_delta != index:
            return BAD_OFFSET
        kind = 0
        if keys_required and record.key_length < 0:
            kind = PROBLEM_NULL_KEY
        elif (record.timestamp != NO_TIMESTAMP
              and (record.timestamp < earliest or record.timestamp > latest)):
            kind = PROBLEM_TIMESTAMP
        if kind != 0 and problem_count[0] < MAX_PROBLEMS:
            problems[problem_count[0]].index = index
            problems[problem_count[0]].kind = kind
            problem_count[0] += 1
        if found != NULL:
            found[index] = key_and_headers(&record)
        if record.timestamp > max_timestamp[0]:
            max_timestamp[0] = record.timestamp
    return DONE if at == batch.end else BAD_TAIL


cdef bint open_small(const uint8_t* at, Py_ssize_t size, Batch* batch) noexcept nogil:
    """Whether the bytes may be one uncompressed batch of at most SMALL_BATCH bytes."""
    if (size < HEADER_SIZE or size > SMALL_BATCH or at[16] != MAGIC_V2
            or load_int64(at) != 0 or <int64_t>load_int32(at + 8) + 12 != size
            or at[22] & (COMPRESSION_MASK | LOG_APPEND_TIME | CONTROL)):
        return False
    batch.records = at + HEADER_SIZE
    batch.end = at + size
    batch.size = <int32_t>size
    batch.base_offset = 0
    batch.attributes = <int16_t>((at[21] << 8) | at[22])
    batch.last_offset_delta = load_int32(at + 23)
    batch.base_timestamp = load_int64(at + 27)
    batch.max_timestamp = load_int64(at + 35)
    batch.producer_id = load_int64(at + 43)
    batch.record_count = load_int32(at + 57)
    return (batch.record_count > 0 and batch.record_count - 1 == batch.last_offset_delta
            and check_count(batch) == DONE
            and (batch.producer_id < 0 or load_int32(at + 53) >= 0))


cdef bint check_small(const Batch* batch, int64_t now_ms, int64_t before_max_ms,
                      int64_t after_max_ms, bint keys_required,
                      KeyAndHeaders* found) noexcept nogil:
    """Whether a batch that `open_small` has accepted is sound: its CRC and every record, with
    timestamps close enough to `now_ms`."""
    cdef Problem problems[MAX_PROBLEMS]
    cdef int problem_count
    cdef int64_t max_timestamp, earliest, latest
    cdef const uint8_t* at = batch.records - HEADER_SIZE
    if now_ms < 0 or before_max_ms < 0 or after_max_ms < 0:
        return False
    earliest = now_ms - before_max_ms
    latest = now_ms + after_max_ms if after_max_ms <= INT64_MAX - now_ms else INT64_MAX
    return (<uint32_t>load_int32(at + 17) == crc32c(at + ATTRIBUTES_AT, batch.size - ATTRIBUTES_AT)
            and check(batch, earliest, latest, keys_required,
                      &max_timestamp, problems, &problem_count, found) == DONE
            and problem_count == 0 and max_timestamp == batch.max_timestamp)


cdef tuple header_fields(const uint8_t* at, const Batch* batch):
    """The fields of a `BatchHeader`, of a batch that `check_small` has accepted."""
    return (0, batch.size - 12, load_int32(at + 12), MAGIC_V2, <uint32_t>load_int32(at + 17),
            batch.attributes, batch.last_offset_delta, batch.base_timestamp,
            batch.max_timestamp, batch.producer_id, <int16_t>((at[51] << 8) | at[52]),
            load_int32(at + 53), batch.record_count)
