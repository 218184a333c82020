# The bytes of a key between two scans; _matcher.pyx has the format.

@cython.freelist(1)  # one is made for each key, when that of the key before is done
cdef class Reader:
    """Reads the bytes of a key. Never trusts them: every read is checked against their end."""

    cdef bytes state
    cdef const uint8_t* data
    cdef Py_ssize_t size, at

    def __cinit__(self, bytes state not None):
        self.state = state
        self.data = <const uint8_t*>PyBytes_AS_STRING(state)
        self.size = len(state)
        self.at = 1
        if not self.size or self.data[0] != STATE_VERSION:
            raise ValueError("the state of a pattern is of another version")

    cdef Py_ssize_t left(self) noexcept:
        return self.size - self.at

    cdef int64_t number(self) except? -7:
        cdef uint64_t found = 0
        cdef int shift = 0
        cdef uint8_t byte = 0x80
        while byte & 0x80:
            if self.at >= self.size or shift > 63:
                raise ValueError("the state of a pattern is too short")
            byte = self.data[self.at]
            self.at += 1
            found |= <uint64_t>(byte & 0x7F) << shift
            shift += 7
        return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)

    cdef words(self, int64_t* to, int count):
        if self.left() < 8 * count:
            raise ValueError("the state of a pattern is too short")
        memcpy(to, self.data + self.at, 8 * count)
        self.at += 8 * count


cdef class Writer:
    """Writes the bytes of a key."""

    cdef uint8_t* data
    cdef Py_ssize_t size, capacity

    def __cinit__(self):
        self.capacity = 256
        self.data = <uint8_t*>resized(NULL, self.capacity)

    def __dealloc__(self):
        free(self.data)

    cdef void begin(self) noexcept:
        self.data[0] = STATE_VERSION
        self.size = 1

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

    cdef written(self):
        return PyBytes_FromStringAndSize(<char*>self.data, self.size)


def open_since(states, int64_t closed):
    """Of each key, the time of the first undecided row, or `closed` if all are decided; `states`
    are the bytes of each key or None."""
    cdef Py_ssize_t key
    cdef Reader reader
    cdef int at
    found = np.full(len(states), closed, np.int64)
    cdef int64_t[::1] since = found
    for key, state in enumerate(states):
        if state is None:
            continue
        reader = Reader(state)
        for at in range(4):
            reader.number()
        if reader.number():
            reader.number()
            since[key] = reader.number()
    return found
