# Rows of one schema from values of records: what all formats have in common.

cdef void free_children(Column* column) noexcept:
    cdef int32_t index
    for index in range(column.child_count):
        free_children(&column.children[index])
    free(column.children)
    free(column.following)
    column.children = NULL
    column.following = NULL
    column.child_count = 0


cdef class TableDecoder:
    """Reads each value by `_read`, and takes back what it left of one that fails."""

    cdef Column _root
    cdef list _names                    # the bytes that columns point to
    cdef dict _types                    # how people call a column's type, by its address

    def __cinit__(self):
        self._names = []
        self._types = {}
        memset(&self._root, 0, sizeof(Column))

    def __dealloc__(self):
        close_column(&self._root)
        free_children(&self._root)

    cdef _describe_root(self, list fields):
        """`fields` are (name, type, nullable, precision, scale, [children])."""
        self._describe(&self._root, NULL, ("", "struct", False, 0, 0, fields))
        self._types[<size_t>&self._root] = "an object"

    cdef Problem _read(self, const uint8_t* start, const uint8_t* end) except? NO_MEMORY:
        """Append a row of what stands between the two."""
        raise NotImplementedError

    cdef tuple _explain(self, Problem problem, const uint8_t* start, const uint8_t* end):
        """The reason and the message for what `_read` answered."""
        raise NotImplementedError

    cdef _describe(self, Column* column, Column* parent, tuple field):
        name, kind, nullable, precision, scale, children = field
        encoded = name.encode()
        self._names.append(encoded)
        self._types[<size_t>column] = f"decimal({precision},{scale})" if kind == "decimal" else kind
        column.kind = KINDS[kind]
        column.width = WIDTHS.get(kind, OFFSET_BYTES)
        column.nullable = nullable
        column.precision = precision
        column.scale = scale
        column.name = encoded
        column.name_length = len(encoded)
        column.name_is_plain = all(it >= 0x20 and it not in b'"\\' for it in encoded)
        column.parent = parent
        if not children and kind != "struct":
            return
        column.children = <Column*>calloc(max(len(children), 1), sizeof(Column))
        column.following = <int32_t*>malloc((len(children) + 1) * sizeof(int32_t))
        if column.children == NULL or column.following == NULL:
            raise MemoryError()
        for index, child in enumerate(children):
            column.following[index] = index
            column.child_count = index + 1
            self._describe(&column.children[index], column, child)
        column.following[len(children)] = -1

    def decode(self, int64_t count, validity, offsets, data):
        """The buffers of a binary array of `count` values as columns.

        Returns the number of good rows, their numbers (int64; None if all are good), the bad ones
        as (row, reason, message), and the columns as (count, null count, validity or None, values
        or None, data or None, children).
        """
        cdef Py_buffer bits, ends, values
        cdef int64_t* good = NULL
        if (len(memoryview(offsets).cast("B")) < (count + 1) * OFFSET_BYTES
                or validity is not None and len(memoryview(validity).cast("B")) * 8 < count):
            raise ValueError(f"the buffers have not {count} values")
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        PyObject_GetBuffer(data, &values, PyBUF_SIMPLE)
        if validity is not None:
            PyObject_GetBuffer(validity, &bits, PyBUF_SIMPLE)
        try:
            good = <int64_t*>malloc(max(count, 1) * sizeof(int64_t))
            if good == NULL or not open_column(&self._root, count):
                raise MemoryError()
            failures = self._walk(
                count,
                NULL if validity is None else <uint8_t*>bits.buf,
                <int32_t*>ends.buf,
                <uint8_t*>values.buf,
                good,
            )
            rows = None
            if failures:
                rows = own(<uint8_t*>good, self._root.count * sizeof(int64_t))
                good = NULL
            return self._root.count, rows, failures, take_column(&self._root)[5]
        finally:
            free(good)
            close_column(&self._root)
            PyBuffer_Release(&ends)
            PyBuffer_Release(&values)
            if validity is not None:
                PyBuffer_Release(&bits)

    cdef list _walk(self, int64_t count, const uint8_t* validity, const int32_t* ends,
                    const uint8_t* data, int64_t* good):
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef int64_t row
        cdef int64_t good_count = 0
        cdef Problem problem
        failures = []
        for row in range(count):
            start = data + ends[row]
            end = data + ends[row + 1]
            if validity != NULL and not validity[row >> 3] >> (row & 7) & 1:
                problem = self._append_tombstone()
            else:
                problem = self._read(start, end)
            if problem == FINE:
                good[good_count] = row
                good_count += 1
                continue
            if problem == NO_MEMORY:
                raise MemoryError()
            why = self._explain_tombstone() if problem == TOMBSTONE else (
                self._explain(problem, start, end)
            )
            failures.append((row, *why))
            truncate_column(&self._root, good_count)
        return failures

    cdef Column* _required(self):
        """A column that may not be null, or NULL."""
        cdef int32_t index
        for index in range(self._root.child_count):
            if not self._root.children[index].nullable:
                return &self._root.children[index]
        return NULL

    cdef Problem _append_tombstone(self):
        """A record without a value is a row of nulls."""
        cdef int32_t index
        if self._required() != NULL:
            return TOMBSTONE
        for index in range(self._root.child_count):
            if not append_null(&self._root.children[index]):
                return NO_MEMORY
        end_value(&self._root)
        return FINE

    cdef tuple _explain_tombstone(self):
        return MISSING_FIELD, MESSAGES[TOMBSTONE].format(path=self._path(self._required()))

    cdef str _path(self, const Column* column):
        """As Spark writes it: `field a.b`, with the items of arrays and maps as `a[]`."""
        if column == NULL or column.parent == NULL:
            return "the value"
        path = ""
        while column.parent != NULL:
            if column.parent.kind == STRUCT:
                path = "." + column.name[:column.name_length].decode() + path
            else:
                path = "[]" + path
            column = column.parent
        return "field " + path[1:]
