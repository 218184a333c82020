# Buffers that compiled code fills and hands over to Python without a copy.

cdef class Memory:
    """Bytes that compiled code has filled: read-only to everybody else, freed with the last view."""

    cdef uint8_t* start
    cdef readonly Py_ssize_t size

    def __cinit__(self):
        self.start = NULL
        self.size = 0

    def __dealloc__(self):
        free(self.start)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, 1, flags)


cdef Memory own(uint8_t* start, Py_ssize_t size):
    """`start`, from malloc, in the hands of Python; what was not used of it goes back."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef uint8_t* smaller = <uint8_t*>realloc(start, max(size, 1))
    memory.start = smaller if smaller != NULL else start
    memory.size = size
    return memory
