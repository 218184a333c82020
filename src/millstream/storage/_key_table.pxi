# A table of keys: the version, offset and event of each one's last record. Part of _core.pyx, after
# _key_index.pxi. See versions.py.
#
# Between two requests of a broker, a large table leaves the processor's caches, and so do the
# translations of its addresses. So entries stand in the order of their arrival: new ones are written
# one after the other. The index, which leads from a hash to the number of an entry, has hash bits of
# its own, so that a key that is new needs one look at the index and none at the entries of others.
# Both are in huge pages (_large_memory.pxi) once they are large.

cdef enum:
    ENTRY_SIZE = 36             # of an encoded entry
    FIRST_ROOM = 32             # for the records of a batch
    KEPT_ROOM = 1024            # room for the records of larger batches is freed after the append


cdef struct Change:             # an entry as it was before
    uint64_t offset_and_version # 0: it was new
    uint64_t event
    uint32_t version_low
    uint32_t number


cdef class KeyTable(KeyIndex):
    """Entries by 96 bits of a keyed hash of the key. Changes can be undone."""

    cdef uint64_t secret_words[2]
    cdef Change* changes        # in their order
    cdef Py_ssize_t change_count
    cdef readonly bytes secret

    def __cinit__(self, bytes secret=None, *, int64_t keys_max=MAX_KEYS):
        self.keys_max = keys_max
        self.secret = os.urandom(16) if secret is None else secret
        if len(self.secret) != 16:
            raise ValueError("a secret has 16 bytes")
        self.secret_words[0] = int.from_bytes(self.secret[:8], "little")
        self.secret_words[1] = int.from_bytes(self.secret[8:], "little")

    def __dealloc__(self):
        free(self.changes)

    def get(self, const uint8_t[::1] key, int64_t start_offset=0):
        """(version, offset) of a key's last record; (0, -1) if it has none from there on."""
        cdef Hash hash = sip_hash(&key[0] if key.shape[0] else NULL, key.shape[0],
                                  self.secret_words)
        cdef uint32_t number = self.look_up(&hash)
        cdef KeyVersion found
        if number:
            found = self.read(number)
            if found.offset_plus_one > start_offset:
                return found.version, found.offset_plus_one - 1
        return 0, -1

    # Changing

    cdef inline int set(self, Slot* slot, const Hash* hash, const KeyVersion* value,
                        bint undoable) except -1:
        """Enter a key's record, unless a later one is entered; `slot` is what `find` has returned.
        1 if the table is full."""
        cdef uint32_t number = number_in(slot)
        if not fits(value):
            refuse_numbers(value)
        if number and value.offset_plus_one < offset_plus_one_of(self.entry(number)):
            return 0
        if not number:
            number = self.insert(hash, slot)
            if not number:
                return 1
        if undoable:
            self.note_change(number)
        if value.event and self.events[number >> CHUNK_BITS] == NULL:
            self.add_events(number)
        self.write(number, value)
        return 0

    cdef inline void note_change(self, uint32_t number) noexcept nogil:
        """Note an entry as it is; there is room."""
        cdef const KeyEntry* entry = self.entry(number)
        cdef Change* change = &self.changes[self.change_count]
        change.offset_and_version = entry.offset_and_version
        change.version_low = entry.version_low
        change.event = self.event_of(number)
        change.number = number
        self.change_count += 1

    cdef int load_entry(self, const Hash* hash, int64_t version, int64_t offset,
                        uint64_t event) except -1:
        """Enter a record of the log; it cannot be undone."""
        cdef Slot* slot = self.find(hash, self.approach(hash))
        cdef KeyVersion value
        value.version = version
        value.offset_plus_one = offset + 1
        value.event = event
        if self.set(slot, hash, &value, False):
            raise MemoryError("too many keys have a version")
        return 0

    # Undoing

    cdef int reserve_changes(self, Py_ssize_t room) except -1:
        """Room for all changes of a batch."""
        self.free_changes()
        self.changes = <Change*>malloc(room * sizeof(Change))
        if self.changes == NULL:
            raise MemoryError
        return 0

    cdef void undo_changes(self) noexcept:
        """An entry that has changed is not dropped meanwhile: its record is at the log's end."""
        cdef const Change* change
        cdef KeyEntry* entry
        cdef uint64_t* events
        cdef Hash hash
        while self.change_count > 0:
            self.change_count -= 1
            change = &self.changes[self.change_count]
            entry = self.entry(change.number)
            if change.offset_and_version == 0:
                hash = hash_of(entry)
                self.remove(&hash)
                continue
            entry.offset_and_version = change.offset_and_version
            entry.version_low = change.version_low
            events = self.events[change.number >> CHUNK_BITS]
            if events != NULL:
                events[change.number & (CHUNK_ENTRIES - 1)] = change.event

    cdef void free_changes(self) noexcept:
        free(self.changes)
        self.changes = NULL
        self.change_count = 0

    # Snapshots

    def encode(self, uint32_t first, uint32_t end, int64_t start_offset):
        """The entries with numbers from `first` to before `end` whose records are at or after
        `start_offset`."""
        cdef Py_ssize_t used = 0
        cdef uint8_t* out
        cdef KeyEntry* entry
        cdef uint32_t number
        first = max(first, 1)
        end = max(first, min(end, self.end_number))
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(end - first) * ENTRY_SIZE)
        out = <uint8_t*>PyBytes_AS_STRING(encoded)
        for number in range(first, end):
            entry = self.entry(number)
            if offset_plus_one_of(entry) > start_offset:
                store_int32(out + used, <int32_t>entry.hash_low)
                store_int64(out + used + 4, <int64_t>entry.hash_high)
                store_int64(out + used + 12, version_of(entry))
                store_int64(out + used + 20, offset_plus_one_of(entry) - 1)
                store_int64(out + used + 28, <int64_t>self.event_of(number))
                used += ENTRY_SIZE
        return encoded if used == len(encoded) else encoded[:used]

    def load(self, buffer):
        """Enter what `encode` has returned."""
        cdef Py_buffer view
        cdef const uint8_t* at
        cdef Hash hash
        cdef Py_ssize_t i
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            at = <const uint8_t*>view.buf
            for i in range(view.len // ENTRY_SIZE):
                hash.low = <uint32_t>load_int32(at)
                hash.high = <uint64_t>load_int64(at + 4)
                self.load_entry(&hash, load_int64(at + 12), load_int64(at + 20),
                                <uint64_t>load_int64(at + 28))
                at += ENTRY_SIZE
        finally:
            PyBuffer_Release(&view)
