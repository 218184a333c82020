# The versions of a log's keys, for conditional appends. Part of _core.pyx, after _key_table.pxi. See
# versions.py for the rules.

cdef struct Offered:            # a record that is to be appended
    Hash hash
    int64_t version
    uint64_t event
    Slot* slot                  # where the table is searched for the key, until its index grows
    int reason                  # why it is refused whatever the table contains, or 0


cdef Status read_records(const Batch* batch, KeyAndHeaders* found) noexcept nogil:
    cdef const uint8_t* at = batch.records
    cdef Record record
    cdef int32_t index
    cdef Status status
    for index in range(batch.record_count):
        status = read_record(&at, batch, &record)
        if status != DONE:
            return status
        if record.offset_delta != index:
            return BAD_OFFSET
        found[index] = key_and_headers(&record)
    return DONE if at == batch.end else BAD_TAIL


cdef inline bytes hash_bytes(Hash hash):
    return PyBytes_FromStringAndSize(<const char*>&hash, sizeof(Hash))


cdef class VersionTable(KeyTable):
    """The version of each key's last record, where that is, and a hash of its event id.

    A key is known by 96 bits of a keyed hash; one that is held, by 128. A batch is checked and
    entered record by record; `keep` or `roll_back` ends that, before anything else is done with the
    table. Keys that an open transaction has written are held: their new versions count for its own
    producer alone until the transaction ends.
    """

    cdef KeyAndHeaders* records # of the batch that is being checked
    cdef Offered* offered       # what they offer
    cdef Py_ssize_t room        # for records
    cdef dict _held             # hash -> the producer whose open transaction has written the key last
    cdef dict _held_by          # producer id -> hash -> (version, offset, event)
    cdef readonly Py_ssize_t held_count
    cdef list _held_changes     # (producer id, hash, what was held before), as `changes`
    cdef Py_ssize_t held_change_count

    def __cinit__(self, *_, **__):
        self._held = {}
        self._held_by = {}
        self._held_changes = []

    def __dealloc__(self):
        self.free_room()

    # Appending

    def check(self, buffer, Py_ssize_t start, Py_ssize_t end, header, int64_t base_offset,
              int64_t start_offset, int64_t producer_id=-1):
        """Check a batch, whose uncompressed records are in buffer[start:end], and enter it.

        It will be appended at `base_offset` to a log that starts at `start_offset`; `producer_id`
        is given if it is transactional. Returns None, or why it is refused and nothing was
        entered: (reason, index of the record, its version, the key's version, offset of that).
        Raises `CorruptBatch` for records that the header does not announce.
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef KeyAndHeaders* records
        cdef Status status = BAD_COUNT
        self.change_count = 0
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            open_section(&view, start, end, header, &batch)
            records = self.reserve(&batch)
            if records != NULL:
                status = read_records(&batch, records)
            if status != DONE:
                raise corrupt(status, 0)
            self.examine(batch.record_count)
            refusal = self.enter(batch.record_count, base_offset, start_offset, producer_id)
        except BaseException:
            self.roll_back()
            raise
        finally:
            PyBuffer_Release(&view)
        if refusal is not None:
            self.roll_back()
        return refusal

    cdef bint enter_small(self, int32_t count, int64_t base_offset,
                          int64_t start_offset) except -1:
        """Enter the records that `examine` has seen; False if they are refused."""
        try:
            refusal = self.enter(count, base_offset, start_offset, -1)
        except BaseException:
            self.roll_back()
            raise
        if refusal is not None:
            self.roll_back()
        return refusal is None

    cdef tuple enter(self, int32_t count, int64_t base_offset, int64_t start_offset,
                     int64_t producer_id):
        """As `check`, without the rolling back, of records that `examine` has seen."""
        cdef Offered* offered
        cdef KeyVersion value
        cdef const KeyEntry* entry
        cdef Slot* slot
        cdef int64_t version, offset, growth_count = self.growth_count
        cdef bint is_held = producer_id >= 0 or self.held_count > 0
        cdef int32_t index
        cdef int reason
        self.start_offset = start_offset
        self.fetch(count)
        for index in range(count):
            offered = &self.offered[index]
            reason = offered.reason
            version = 0
            offset = -1
            if reason == 0:
                slot = offered.slot
                if self.growth_count != growth_count:
                    slot = self.approach(&offered.hash)
                slot = self.find(&offered.hash, slot)
                if number_in(slot):
                    entry = self.entry(slot.number)
                    if offset_plus_one_of(entry) > start_offset:
                        version = version_of(entry)
                        offset = offset_plus_one_of(entry) - 1
                if is_held:
                    reason = self.enter_held(offered, base_offset + index, producer_id,
                                             &version, &offset)
                elif offered.version != version + 1:
                    reason = REFUSED_CONFLICT
                if reason == 0 and producer_id < 0:
                    value.version = offered.version
                    value.offset_plus_one = base_offset + index + 1
                    value.event = offered.event
                    if self.set(slot, &offered.hash, &value, True):
                        reason = REFUSED_FULL
            if reason:
                return reason, index, offered.version, version, offset
        return None

    cdef KeyAndHeaders* reserve(self, const Batch* batch) except? NULL:
        """Room for the records of a batch; NULL if it announces more than its bytes can have."""
        cdef int32_t room
        if check_count(batch) != DONE:
            return NULL
        if batch.record_count > self.room or self.room == 0:
            self.free_room()
            room = max(batch.record_count, FIRST_ROOM)
            self.records = <KeyAndHeaders*>malloc(room * sizeof(KeyAndHeaders))
            self.offered = <Offered*>malloc(room * sizeof(Offered))
            if self.records == NULL or self.offered == NULL:
                raise MemoryError
            self.reserve_changes(room)
            self.room = room
        return self.records

    cdef void free_room(self) noexcept:
        self.free_changes()
        free(self.records)
        free(self.offered)
        self.records = NULL
        self.offered = NULL
        self.room = 0

    cdef inline void examine(self, int32_t count) noexcept nogil:
        """See what the records that have been read to where `reserve` said offer, or why they are
        refused. Then begin to fetch their slots, in a loop that does nothing else: the processor
        translates several addresses at once if they follow each other closely."""
        cdef const KeyAndHeaders* record
        cdef Condition condition
        cdef Offered* offered
        cdef int32_t index
        self.fetch_new(count)
        for index in range(count):
            record = &self.records[index]
            offered = &self.offered[index]
            read_condition(record.headers, record.end, &condition)
            offered.version = condition.version
            offered.reason = 0
            if record.key_length < 0:
                offered.reason = REFUSED_NO_KEY
            elif condition.version == NO_VERSION:
                offered.reason = REFUSED_NO_HEADER
            elif condition.version == BAD_VERSION:
                offered.reason = REFUSED_BAD_HEADER
            else:
                offered.event = self.hash_event(&condition)
                offered.hash = sip_hash(record.key, record.key_length, self.secret_words)
        for index in range(count):
            if self.offered[index].reason == 0:
                self.fetch_slot(&self.offered[index].hash)

    cdef inline void fetch(self, int32_t count) noexcept nogil:
        """Find where the table is searched for the offered keys, and begin to fetch their entries,
        in a loop that does little else."""
        cdef Offered* offered
        cdef int32_t index
        for index in range(count):
            offered = &self.offered[index]
            if offered.reason == 0:
                offered.slot = self.approach(&offered.hash)
                if number_in(offered.slot):  # probably the key's
                    self.fetch_entry(offered.slot.number)

    cdef int enter_held(self, const Offered* offered, int64_t record_offset, int64_t producer_id,
                        int64_t* version, int64_t* offset) except -1:
        """Check a record while there are open transactions, and enter it if it is in one."""
        key = hash_bytes(offered.hash)
        holder = self._held.get(key)
        held = None
        if holder is not None:
            if holder != producer_id:
                return REFUSED_HELD
            held = self._held_by[holder][key]
            version[0] = held[0]
            offset[0] = held[1]
        if offered.version != version[0] + 1:
            return REFUSED_CONFLICT
        if producer_id < 0:
            return 0
        if held is None and offset[0] < 0 and self.is_full(&offered.hash, self.held_count):
            return REFUSED_FULL
        self._held_changes.append((producer_id, key, held))
        self.held_change_count += 1
        self.hold(key, producer_id, offered.version, record_offset, offered.event)
        return 0

    cdef int hold(self, bytes key, int64_t producer_id, int64_t version, int64_t offset,
                  uint64_t event) except -1:
        keys = self._held_by.get(producer_id)
        if keys is None:
            keys = self._held_by[producer_id] = {}
        (<dict>keys)[key] = (version, offset, event)
        self._held[key] = producer_id
        self.held_count = len(self._held)
        return 0

    cdef inline uint64_t hash_event(self, const Condition* condition) noexcept nogil:
        cdef uint64_t event
        if condition.event_length <= 0:
            return 0
        event = sip_hash(condition.event, condition.event_length, self.secret_words).low
        return event if event else 1

    cpdef keep(self):
        """The batch was appended."""
        self.change_count = 0
        if self.room > KEPT_ROOM:
            self.free_room()
        if self.held_change_count:
            self._held_changes.clear()
            self.held_change_count = 0
            self.held_count = len(self._held)

    cpdef roll_back(self):
        """The batch was not appended."""
        self.undo_changes()
        for producer_id, key, held in reversed(self._held_changes):
            keys = self._held_by.get(producer_id)
            if keys is None:
                continue  # there was no memory to hold it
            if held is not None:
                keys[key] = held
                continue
            keys.pop(key, None)
            self._held.pop(key, None)
            if not keys:
                del self._held_by[producer_id]
        self.keep()

    def find_repeat(self, buffer, Py_ssize_t start, Py_ssize_t end, header, int64_t start_offset):
        """The base offset of a batch that was appended already; -1 if this one was not.

        It was if the last record of each of its keys is still the key's last one, with the same
        event id. `check` has accepted the records' form.
        """
        cdef Py_buffer view
        cdef Batch batch
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            open_section(&view, start, end, header, &batch)
            return self.base_of_repeat(&batch, start_offset)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t base_of_repeat(self, const Batch* batch, int64_t start_offset) except? -2:
        cdef const uint8_t* at
        cdef Record record
        cdef Condition condition
        cdef Hash hash
        cdef KeyVersion last
        cdef int64_t base_offset = -1, offset
        cdef uint32_t number
        cdef int32_t index
        cdef int turn
        for turn in range(2):  # the first finds the base offset, the second checks each record
            at = batch.records
            for index in range(batch.record_count):
                if read_record(&at, batch, &record) != DONE or record.key_length < 0:
                    return -1
                read_condition(record.headers, record.end, &condition)
                hash = sip_hash(record.key, record.key_length, self.secret_words)
                number = self.look_up(&hash)
                if not number:
                    return -1
                last = self.read(number)
                if (last.offset_plus_one <= start_offset
                        or condition.version < 1 or condition.version > last.version
                        or (self._held and hash_bytes(hash) in self._held)):
                    return -1
                offset = last.offset_plus_one - 1
                if condition.version == last.version:
                    if last.event == 0 or last.event != self.hash_event(&condition):
                        return -1
                    if turn == 0:
                        base_offset = offset - index
                        break
                    if offset != base_offset + index:
                        return -1
                elif turn == 1 and not (base_offset + index < offset
                                        <= base_offset + batch.last_offset_delta):
                    return -1
            if base_offset < 0:
                return -1
        return base_offset

    def end_transaction(self, int64_t producer_id, bint committed):
        """A marker in the log ends the producer's transaction."""
        cdef Hash hash
        keys = self._held_by.pop(producer_id, None)
        if keys is None:
            return
        for key in keys:
            if self._held.get(key) == producer_id:  # not so if both wrote it before the setting
                del self._held[key]
        self.held_count = len(self._held)
        if committed:
            for key, (version, offset, event) in keys.items():
                memcpy(&hash, PyBytes_AS_STRING(key), sizeof(Hash))
                self.load_entry(&hash, version, offset, event)

    # Replaying the log

    def replay_batches(self, buffer, Py_ssize_t position, Py_ssize_t end, int64_t from_offset):
        """Enter the records of the whole batches in buffer[position:end], from an offset on.

        Returns (whether all were entered, position): of a batch whose end is missing, or of one
        that the caller must open and enter with `replay_records`.
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef Status status
        cdef const uint8_t* data
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if position < 0 or end < position or end > view.len:
                raise ValueError(f"{position} to {end} lies outside of {view.len} bytes")
            data = <const uint8_t*>view.buf
            while True:
                status = read_batch(data + position, data + end, &batch)
                if status == DONE:
                    status = self.replay(&batch, from_offset, -1)
                if status != DONE:
                    break
                position += batch.size
        finally:
            PyBuffer_Release(&view)
        if status > FULL:
            raise corrupt(status, f"unknown at position {position}")
        return status == FULL, position

    def replay_records(self, buffer, header, int64_t from_offset):
        """Enter the uncompressed records of one batch; `header` is the stored one."""
        cdef Py_buffer view
        cdef Batch batch
        cdef Status status
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            open_section(&view, 0, view.len, header, &batch)
            status = self.replay(&batch, from_offset,
                                 batch.producer_id if batch.attributes & TRANSACTIONAL else -1)
        finally:
            PyBuffer_Release(&view)
        if status != DONE:
            raise corrupt(status, header[0])

    cdef Status replay(self, const Batch* batch, int64_t from_offset, int64_t producer_id) except *:
        cdef const uint8_t* at = batch.records
        cdef Record record
        cdef Condition condition
        cdef Hash hash
        cdef int64_t offset, version
        cdef uint64_t event
        cdef int32_t index
        cdef Status status
        for index in range(batch.record_count):
            status = read_record(&at, batch, &record)
            if status != DONE:
                return status
            offset = batch.base_offset + record.offset_delta
            if record.key_length < 0 or offset < from_offset:
                continue
            read_condition(record.headers, record.end, &condition)
            hash = sip_hash(record.key, record.key_length, self.secret_words)
            version = condition.version if condition.version > 0 else 0
            event = self.hash_event(&condition)
            if producer_id >= 0:
                self.hold(hash_bytes(hash), producer_id, version, offset, event)
            elif version or self.look_up(&hash):
                self.load_entry(&hash, version, offset, event)
        return DONE

    # Snapshots

    def held(self):
        """What open transactions hold: (producer id, hash, version, offset, event)."""
        cdef Hash hash
        found = []
        for producer_id, keys in self._held_by.items():
            for key, (version, offset, event) in keys.items():
                memcpy(&hash, PyBytes_AS_STRING(key), sizeof(Hash))
                found.append((producer_id, hash.low, hash.high, version, offset, event))
        return found

    def load_held(self, int64_t producer_id, uint64_t low, uint64_t high, int64_t version,
                  int64_t offset, uint64_t event):
        """Enter one of what `held` has returned."""
        cdef Hash hash
        hash.low = low
        hash.high = high
        self.hold(hash_bytes(hash), producer_id, version, offset, event)
