# The columns of records under construction: keys, values, timestamps, headers.

cdef enum:
    INT32_MAX = 0x7FFFFFFF

cdef struct Values:             # an Arrow array of binary values
    Out data
    int32_t* ends               # [i] and [i + 1] bound value i
    uint8_t* validity           # NULL as long as nothing is null
    int64_t count
    int64_t capacity
    int64_t null_count

cdef struct Mark:               # where a message started, to take back its part
    int64_t count
    int64_t key_bytes
    int64_t value_bytes
    int64_t null_keys
    int64_t null_values
    int64_t headers
    int64_t header_name_bytes
    int64_t header_value_bytes

cdef const char* NEW_KEY = b"__debezium.newkey"
cdef const char* OLD_KEY = b"__debezium.oldkey"


cdef bint grow_values(Values* values) noexcept nogil:
    cdef int64_t capacity = max(2 * values.capacity, 1024)
    cdef void* larger = realloc(values.ends, (capacity + 1) * sizeof(int32_t))
    if larger == NULL:
        return False
    values.ends = <int32_t*>larger
    values.ends[0] = 0
    if values.validity != NULL and not grow_validity(values, capacity):
        return False
    values.capacity = capacity
    return True


cdef bint grow_validity(Values* values, int64_t capacity) noexcept nogil:
    cdef int64_t before = 0 if values.validity == NULL else (values.capacity + 7) // 8
    cdef uint8_t* larger = <uint8_t*>realloc(values.validity, (capacity + 7) // 8)
    if larger == NULL:
        return False
    values.validity = larger
    memset(larger + before, 0xFF, (capacity + 7) // 8 - before)
    return True


cdef Status end_value(Values* values, bint is_present) noexcept nogil:
    """What was added to the data since the last value is one more value, or null."""
    cdef int64_t index = values.count
    if values.data.size > INT32_MAX:
        return TOO_LARGE
    if index == values.capacity and not grow_values(values):
        return NO_MEMORY
    if not is_present:
        if values.validity == NULL and not grow_validity(values, values.capacity):
            return NO_MEMORY
        values.validity[index >> 3] &= ~(1 << (index & 7))
        values.null_count += 1
    values.ends[index + 1] = <int32_t>values.data.size
    values.count = index + 1
    return DONE


cdef void cut_values(Values* values, int64_t count, int64_t size, int64_t nulls) noexcept nogil:
    cdef int64_t i
    if values.validity != NULL:
        for i in range(count, values.count):
            values.validity[i >> 3] |= 1 << (i & 7)
    values.count = count
    values.data.size = size
    values.null_count = nulls


cdef void free_values(Values* values) noexcept nogil:
    free(values.data.start)
    free(values.ends)
    free(values.validity)
    memset(values, 0, sizeof(Values))


cdef tuple take_values(Values* values):
    """(null count, validity or None, offsets, data), leaving it empty."""
    cdef int64_t count = values.count
    if values.ends == NULL and not grow_values(values):
        raise MemoryError()
    validity = None
    if values.null_count:
        validity = own(values.validity, (count + 7) // 8)
    else:
        free(values.validity)
    values.validity = NULL
    taken = (
        values.null_count,
        validity,
        own(<uint8_t*>values.ends, (count + 1) * sizeof(int32_t)),
        own(values.data.start, values.data.size),
    )
    memset(values, 0, sizeof(Values))
    return taken


cdef class ChangeBuffer:
    """Records under construction, as columns."""

    cdef Values _keys
    cdef Values _values
    cdef Values _header_names
    cdef Values _header_values
    cdef int64_t* _timestamps
    cdef int32_t* _header_ends          # NULL as long as no record has a header
    cdef int64_t _capacity

    def __dealloc__(self):
        free_values(&self._keys)
        free_values(&self._values)
        free_values(&self._header_names)
        free_values(&self._header_values)
        free(self._timestamps)
        free(self._header_ends)

    def __len__(self):
        return self._values.count

    @property
    def size_bytes(self):
        return self._keys.data.size + self._values.data.size + self._header_values.data.size

    def append(self, key, value, int64_t timestamp_ms, headers=()):
        """Add a record: bytes, or None for null."""
        cdef Mark mark = self.mark()
        cdef Status status = DONE
        if key is not None:
            status = put_bytes(&self._keys.data, key)
        if value is not None and status == DONE:
            status = put_bytes(&self._values.data, value)
        if status == DONE:
            status = self.finish(key is not None, value is not None, timestamp_ms, NULL, NULL)
        for name, content in headers:
            if status == DONE:
                status = self._add_header(name.encode(), content)
        if status != DONE:
            self.reset(mark)
            raise MemoryError() if status == NO_MEMORY else OverflowError(MESSAGES[status])

    cdef Status _add_header(self, bytes name, bytes content):
        """A header for the last record."""
        cdef Status status = put_bytes(&self._header_names.data, name)
        if status == DONE:
            status = put_bytes(&self._header_values.data, content)
        return self._end_header() if status == DONE else status

    cdef Status _end_header(self):
        cdef int64_t i
        cdef Status status = end_value(&self._header_names, True)
        if status == DONE:
            status = end_value(&self._header_values, True)
        if status != DONE:
            return status
        if self._header_ends == NULL:
            self._header_ends = <int32_t*>calloc(self._capacity + 1, sizeof(int32_t))
            if self._header_ends == NULL:
                return NO_MEMORY
        self._header_ends[self._values.count] = <int32_t>self._header_names.count
        return DONE

    cdef Status finish(self, bint has_key, bint has_value, int64_t timestamp_ms,
                       const char* header, const Out* header_value):
        """The key and the value that were written make one more record."""
        cdef int64_t index = self._values.count
        cdef Status status = end_value(&self._keys, has_key)
        if status == DONE:
            status = end_value(&self._values, has_value)
        if status == DONE and index == self._capacity:
            status = self._grow()
        if status != DONE:
            return status
        self._timestamps[index] = timestamp_ms
        if self._header_ends != NULL:
            self._header_ends[index + 1] = <int32_t>self._header_names.count
        if header == NULL:
            return DONE
        status = put(&self._header_names.data, header, len(header))
        if status == DONE:
            status = put(&self._header_values.data, header_value.start, header_value.size)
        return self._end_header() if status == DONE else status

    cdef Status _grow(self):
        cdef int64_t capacity = max(2 * self._capacity, 1024)
        cdef void* larger = realloc(self._timestamps, capacity * sizeof(int64_t))
        if larger == NULL:
            return NO_MEMORY
        self._timestamps = <int64_t*>larger
        if self._header_ends != NULL:
            larger = realloc(self._header_ends, (capacity + 1) * sizeof(int32_t))
            if larger == NULL:
                return NO_MEMORY
            self._header_ends = <int32_t*>larger
        self._capacity = capacity
        return DONE

    cdef Mark mark(self):
        cdef Mark mark
        mark.count = self._values.count
        mark.key_bytes = self._keys.data.size
        mark.value_bytes = self._values.data.size
        mark.null_keys = self._keys.null_count
        mark.null_values = self._values.null_count
        mark.headers = self._header_names.count
        mark.header_name_bytes = self._header_names.data.size
        mark.header_value_bytes = self._header_values.data.size
        return mark

    cdef void reset(self, Mark mark):
        """Forget the records since `mark`."""
        cut_values(&self._keys, mark.count, mark.key_bytes, mark.null_keys)
        cut_values(&self._values, mark.count, mark.value_bytes, mark.null_values)
        cut_values(&self._header_names, mark.headers, mark.header_name_bytes, 0)
        cut_values(&self._header_values, mark.headers, mark.header_value_bytes, 0)

    def clear(self):
        """Forget all records."""
        cdef Mark mark
        memset(&mark, 0, sizeof(Mark))
        self.reset(mark)
        free(self._header_ends)
        self._header_ends = NULL

    def take(self):
        """(count, timestamps, keys, values, headers or None), leaving the buffer empty.

        Keys and values are (null count, validity or None, offsets, data); headers are (list
        offsets, names, values).
        """
        cdef int64_t count = self._values.count
        headers = None
        if self._header_ends != NULL:
            lists = own(<uint8_t*>self._header_ends, (count + 1) * sizeof(int32_t))
            self._header_ends = NULL
            headers = (lists, take_values(&self._header_names), take_values(&self._header_values))
        timestamps = own(<uint8_t*>self._timestamps, count * sizeof(int64_t))
        self._timestamps = NULL
        self._capacity = 0
        return count, timestamps, take_values(&self._keys), take_values(&self._values), headers
