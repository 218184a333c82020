# The bytes of a key between two scans; _matcher.pyx has the format.

cdef class Reader:
    """Reads the bytes of one key after the other: those of key `i` are `data[bounds[i]:bounds[i +
    1]]`, or none. Never trusts them: every read is checked against their end."""

    cdef const uint8_t[::1] data
    cdef const int32_t[::1] bounds
    cdef Py_ssize_t at, end

    def __cinit__(self, data, bounds):
        self.data = data
        self.bounds = bounds

    cdef bint open(self, Py_ssize_t key) except -1:
        """Whether the key has any."""
        self.at = self.bounds[key]
        self.end = self.bounds[key + 1]
        if self.at == self.end:
            return False
        if not 0 <= self.at < self.end <= self.data.shape[0]:
            raise ValueError("the state of a pattern is not where it should be")
        if self.data[self.at] != STATE_VERSION:
            raise ValueError("the state of a pattern is of another version")
        self.at += 1
        return True

    cdef Py_ssize_t left(self) noexcept:
        return self.end - self.at

    cdef int64_t number(self) except? -7:
        cdef uint64_t found = 0
        cdef int shift = 0
        cdef uint8_t byte = 0x80
        while byte & 0x80:
            if self.at >= self.end or shift > 63:
                raise ValueError("the state of a pattern is too short")
            byte = self.data[self.at]
            self.at += 1
            found |= <uint64_t>(byte & 0x7F) << shift
            shift += 7
        return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)

    cdef words(self, int64_t* to, int count):
        if self.left() < 8 * count:
            raise ValueError("the state of a pattern is too short")
        if count:
            memcpy(to, &self.data[self.at], 8 * count)
        self.at += 8 * count


cdef class Writer:
    """Writes the bytes of one key after the other."""

    cdef uint8_t* data
    cdef Py_ssize_t size, capacity

    def __cinit__(self):
        self.capacity = 256
        self.data = <uint8_t*>resized(NULL, self.capacity)

    def __dealloc__(self):
        free(self.data)

    cdef void begin(self) noexcept:
        """The next key."""
        self.reserve(1)
        self.data[self.size] = STATE_VERSION
        self.size += 1

    cdef void reserve(self, Py_ssize_t more) noexcept:
        if self.size + more > self.capacity:
            self.capacity = 2 * (self.size + more)
            self.data = <uint8_t*>resized(self.data, self.capacity)

    cdef void number(self, int64_t value) noexcept:
        cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
        self.reserve(10)
        while rest >= 0x80:
            self.data[self.size] = <uint8_t>(rest & 0x7F) | 0x80
            self.size += 1
            rest >>= 7
        self.data[self.size] = <uint8_t>rest
        self.size += 1

    cdef void words(self, const int64_t* values, int count) noexcept:
        self.reserve(8 * count)
        memcpy(self.data + self.size, values, 8 * count)
        self.size += 8 * count

    cdef int32_t written(self) except -1:
        """The end of what is written."""
        if self.size > OFFSET_MAX:
            raise OverflowError(
                "the unfinished matches of a bucket of keys need more than 2 GiB in one batch: "
                "give the pattern a shorter time, or more buckets and a new checkpoint"
            )
        return <int32_t>self.size

    cdef taken(self):
        return PyBytes_FromStringAndSize(<char*>self.data, self.size)


def open_since(data, bounds, int64_t closed):
    """Of each key, the time of the first undecided row, or `closed` if all are decided."""
    cdef Py_ssize_t key
    cdef Reader reader = Reader(data, bounds)
    cdef int at
    found = np.full(len(bounds) - 1, closed, np.int64)
    cdef int64_t[::1] since = found
    for key in range(since.shape[0]):
        if not reader.open(key):
            continue
        for at in range(4):
            reader.number()
        if reader.number():
            reader.number()
            since[key] = reader.number()
    return found
