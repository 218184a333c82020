# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled code between record batches and Arrow's columns, both ways.

Reading, `ColumnBuilder` lays the records of many batches into the buffers of Arrow arrays: int64
offsets and timestamps, and for keys, values and headers a validity bitmap, int32 offsets and the
bytes. Writing, `encode_rows` turns rows of such arrays into the records of a batch. Either way a
record costs a copy of its bytes and some 20 ns, and never becomes a Python object.

The buffers are `Memory`, which pyarrow and numpy use without a copy. As in
_walk.pyx no byte that came from outside is trusted: what does not fit raises `CorruptBatch`.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer, Py_buffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from millstream.errors import CorruptBatch

include "_memory.pxi"
include "_read.pxi"

cdef enum:
    INT32_MAX = 0x7FFFFFFF
    MAX_VARINT32_BYTES = 5
    RECORD_OVERHEAD_BYTES = 41  # length, attributes, timestamp, offset, key and value lengths, headers


# Reading: columns that grow


cdef struct Binary:             # an Arrow array of binary values under construction
    uint8_t* validity           # NULL as long as nothing is null
    int32_t* offsets
    uint8_t* data
    int64_t count
    int64_t capacity            # in values
    int64_t data_capacity       # in bytes
    int64_t null_count


cdef bint open_binary(Binary* column, int64_t capacity, int64_t data_capacity) noexcept nogil:
    memset(column, 0, sizeof(Binary))
    column.capacity = max(capacity, 1)
    column.data_capacity = max(data_capacity, 1)
    column.offsets = <int32_t*>malloc((column.capacity + 1) * sizeof(int32_t))
    column.data = <uint8_t*>malloc(column.data_capacity)
    if column.offsets == NULL or column.data == NULL:
        return False
    column.offsets[0] = 0
    return True


cdef void close_binary(Binary* column) noexcept nogil:
    free(column.validity)
    free(column.offsets)
    free(column.data)
    memset(column, 0, sizeof(Binary))


cdef bint grow_binary(Binary* column, int64_t values, int64_t data_bytes) noexcept nogil:
    """Make room for so many more values and bytes."""
    cdef int64_t capacity = column.capacity
    cdef int64_t before
    cdef void* larger
    if column.count + values > capacity:
        capacity = max(2 * capacity, column.count + values)
        larger = realloc(column.offsets, (capacity + 1) * sizeof(int32_t))
        if larger == NULL:
            return False
        column.offsets = <int32_t*>larger
        if column.validity != NULL:
            before = (column.capacity + 7) // 8
            larger = realloc(column.validity, (capacity + 7) // 8)
            if larger == NULL:
                return False
            column.validity = <uint8_t*>larger
            memset(column.validity + before, 0xFF, (capacity + 7) // 8 - before)
        column.capacity = capacity
    if column.offsets[column.count] + data_bytes > column.data_capacity:
        capacity = max(2 * column.data_capacity, column.offsets[column.count] + data_bytes)
        larger = realloc(column.data, capacity)
        if larger == NULL:
            return False
        column.data = <uint8_t*>larger
        column.data_capacity = capacity
    return True


cdef inline Status append_binary(Binary* column, const uint8_t* start, int64_t length) noexcept nogil:
    """One more value, null where `length` is negative. The caller has made room."""
    cdef int64_t index = column.count
    cdef int32_t position = column.offsets[index]
    if length < 0:
        if column.validity == NULL:
            column.validity = <uint8_t*>malloc((column.capacity + 7) // 8)
            if column.validity == NULL:
                return NO_MEMORY
            memset(column.validity, 0xFF, (column.capacity + 7) // 8)
        column.validity[index >> 3] &= ~(1 << (index & 7))
        column.null_count += 1
        length = 0
    elif length > 0:
        memcpy(column.data + position, start, length)
    column.offsets[index + 1] = position + <int32_t>length
    column.count = index + 1
    return DONE


cdef tuple take_binary(Binary* column):
    """(null count, validity or None, offsets, data), leaving the column empty."""
    cdef int64_t count = column.count
    validity = None
    if column.validity != NULL:
        validity = own(column.validity, (count + 7) // 8)
    data_bytes = column.offsets[count]
    offsets = own(<uint8_t*>column.offsets, (count + 1) * sizeof(int32_t))
    data = own(column.data, data_bytes)
    null_count = column.null_count
    memset(column, 0, sizeof(Binary))
    return null_count, validity, offsets, data


cdef class ColumnBuilder:
    """Collects the records of batches, in order, into columns."""

    cdef int64_t* _offsets
    cdef int64_t* _timestamps
    cdef uint8_t* _timestamp_types
    cdef int32_t* _header_counts    # the offsets of the list array
    cdef Binary _keys
    cdef Binary _values
    cdef Binary _header_names
    cdef Binary _header_values
    cdef int64_t _capacity
    cdef int64_t _count
    cdef bint _with_headers

    def __cinit__(self, int64_t records_max, int64_t bytes_max, bint with_headers=False):
        """Room for so many records whose keys and values have so many bytes in all."""
        if records_max < 0 or not 0 <= bytes_max <= INT32_MAX:
            raise ValueError(f"columns of {records_max} records and {bytes_max} bytes")
        self._capacity = max(records_max, 1)
        self._with_headers = with_headers
        self._offsets = <int64_t*>malloc(self._capacity * sizeof(int64_t))
        self._timestamps = <int64_t*>malloc(self._capacity * sizeof(int64_t))
        self._timestamp_types = <uint8_t*>malloc(self._capacity)
        if (self._offsets == NULL or self._timestamps == NULL or self._timestamp_types == NULL
                or not open_binary(&self._keys, self._capacity, bytes_max)
                or not open_binary(&self._values, self._capacity, bytes_max)):
            raise MemoryError()
        if with_headers:
            self._header_counts = <int32_t*>calloc(self._capacity + 1, sizeof(int32_t))
            if (self._header_counts == NULL
                    or not open_binary(&self._header_names, self._capacity, 0)
                    or not open_binary(&self._header_values, self._capacity, 0)):
                raise MemoryError()

    def __dealloc__(self):
        free(self._offsets)
        free(self._timestamps)
        free(self._timestamp_types)
        free(self._header_counts)
        close_binary(&self._keys)
        close_binary(&self._values)
        close_binary(&self._header_names)
        close_binary(&self._header_values)

    def __len__(self):
        return self._count

    def add(self, buffer, Py_ssize_t start, Py_ssize_t end, header,
            int64_t first_offset, int64_t end_offset):
        """Add the uncompressed records in buffer[start:end] whose offset is in the range asked for.

        Raises `CorruptBatch` unless they match the header; the builder is unusable then.
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef Status status
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if self._offsets == NULL:
                raise RuntimeError("the columns were taken already")
            open_section(&view, start, end, header, &batch)
            if check_count(&batch) != DONE:
                raise corrupt(BAD_COUNT, header[0])
            if (self._count + batch.record_count > self._capacity
                    or self._keys.offsets[self._count] + (end - start) > self._keys.data_capacity
                    or self._values.offsets[self._count] + (end - start)
                    > self._values.data_capacity):
                raise ValueError(f"the columns have no room for {batch.record_count} more records")
            with nogil:
                status = self._walk(&batch, first_offset, end_offset)
        finally:
            PyBuffer_Release(&view)
        if status != DONE:
            raise corrupt(status, header[0])

    cdef Status _walk(self, const Batch* batch, int64_t first_offset,
                      int64_t end_offset) noexcept nogil:
        cdef const uint8_t* at = batch.records
        cdef const uint8_t* value
        cdef Record record
        cdef int64_t offset, count, length
        cdef int32_t index
        cdef uint8_t timestamp_type = 1 if batch.attributes & LOG_APPEND_TIME else 0
        cdef Status status
        for index in range(batch.record_count):
            status = read_record(&at, batch, &record)
            if status != DONE:
                return status
            offset = batch.base_offset + record.offset_delta
            if offset < first_offset or offset >= end_offset:
                continue
            count = self._count
            self._offsets[count] = offset
            self._timestamps[count] = record.timestamp
            self._timestamp_types[count] = timestamp_type
            status = append_binary(&self._keys, record.key, record.key_length)
            if status != DONE:
                return status
            value = record.key + (record.key_length if record.key_length > 0 else 0)
            read_varint(&value, record.end, &length)    # its length, known already
            status = append_binary(&self._values, value, record.value_length)
            if status != DONE:
                return status
            if self._with_headers:
                if record.value_length > 0:
                    value += record.value_length
                status = self._add_headers(value, record.end)
                if status != DONE:
                    return status
            self._count += 1
        return DONE if at == batch.end else BAD_TAIL

    cdef Status _add_headers(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef int64_t count, length, left
        cdef const uint8_t* start
        cdef Status status
        read_varint(&at, end, &count)                   # read_record has checked all of this
        if self._header_names.count + count > INT32_MAX:
            return NO_MEMORY
        if (not grow_binary(&self._header_names, count, end - at)
                or not grow_binary(&self._header_values, count, end - at)):
            return NO_MEMORY
        for left in range(count):
            read_field(&at, end, &length)
            status = append_binary(&self._header_names, at - length, length)
            if status == DONE:
                read_field(&at, end, &length)
                start = at - (length if length > 0 else 0)
                status = append_binary(&self._header_values, start, length)
            if status != DONE:
                return status
        self._header_counts[self._count + 1] = <int32_t>self._header_names.count
        return DONE

    def take(self):
        """(count, offsets, timestamps, timestamp types, keys, values, headers or None).

        Keys and values are (null count, validity or None, offsets, data); headers are (list
        offsets, names, values). The builder is empty and closed afterwards.
        """
        cdef int64_t count = self._count
        if self._offsets == NULL:
            raise RuntimeError("the columns were taken already")
        offsets = own(<uint8_t*>self._offsets, count * sizeof(int64_t))
        self._offsets = NULL
        timestamps = own(<uint8_t*>self._timestamps, count * sizeof(int64_t))
        self._timestamps = NULL
        timestamp_types = own(self._timestamp_types, count)
        self._timestamp_types = NULL
        headers = None
        if self._with_headers:
            lists = own(<uint8_t*>self._header_counts, (count + 1) * sizeof(int32_t))
            self._header_counts = NULL
            headers = (lists, take_binary(&self._header_names), take_binary(&self._header_values))
        keys, values = take_binary(&self._keys), take_binary(&self._values)
        return count, offsets, timestamps, timestamp_types, keys, values, headers


# Writing: rows of columns as the records of a batch


cdef class BinaryColumn:
    """An Arrow array of binary or string values (int32 offsets), to be read from."""

    cdef Py_buffer _validity
    cdef Py_buffer _offsets
    cdef Py_buffer _data
    cdef const uint8_t* bits        # NULL where nothing is null
    cdef const int32_t* ends        # [i] and [i + 1] bound value i
    cdef const uint8_t* bytes
    cdef int64_t bit_offset
    cdef readonly int64_t length

    def __cinit__(self, int64_t length, int64_t offset, validity, offsets, data):
        """`length` values from `offset` on, in the three buffers of the array."""
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        if data is not None:
            PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
        if validity is not None:
            PyObject_GetBuffer(validity, &self._validity, PyBUF_SIMPLE)
            self.bits = <const uint8_t*>self._validity.buf
        if (length < 0 or offset < 0
                or self._offsets.len < (offset + length + 1) * <int64_t>sizeof(int32_t)
                or (self.bits != NULL and self._validity.len * 8 < offset + length)):
            raise ValueError(f"the buffers do not hold {length} values from {offset} on")
        self.ends = <const int32_t*>self._offsets.buf + offset
        self.bytes = <const uint8_t*>self._data.buf
        self.bit_offset = offset
        self.length = length
        self._check()

    def __dealloc__(self):
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._data)
        PyBuffer_Release(&self._validity)

    cdef int _check(self) except -1:
        """No value may lie outside the data."""
        cdef int64_t i
        cdef int32_t before = self.ends[0]
        if before < 0 or self.ends[self.length] > self._data.len:
            raise ValueError("values lie outside the data of their column")
        for i in range(1, self.length + 1):
            if self.ends[i] < before:
                raise ValueError("the offsets of a column must not fall")
            before = self.ends[i]
        return 0

    def to_list(self, int64_t start=0, end=None):
        """The values of a range, as bytes or None."""
        cdef int64_t i, stop = self.length if end is None else end
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"the column has no values {start} to {stop}")
        return [
            None if self.size(i) < 0 else PyBytes_FromStringAndSize(
                <const char*>self.bytes + self.ends[i], self.size(i))
            for i in range(start, stop)
        ]

    cdef inline int64_t size(self, int64_t index) noexcept nogil:
        """The length of a value in bytes, -1 where it is null."""
        cdef int64_t bit = self.bit_offset + index
        if self.bits != NULL and not (self.bits[bit >> 3] >> (bit & 7)) & 1:
            return -1
        return self.ends[index + 1] - self.ends[index]


cdef class HeaderColumn:
    """An Arrow array of lists of headers: the list offsets, and the names and values inside."""

    cdef Py_buffer _lists
    cdef const int32_t* ends
    cdef BinaryColumn names
    cdef BinaryColumn values
    cdef readonly int64_t length

    def __cinit__(self, int64_t length, int64_t offset, lists,
                 BinaryColumn names not None, BinaryColumn values not None):
        cdef int64_t i
        PyObject_GetBuffer(lists, &self._lists, PyBUF_SIMPLE)
        if (length < 0 or offset < 0
                or self._lists.len < (offset + length + 1) * <int64_t>sizeof(int32_t)):
            raise ValueError(f"the buffers do not hold {length} lists from {offset} on")
        self.ends = <const int32_t*>self._lists.buf + offset
        self.names = names
        self.values = values
        self.length = length
        if self.ends[0] < 0 or self.ends[length] > min(names.length, values.length):
            raise ValueError("lists of headers lie outside their column")
        for i in range(length):
            if self.ends[i + 1] < self.ends[i]:
                raise ValueError("the offsets of a column must not fall")
        for i in range(self.ends[0], self.ends[length]):
            if names.size(i) < 0:
                raise ValueError("a header without a name")

    def __dealloc__(self):
        PyBuffer_Release(&self._lists)

    cdef inline int64_t size_max(self, int64_t index) noexcept nogil:
        """What the headers of a row take at most, encoded."""
        cdef int64_t i, total = MAX_VARINT32_BYTES
        for i in range(self.ends[index], self.ends[index + 1]):
            total += 2 * MAX_VARINT32_BYTES + self.names.size(i) + max(self.values.size(i), 0)
        return total


cdef inline uint8_t* write_field(uint8_t* at, BinaryColumn column, int64_t index) noexcept nogil:
    cdef int64_t length = column.size(index) if column is not None else -1
    at = write_varint(at, length)
    if length > 0:
        memcpy(at, column.bytes + column.ends[index], length)
        at += length
    return at


cdef class RowEncoder:
    """Writes rows of columns as the records of batches."""

    cdef Py_buffer _timestamps
    cdef BinaryColumn _keys         # None: all keys are null
    cdef BinaryColumn _values
    cdef HeaderColumn _headers      # None: no headers
    cdef int64_t _length

    def __cinit__(self, timestamps, BinaryColumn keys, BinaryColumn values not None,
                 HeaderColumn headers=None):
        """`timestamps` are int64, one for each row, as in the other columns."""
        PyObject_GetBuffer(timestamps, &self._timestamps, PyBUF_SIMPLE)
        self._keys, self._values, self._headers = keys, values, headers
        self._length = values.length
        if (self._timestamps.len < self._length * <int64_t>sizeof(int64_t)
                or (keys is not None and keys.length != self._length)
                or (headers is not None and headers.length != self._length)):
            raise ValueError("the columns do not have the same number of rows")

    def __dealloc__(self):
        PyBuffer_Release(&self._timestamps)

    def encode(self, rows, Py_ssize_t position, int64_t bytes_max):
        """The records of `rows` (int64 numbers of rows) from `position` on, at most `bytes_max`,
        but at least one: (records, count, first timestamp, largest timestamp)."""
        cdef Py_buffer view
        cdef const int64_t* numbers
        cdef int64_t count, capacity, first, largest, i
        cdef uint8_t* start
        cdef Py_ssize_t written = 0
        PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
        try:
            numbers = <const int64_t*>view.buf + position
            count = view.len // <Py_ssize_t>sizeof(int64_t) - position
            if position < 0 or count <= 0:
                raise ValueError(f"there is no row at position {position}")
            for i in range(count):
                if not 0 <= numbers[i] < self._length:
                    raise ValueError(f"row {numbers[i]} lies outside the columns")
            with nogil:
                count = self._fitting(numbers, count, bytes_max, &capacity)
                start = <uint8_t*>malloc(capacity)
                if start != NULL:
                    written = self._write(start, numbers, count, &first, &largest) - start
            if start == NULL:
                raise MemoryError()
            return own(start, written), count, first, largest
        finally:
            PyBuffer_Release(&view)

    def encode_stored(self, offsets, starts, base_offsets, base_timestamps):
        """The records of whole batches with the offsets that they have, as (records, ends).

        Batch i is the rows starts[i] to starts[i + 1]; its records end at ends[i]. All arguments
        are int64: the offset of each row, and for each batch its first row (and one more at the
        end), base offset and base timestamp.
        """
        cdef Py_buffer rows_view, starts_view, bases_view, times_view
        cdef const int64_t* firsts
        cdef int64_t batches, capacity = 0, row, i
        cdef int64_t* ends
        cdef uint8_t* start
        cdef Py_ssize_t written = 0
        PyObject_GetBuffer(offsets, &rows_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(starts, &starts_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(base_offsets, &bases_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(base_timestamps, &times_view, PyBUF_SIMPLE)
        try:
            firsts = <const int64_t*>starts_view.buf
            batches = starts_view.len // <Py_ssize_t>sizeof(int64_t) - 1
            if (batches < 0 or rows_view.len < self._length * <int64_t>sizeof(int64_t)
                    or bases_view.len < batches * <int64_t>sizeof(int64_t)
                    or times_view.len < batches * <int64_t>sizeof(int64_t)):
                raise ValueError("the columns of the batches are too short")
            for i in range(batches):
                if firsts[i] > firsts[i + 1]:
                    raise ValueError("the first rows of batches must ascend")
            if firsts[0] < 0 or firsts[batches] > self._length:
                raise ValueError("a batch lies outside the columns")
            for row in range(firsts[0], firsts[batches]):
                capacity += self._size_max(row)
            start = <uint8_t*>malloc(max(capacity, 1))
            ends = <int64_t*>malloc(max(batches, 1) * sizeof(int64_t))
            if start == NULL or ends == NULL:
                free(start)
                free(ends)
                raise MemoryError()
            with nogil:
                for i in range(batches):
                    for row in range(firsts[i], firsts[i + 1]):
                        written = self._write_record(
                            start + written, row,
                            wrapping_add((<const int64_t*>self._timestamps.buf)[row],
                                         -(<const int64_t*>times_view.buf)[i]),
                            wrapping_add((<const int64_t*>rows_view.buf)[row],
                                         -(<const int64_t*>bases_view.buf)[i]),
                        ) - start
                    ends[i] = written
            return own(start, written), own(<uint8_t*>ends, batches * sizeof(int64_t))
        finally:
            PyBuffer_Release(&rows_view)
            PyBuffer_Release(&starts_view)
            PyBuffer_Release(&bases_view)
            PyBuffer_Release(&times_view)

    cdef inline int64_t _size_max(self, int64_t row) noexcept nogil:
        """What a row takes at most, encoded."""
        cdef int64_t size = RECORD_OVERHEAD_BYTES + max(self._values.size(row), 0)
        if self._keys is not None:
            size += max(self._keys.size(row), 0)
        if self._headers is not None:
            size += self._headers.size_max(row)
        return size

    cdef int64_t _fitting(self, const int64_t* rows, int64_t count, int64_t bytes_max,
                          int64_t* capacity) noexcept nogil:
        """How many of the rows fit, and what they need at most."""
        cdef int64_t i, size, total = 0
        for i in range(count):
            size = self._size_max(rows[i])
            if i > 0 and total + size > bytes_max:
                capacity[0] = total
                return i
            total += size
        capacity[0] = total
        return count

    cdef uint8_t* _write(self, uint8_t* at, const int64_t* rows, int64_t count,
                         int64_t* first, int64_t* largest) noexcept nogil:
        cdef const int64_t* timestamps = <const int64_t*>self._timestamps.buf
        cdef int64_t i, timestamp
        first[0] = largest[0] = timestamps[rows[0]]
        for i in range(count):
            timestamp = timestamps[rows[i]]
            if timestamp > largest[0]:
                largest[0] = timestamp
            at = self._write_record(at, rows[i], wrapping_add(timestamp, -first[0]), i)
        return at

    cdef inline uint8_t* _write_record(self, uint8_t* at, int64_t row, int64_t timestamp_delta,
                                       int64_t offset_delta) noexcept nogil:
        # The length stands before the body and is known after it: leave room for the longest.
        cdef uint8_t* body = at + MAX_VARINT32_BYTES
        cdef uint8_t* end
        cdef int64_t length
        body[0] = 0
        end = write_varint(body + 1, timestamp_delta)
        end = write_varint(end, offset_delta)
        end = write_field(end, self._keys, row)
        end = write_field(end, self._values, row)
        end = self._write_headers(end, row)
        length = end - body
        at = write_varint(at, length)
        if at != body:
            memmove(at, body, length)
        return at + length

    cdef uint8_t* _write_headers(self, uint8_t* at, int64_t row) noexcept nogil:
        cdef int64_t i, first, end
        if self._headers is None:
            return write_varint(at, 0)
        first, end = self._headers.ends[row], self._headers.ends[row + 1]
        at = write_varint(at, end - first)
        for i in range(first, end):
            at = write_field(at, self._headers.names, i)
            at = write_field(at, self._headers.values, i)
        return at


# Which partition a key belongs to


cdef uint32_t murmur2(const uint8_t* at, int64_t size) noexcept nogil:
    """The hash of Kafka's default partitioner."""
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t hash = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t word
    while size >= 4:
        word = at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)
        word *= multiplier
        word ^= word >> 24
        hash = (hash * multiplier) ^ (word * multiplier)
        at += 4
        size -= 4
    if size >= 3:
        hash ^= <uint32_t>at[2] << 16
    if size >= 2:
        hash ^= <uint32_t>at[1] << 8
    if size >= 1:
        hash = (hash ^ at[0]) * multiplier
    hash = (hash ^ (hash >> 13)) * multiplier
    return hash ^ (hash >> 15)


def partitions_of(BinaryColumn keys not None, int32_t partitions):
    """For each key the partition that the Java client would choose, as int32; -1 for a null key."""
    cdef int64_t i, size
    cdef int32_t* chosen
    if partitions < 1:
        raise ValueError(f"a topic cannot have {partitions} partitions")
    chosen = <int32_t*>malloc(max(keys.length, 1) * sizeof(int32_t))
    if chosen == NULL:
        raise MemoryError()
    with nogil:
        for i in range(keys.length):
            size = keys.size(i)
            if size < 0:
                chosen[i] = -1
            else:
                chosen[i] = <int32_t>((murmur2(keys.bytes + keys.ends[i], size) & 0x7FFFFFFF)
                                      % <uint32_t>partitions)
    return own(<uint8_t*>chosen, keys.length * sizeof(int32_t))


def rows_by_partition(partitions, int32_t count):
    """For each of `count` partitions the numbers of its rows as int64, in order. `partitions` are
    int32, as `partitions_of` returns them: rows with -1 belong to the first one, rows with less to
    none."""
    cdef Py_buffer view
    cdef const int32_t* numbers
    cdef int64_t** taken = NULL
    cdef int64_t* totals = NULL
    cdef int64_t i, rows
    cdef int32_t number
    cdef Memory memory
    if count < 1:
        raise ValueError(f"a topic cannot have {count} partitions")
    PyObject_GetBuffer(partitions, &view, PyBUF_SIMPLE)
    try:
        taken = <int64_t**>calloc(count, sizeof(int64_t*))
        totals = <int64_t*>calloc(count, sizeof(int64_t))
        if taken == NULL or totals == NULL:
            raise MemoryError()
        numbers = <const int32_t*>view.buf
        rows = view.len // <Py_ssize_t>sizeof(int32_t)
        for i in range(rows):
            if numbers[i] >= count:
                raise ValueError(f"row {i} belongs to partition {numbers[i]} of {count}")
            if numbers[i] >= -1:
                totals[max(numbers[i], 0)] += 1
        result = []
        for number in range(count):
            memory = own(<uint8_t*>malloc(max(totals[number], 1) * sizeof(int64_t)),
                         totals[number] * sizeof(int64_t))
            if memory.start == NULL:
                raise MemoryError()
            taken[number] = <int64_t*>memory.start
            result.append(memory)
        for i in range(rows):
            if numbers[i] >= -1:
                number = max(numbers[i], 0)
                taken[number][0] = i
                taken[number] += 1
        return result
    finally:
        PyBuffer_Release(&view)
        free(taken)
        free(totals)
