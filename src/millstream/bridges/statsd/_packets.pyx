# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Packets of a UDP socket in a ring, and the samples of lines that recur.

One thread is in `PacketRing.fill` and reads the socket without the GIL: neither the interpreter nor
the producer delays it. Another takes the packets out by `drain`. While the ring is full, the socket
is not read: then the kernel drops packets and counts them, so there is one number for all that is
lost before parsing.

Most lines differ from one before in their value only. `drain` knows what such a line belongs to,
and adds the value without a Python object for it; all other lines are parsed in Python.

Layout of the ring: size (4 bytes), packet, padding to 4 bytes. `WRAP` in place of a size: go on at
the beginning. `head` and `tail` only grow; each is written by one thread.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy

import os

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <time.h>

    #define MS_BATCH 64
    #define MS_PACKET 65536

    static uint64_t ms_load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static void ms_store(uint64_t *at, uint64_t to) { __atomic_store_n(at, to, __ATOMIC_RELEASE); }
    static int ms_flag(const int *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static void ms_set_flag(int *at) { __atomic_store_n(at, 1, __ATOMIC_RELEASE); }

    static void ms_pause(long microseconds) {
        struct timespec span = {0, microseconds * 1000};
        nanosleep(&span, NULL);
    }

    /* Waits for one packet, and takes those that are there: how many, or -errno. */
    #ifdef __linux__
    static int ms_receive(int fd, char *buffer, uint32_t *sizes) {
        struct mmsghdr messages[MS_BATCH];
        struct iovec parts[MS_BATCH];
        int found;
        memset(messages, 0, sizeof messages);
        for (int i = 0; i < MS_BATCH; i++) {
            parts[i].iov_base = buffer + (size_t)i * MS_PACKET;
            parts[i].iov_len = MS_PACKET;
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        found = recvmmsg(fd, messages, MS_BATCH, MSG_WAITFORONE, NULL);
        if (found < 0) return -errno;
        for (int i = 0; i < found; i++) sizes[i] = messages[i].msg_len;
        return found;
    }
    #else
    static int ms_receive(int fd, char *buffer, uint32_t *sizes) {
        for (int i = 0; i < MS_BATCH; i++) {
            ssize_t size = recv(fd, buffer + (size_t)i * MS_PACKET, MS_PACKET,
                                i ? MSG_DONTWAIT : 0);
            if (size < 0) return i ? i : -errno;
            sizes[i] = (uint32_t)size;
        }
        return MS_BATCH;
    }
    #endif
    static int ms_is_quiet(int error) {
        return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
    }
    """
    int BATCH "MS_BATCH"
    int PACKET_BYTES "MS_PACKET"
    uint64_t load "ms_load"(const uint64_t*) nogil
    void store "ms_store"(uint64_t*, uint64_t) nogil
    int is_set "ms_flag"(const int*) nogil
    void set_flag "ms_set_flag"(int*) nogil
    void pause "ms_pause"(long) nogil
    int receive "ms_receive"(int, char*, uint32_t*) nogil
    int is_quiet "ms_is_quiet"(int) nogil

cdef uint32_t WRAP = 0xFFFFFFFF
cdef char ZERO = b"0"
cdef char NINE = b"9"
cdef char POINT = b"."
cdef int TEMPLATE_BYTES_MAX = 512
cdef int DIGITS_MAX = 15        # a double has them all, so the result is that of float()
cdef long GATHER_MICROSECONDS = 200   # packets that come meanwhile cost no wake-up each
cdef long FULL_MICROSECONDS = 500
cdef double[16] TENS
TENS[:] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]


cdef class Cell:
    """The values of one series in an interval."""

    cdef readonly str kind
    cdef readonly double weight     # how many values, each divided by its rate
    cdef readonly double total      # their sum, with their weights
    cdef readonly double least
    cdef readonly double most
    cdef readonly double last
    cdef readonly bint is_changed

    def __init__(self, str kind):
        self.kind = kind

    def add(self, double value, double weight):
        self._add(value, weight)

    cdef void _add(self, double value, double weight) noexcept:
        if not self.is_changed:
            self.is_changed = True
            self.least = self.most = value
            self.weight = self.total = 0.0
        self.last = value
        self.weight += weight
        self.total += value * weight
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value

    def begin(self):
        """Another interval; a gauge keeps its value."""
        self.is_changed = False


cdef class _Template:
    """What lines that differ in their value only belong to."""

    cdef Cell cell
    cdef double weight


cdef class Recurring:
    """Lines that were parsed before, but for their values."""

    cdef dict _templates
    cdef Py_ssize_t _number_max

    def __init__(self, Py_ssize_t number_max):
        self._templates = {}
        self._number_max = number_max

    def __len__(self):
        return len(self._templates)

    def remember(self, bytes line, Cell cell, double rate):
        """Lines like this one belong to the cell."""
        cdef char[512] room
        cdef const char* start
        cdef Py_ssize_t digits
        cdef Py_ssize_t size = _template_of(line, len(line), room, &start, &digits)
        if size < 0:
            return
        if len(self._templates) >= self._number_max:
            self._templates.clear()
        cdef _Template made = _Template.__new__(_Template)
        made.cell = cell
        made.weight = 1.0 / rate
        self._templates[PyBytes_FromStringAndSize(room, size)] = made

    def forget(self):
        self._templates.clear()

    def take(self, bytes line):
        """Add the value of a line, if a line like it was parsed before."""
        return self._take(line, len(line))

    cdef bint _take(self, const char* line, Py_ssize_t size):
        cdef char[512] room
        cdef const char* start
        cdef Py_ssize_t digits
        cdef double value
        cdef Py_ssize_t found = _template_of(line, size, room, &start, &digits)
        if found < 0 or not _number_of(start, digits, &value):
            return False
        cdef void* known = PyDict_GetItem(
            self._templates, PyBytes_FromStringAndSize(room, found)
        )
        if known == NULL:
            return False
        (<_Template>known).cell._add(value, (<_Template>known).weight)
        return True


cdef Py_ssize_t _template_of(
    const char* line, Py_ssize_t size, char* room, const char** value, Py_ssize_t* value_size
) noexcept:
    """The line without its value and the colon before it, or -1 if it is too long or has none."""
    cdef const char* colon = <const char*>memchr(line, b":", size)
    if colon == NULL:
        return -1
    cdef Py_ssize_t name = colon - line
    cdef const char* bar = <const char*>memchr(line, b"|", size)
    if bar == NULL or bar < colon or size > TEMPLATE_BYTES_MAX:
        return -1
    value[0] = colon + 1
    value_size[0] = bar - colon - 1
    memcpy(room, line, name)
    memcpy(room + name, bar, line + size - bar)
    return name + (line + size - bar)


cdef bint _number_of(const char* text, Py_ssize_t size, double* value) noexcept:
    """A number of digits with at most one point. A sign, which means a change to a gauge, an
    exponent, and several values are left to Python."""
    cdef uint64_t found = 0
    cdef int digits = 0
    cdef int behind = -1
    cdef Py_ssize_t at
    for at in range(size):
        if ZERO <= text[at] <= NINE:
            found = found * 10 + <uint64_t>(text[at] - ZERO)
            digits += 1
            if digits > DIGITS_MAX:
                return False
            if behind >= 0:
                behind += 1
        elif text[at] == POINT and behind < 0:
            behind = 0
        else:
            return False
    if digits == 0:
        return False
    value[0] = <double>found / TENS[behind if behind > 0 else 0]
    return True


cdef class PacketRing:
    """Packets between the thread that reads the socket and the one that parses."""

    cdef char* _memory
    cdef char* _batch
    cdef uint64_t _size
    cdef uint64_t _head
    cdef uint64_t _tail
    cdef int _is_stopping
    cdef int _is_closed
    cdef int _is_over

    def __cinit__(self, uint64_t size):
        if size < 4 * <uint64_t>PACKET_BYTES or size & (size - 1):
            raise ValueError("the size of a ring is a power of two, and at least four packets")
        self._size = size
        self._memory = <char*>malloc(size)
        self._batch = <char*>malloc(<size_t>BATCH * PACKET_BYTES)
        if self._memory == NULL or self._batch == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self._memory)
        free(self._batch)

    @property
    def is_over(self):
        """Whether `fill` has ended, and all packets were taken."""
        return is_set(&self._is_over) and load(&self._tail) == load(&self._head)

    def stop(self):
        """`fill` ends when the socket has nothing more."""
        set_flag(&self._is_stopping)

    def close(self):
        """`fill` ends at once."""
        set_flag(&self._is_closed)

    def fill(self, int fd):
        """Read the socket until `stop`. The socket blocks, and has a time limit."""
        cdef uint32_t[64] sizes
        cdef int found = 0
        cdef int at
        self._is_over = 0
        with nogil:
            while not is_set(&self._is_closed):
                found = receive(fd, self._batch, sizes)
                if found < 0 and not is_quiet(-found):
                    break
                if found < 0 and is_set(&self._is_stopping):
                    break
                for at in range(found):
                    if not self._put(self._batch + <size_t>at * PACKET_BYTES, sizes[at]):
                        break
                if 0 < found < BATCH:
                    pause(GATHER_MICROSECONDS)
        set_flag(&self._is_over)
        if found < 0 and not is_quiet(-found):
            raise OSError(-found, os.strerror(-found))

    cdef bint _put(self, const char* packet, uint32_t size) noexcept nogil:
        """Waits while the ring is full."""
        cdef uint64_t needed = 4 + ((<uint64_t>size + 3) & ~<uint64_t>3)
        cdef uint64_t at = self._head & (self._size - 1)
        cdef uint64_t skipped = self._size - at if at + needed > self._size else 0
        while self._size - (self._head - load(&self._tail)) < needed + skipped:
            if is_set(&self._is_closed):
                return False
            pause(FULL_MICROSECONDS)
        if skipped:
            memcpy(self._memory + at, &WRAP, 4)
            at = 0
        memcpy(self._memory + at, &size, 4)
        memcpy(self._memory + at + 4, packet, size)
        store(&self._head, self._head + skipped + needed)
        return True

    def drain(self, Recurring recurring, take, Py_ssize_t packets_max):
        """Take packets out, at most so many: how many, and the samples in them. `take` gets each
        line that does not recur, and returns the number of its samples."""
        cdef uint64_t head = load(&self._head)
        cdef uint64_t tail = self._tail
        cdef uint64_t at
        cdef uint32_t size
        cdef Py_ssize_t packets = 0
        cdef Py_ssize_t samples = 0
        try:
            while tail != head and packets < packets_max:
                at = tail & (self._size - 1)
                memcpy(&size, self._memory + at, 4)
                if size == WRAP:
                    tail += self._size - at
                    continue
                tail += 4 + ((<uint64_t>size + 3) & ~<uint64_t>3)
                packets += 1
                samples += _lines(self._memory + at + 4, size, recurring, take)
        finally:
            store(&self._tail, tail)
        return packets, samples


cdef Py_ssize_t _lines(const char* packet, Py_ssize_t size, Recurring recurring, take) except -1:
    cdef const char* end = packet + size
    cdef const char* line_end
    cdef Py_ssize_t length
    cdef Py_ssize_t samples = 0
    while packet < end:
        line_end = <const char*>memchr(packet, b"\n", end - packet)
        length = (line_end if line_end != NULL else end) - packet
        if length:
            if recurring is not None and recurring._take(packet, length):
                samples += 1
            else:
                samples += take(PyBytes_FromStringAndSize(packet, length))
        packet += length + 1
    return samples
