# Compaction: which offset is the last of each key, and which records stay. Part of _walk.pyx.

cdef struct Entry:
    Hash hash
    int64_t offset_plus_one     # 0: an empty slot


cdef struct Filter:             # what decides which records of a segment stay
    int64_t latest_offset       # the map knows the keys up to here; later records stay
    int64_t now_ms
    int64_t new_horizon_ms      # delete horizon for batches that get one now
    bint all_tombstones         # whether tombstones stay whatever their delete horizon
    int64_t upper_bound         # the batch that ends here stays, if empty, to keep the last offset
    const int64_t* kept_ends    # sorted last offsets of batches that stay to keep producers' state
    Py_ssize_t kept_end_count


cdef struct Marked:             # outcome of the first look at a batch's records
    int32_t kept
    bint tombstones             # among the kept
    int64_t max_timestamp       # of the kept
    int64_t bytes               # of the kept


def hash_key(const uint8_t[::1] key, secret):
    """The 16 bytes by which an `OffsetMap` with this secret of 16 bytes knows `key`."""
    cdef uint64_t words[2]
    cdef Hash result
    words[0] = int.from_bytes(secret[:8], "little")
    words[1] = int.from_bytes(secret[8:16], "little")
    result = sip_hash(&key[0] if key.shape[0] else NULL, key.shape[0], words)
    return int(result.low).to_bytes(8, "little") + int(result.high).to_bytes(8, "little")


cdef class OffsetMap:
    """The last offset of each key, in bounded memory: 16 bytes of hash and 8 of offset per slot.

    Open addressing with linear probing; it never grows. Once `capacity` keys are in, indexing stops
    and says so, and the cleaning covers only what was indexed.
    """

    cdef Entry* entries
    cdef uint64_t slots
    cdef uint64_t secret[2]
    cdef readonly uint64_t capacity
    cdef readonly uint64_t count

    def __cinit__(self, size_bytes, double load_factor=0.9, secret=None):
        secret = os.urandom(16) if secret is None else secret
        self.secret[0] = int.from_bytes(secret[:8], "little")
        self.secret[1] = int.from_bytes(secret[8:16], "little")
        self.slots = size_bytes // sizeof(Entry)
        self.capacity = <uint64_t>(self.slots * load_factor)
        if self.capacity < 1 or self.capacity >= self.slots:
            raise ValueError(f"an offset map of {size_bytes} bytes has no room for a key")
        self.entries = <Entry*>calloc(self.slots, sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.entries)

    @property
    def utilization(self):
        return <double>self.count / <double>self.slots

    cdef Entry* slot(self, const uint8_t* key, Py_ssize_t size) noexcept nogil:
        """The key's slot, or the empty one where it belongs; one slot is always empty."""
        cdef Hash hash = sip_hash(key, size, self.secret)
        cdef uint64_t at = hash.low % self.slots
        cdef Entry* entry = &self.entries[at]
        while entry.offset_plus_one != 0:
            if entry.hash.low == hash.low and entry.hash.high == hash.high:
                return entry
            at += 1
            if at == self.slots:
                at = 0
            entry = &self.entries[at]
        entry.hash = hash
        return entry

    cdef Status index(self, const Batch* batch, int64_t start_offset) noexcept nogil:
        cdef const uint8_t* at = batch.records
        cdef Record record
        cdef Entry* entry
        cdef int32_t i
        cdef int64_t offset
        cdef Status status
        for i in range(batch.record_count):
            status = read_record(&at, batch, &record)
            if status != DONE:
                return status
            offset = batch.base_offset + record.offset_delta
            if record.key_length < 0 or offset < start_offset:
                continue
            entry = self.slot(record.key, record.key_length)
            if entry.offset_plus_one == 0:
                if self.count >= self.capacity:
                    return FULL
                self.count += 1
            entry.offset_plus_one = offset + 1
        return DONE if at == batch.end else BAD_TAIL

    def index_batches(self, buffer, Py_ssize_t position, Py_ssize_t end, int64_t start_offset):
        """Enter the keys of the whole batches in buffer[position:end], from `start_offset` on.

        Returns (status, position, latest offset): WALK_DONE before a batch whose end is missing,
        WALK_OPAQUE before one that the caller must open, WALK_FULL before one whose keys did not
        all fit. The latest offset is that of the last batch walked, -1 if none was.
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef Status status
        cdef int64_t latest = -1
        cdef const uint8_t* data
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            check_range(&view, position, end)
            data = <const uint8_t*>view.buf
            with nogil:
                while True:
                    status = read_batch(data + position, data + end, &batch)
                    if status == FULL:
                        status = DONE
                        break
                    if status == DONE:
                        status = self.index(&batch, start_offset)
                    if status != DONE:
                        break
                    latest = batch.base_offset + batch.last_offset_delta
                    position += batch.size
        finally:
            PyBuffer_Release(&view)
        if status > FULL:
            raise corrupt(status, f"unknown at position {position}")
        return status, position, latest

    def index_records(self, buffer, Py_ssize_t start, Py_ssize_t end, header, int64_t start_offset):
        """Enter the keys of one batch's uncompressed records; False if they do not all fit."""
        cdef Py_buffer view
        cdef Batch batch
        cdef Status status
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            open_section(&view, start, end, header, &batch)
            with nogil:
                status = self.index(&batch, start_offset)
        finally:
            PyBuffer_Release(&view)
        if status > FULL:
            raise corrupt(status, header[0])
        return status == DONE

    def get(self, const uint8_t[::1] key):
        """The last offset indexed for `key`, or -1."""
        cdef const uint8_t* data = &key[0] if key.shape[0] else NULL
        return self.slot(data, key.shape[0]).offset_plus_one - 1


cdef int check_range(Py_buffer* view, Py_ssize_t position, Py_ssize_t end) except -1:
    if position < 0 or end < position or end > view.len:
        raise ValueError(f"{position} to {end} lies outside a buffer of {view.len} bytes")
    return 0


cdef class RecordFilter:
    """Copies batches without the records that compaction drops; offsets never change.

    A record stays if the map has no later offset for its key; a tombstone only until the
    delete horizon of its batch, which is set by the first cleaning that keeps it, unless
    `all_tombstones` is set. A batch without
    records is dropped, unless a producer's state or the end of the cleaned range depends on it.
    """

    cdef OffsetMap map
    cdef Filter rules
    cdef int64_t[::1] kept_ends
    cdef uint8_t* flags
    cdef int32_t flag_room

    def __cinit__(self, OffsetMap map, *, int64_t latest_offset, int64_t now_ms,
                  int64_t delete_retention_ms, int64_t upper_bound, int64_t[::1] kept_ends,
                  bint all_tombstones=False):
        self.map = map
        self.kept_ends = kept_ends
        self.rules.latest_offset = latest_offset
        self.rules.now_ms = now_ms
        self.rules.new_horizon_ms = wrapping_add(now_ms, delete_retention_ms)
        self.rules.all_tombstones = all_tombstones
        self.rules.upper_bound = upper_bound
        self.rules.kept_ends = &kept_ends[0] if kept_ends.shape[0] else NULL
        self.rules.kept_end_count = kept_ends.shape[0]

    def __dealloc__(self):
        free(self.flags)

    cdef Status mark(self, const Batch* batch, bint keep_all, Marked* marked) noexcept nogil:
        """Decide on each record, leaving a flag for each and the sum of it in `marked`."""
        cdef const uint8_t* at = batch.records
        cdef bint keep_tombstones = (self.rules.all_tombstones
                                     or not batch.attributes & DELETE_HORIZON
                                     or self.rules.now_ms < batch.base_timestamp)
        cdef Record record
        cdef int32_t i
        cdef Status status = self.reserve_flags(batch)
        marked.kept = 0
        marked.tombstones = False
        marked.max_timestamp = NO_TIMESTAMP
        if status != DONE:
            return status
        for i in range(batch.record_count):
            status = read_record(&at, batch, &record)
            if status != DONE:
                return status
            self.flags[i] = keep_all or self.keeps(batch, &record, keep_tombstones)
            if self.flags[i]:
                marked.kept += 1
                marked.tombstones = marked.tombstones or record.value_length < 0
                if record.timestamp > marked.max_timestamp:
                    marked.max_timestamp = record.timestamp
        return DONE if at == batch.end else BAD_TAIL

    cdef bint keeps(self, const Batch* batch, const Record* record, bint tombstones) noexcept nogil:
        cdef int64_t offset = batch.base_offset + record.offset_delta
        if offset > self.rules.latest_offset:
            return True
        if record.key_length < 0 or (record.value_length < 0 and not tombstones):
            return False
        return offset >= self.map.slot(record.key, record.key_length).offset_plus_one - 1

    cdef Status reserve_flags(self, const Batch* batch) noexcept nogil:
        if check_count(batch) != DONE:
            return BAD_COUNT
        if batch.record_count > self.flag_room:
            free(self.flags)
            self.flags = <uint8_t*>malloc(batch.record_count)
            self.flag_room = batch.record_count if self.flags != NULL else 0
            if self.flags == NULL:
                return NO_MEMORY
        return DONE

    cdef uint8_t* copy_kept(self, const Batch* batch, uint8_t* out, bint rebase) noexcept nogil:
        """Write the flagged records; `rebase` makes their timestamps relative to the new horizon."""
        cdef const uint8_t* at = batch.records
        cdef Record record
        cdef uint8_t delta[10]
        cdef Py_ssize_t delta_size, rest
        cdef int32_t i
        for i in range(batch.record_count):
            read_record(&at, batch, &record)
            if not self.flags[i]:
                continue
            if not rebase:
                memcpy(out, record.start, record.end - record.start)
                out += record.end - record.start
                continue
            delta_size = write_varint(
                delta, wrapping_add(record.timestamp, -self.rules.new_horizon_ms)) - delta
            rest = record.end - record.after_timestamp
            out = write_varint(out, 1 + delta_size + rest)
            out[0] = record.body[0]
            memcpy(out + 1, delta, delta_size)
            memcpy(out + 1 + delta_size, record.after_timestamp, rest)
            out += 1 + delta_size + rest
        return out

    cdef bint stays_empty(self, const Batch* batch) noexcept nogil:
        cdef int64_t last_offset = batch.base_offset + batch.last_offset_delta
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.rules.kept_end_count
        cdef Py_ssize_t middle
        if last_offset + 1 == self.rules.upper_bound:
            return True
        if batch.producer_id < 0:
            return False
        while low < high:
            middle = (low + high) // 2
            if self.rules.kept_ends[middle] < last_offset:
                low = middle + 1
            else:
                high = middle
        return low < self.rules.kept_end_count and self.rules.kept_ends[low] == last_offset

    cdef Status filter(self, const uint8_t* source, const Batch* batch,
                       uint8_t** out, int32_t* kept) noexcept nogil:
        """Write what stays of one uncompressed batch to `out`, and move it on."""
        cdef Marked marked
        cdef uint8_t* end
        cdef bint rebase
        cdef Status status = self.mark(batch, False, &marked)
        if status != DONE:
            return status
        kept[0] = marked.kept
        if marked.kept == 0:
            if self.stays_empty(batch):
                write_empty(out[0], source, batch)
                out[0] += HEADER_SIZE
            return DONE
        rebase = marked.tombstones and not batch.attributes & DELETE_HORIZON
        if marked.kept == batch.record_count and not rebase:
            memcpy(out[0], source, batch.size)
            out[0] += batch.size
            return DONE
        end = self.copy_kept(batch, out[0] + HEADER_SIZE, rebase)
        memcpy(out[0], source, HEADER_SIZE)
        write_header(out[0], end - out[0],
                     batch.attributes | (DELETE_HORIZON if rebase else 0),
                     self.rules.new_horizon_ms if rebase else batch.base_timestamp,
                     marked.max_timestamp, marked.kept)
        out[0] = end
        return DONE

    def filter_batches(self, buffer, Py_ssize_t position, Py_ssize_t end,
                       output, Py_ssize_t output_position):
        """Copy what stays of the whole batches in buffer[position:end] to output[output_position:].

        Returns (status, position, output position, records read, records kept). WALK_DONE stops
        before a batch whose end is missing, WALK_OPAQUE before one that the caller must open,
        WALK_FULL before one that might not fit into the output.
        """
        cdef Py_buffer view, out_view
        cdef Batch batch
        cdef Status status
        cdef const uint8_t* data
        cdef uint8_t* out
        cdef uint8_t* out_end
        cdef int64_t records_read = 0, records_kept = 0
        cdef int32_t kept = 0
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            check_range(&view, position, end)
            PyObject_GetBuffer(output, &out_view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&view)
            raise
        try:
            check_range(&out_view, output_position, out_view.len)
            data = <const uint8_t*>view.buf
            out = <uint8_t*>out_view.buf + output_position
            out_end = <uint8_t*>out_view.buf + out_view.len
            with nogil:
                while True:
                    status = read_batch(data + position, data + end, &batch)
                    if status == FULL:
                        status = DONE
                        break
                    if status == DONE and room_needed(&batch) > out_end - out:
                        status = FULL
                    if status == DONE:
                        status = self.filter(data + position, &batch, &out, &kept)
                    if status != DONE:
                        break
                    records_read += batch.record_count
                    records_kept += kept
                    position += batch.size
            output_position = out - <uint8_t*>out_view.buf
        finally:
            PyBuffer_Release(&view)
            PyBuffer_Release(&out_view)
        if status > FULL:
            raise corrupt(status, f"unknown at position {position}")
        return status, position, output_position, records_read, records_kept

    def filter_records(self, buffer, Py_ssize_t start, Py_ssize_t end, header,
                       bint keep_all=False, bint set_horizon=False):
        """What stays of one batch's uncompressed records, for batches that the caller opened.

        `keep_all` is for control batches, `set_horizon` for markers that may go once their time
        comes. Returns (records kept, their largest timestamp, delete horizon if it is set now, the
        records; None if nothing changes).
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef Marked marked
        cdef Status status
        cdef bint rebase
        cdef uint8_t* out
        cdef Py_ssize_t size
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            open_section(&view, start, end, header, &batch)
            with nogil:
                status = self.mark(&batch, keep_all, &marked)
            if status != DONE:
                raise corrupt(status, header[0])
            rebase = ((set_horizon or (marked.tombstones and not keep_all))
                      and marked.kept > 0 and not batch.attributes & DELETE_HORIZON)
            if marked.kept == batch.record_count and not rebase:
                return marked.kept, marked.max_timestamp, None, None
            kept = PyBytes_FromStringAndSize(NULL, room_needed(&batch))
            out = <uint8_t*>PyBytes_AS_STRING(kept)
            with nogil:
                size = self.copy_kept(&batch, out, rebase) - out
        finally:
            PyBuffer_Release(&view)
        horizon_ms = self.rules.new_horizon_ms if rebase else None
        return marked.kept, marked.max_timestamp, horizon_ms, kept[:size]


cdef inline Py_ssize_t room_needed(const Batch* batch) noexcept nogil:
    return (HEADER_SIZE + (batch.end - batch.records)
            + <Py_ssize_t>batch.record_count * MAX_RECORD_GROWTH)


cdef void write_header(uint8_t* out, Py_ssize_t size, int16_t attributes, int64_t base_timestamp,
                       int64_t max_timestamp, int32_t record_count) noexcept nogil:
    """Patch a copied header for a batch of `size` bytes, whose records already stand behind it."""
    store_int32(out + 8, <int32_t>(size - 12))
    out[21] = <uint8_t>(attributes >> 8)
    out[22] = <uint8_t>attributes
    store_int64(out + 27, base_timestamp)
    store_int64(out + 35, max_timestamp)
    store_int32(out + 57, record_count)
    store_int32(out + 17, <int32_t>crc32c(out + ATTRIBUTES_AT, size - ATTRIBUTES_AT))


cdef void write_empty(uint8_t* out, const uint8_t* source, const Batch* batch) noexcept nogil:
    memcpy(out, source, HEADER_SIZE)
    write_header(out, HEADER_SIZE, batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON),
                 NO_TIMESTAMP, batch.max_timestamp, 0)
