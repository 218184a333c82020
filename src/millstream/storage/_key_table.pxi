# A table of keys: the version, offset and event of each one's last record. Part of _core.pyx, after
# _conditions.pxi and _hash.pxi. See versions.py.

cdef enum:
    SHARDS = 256                # a table grows shard by shard, so that no append waits for long
    FIRST_SLOTS = 8             # of a shard; a power of two
    MAX_KEYS = 1 << 26
    ENTRY_SIZE = 40             # of an encoded entry
    KEPT_ROOM = 4096            # room for the records of larger batches is freed after the append

TABLE_SHARDS = SHARDS


cdef struct KeyVersion:
    Hash hash
    int64_t version
    int64_t offset_plus_one     # of the key's last record; 0: an empty slot
    uint64_t event              # hash of its event id; 0: it has none


cdef struct Shard:
    KeyVersion* entries
    uint32_t slots
    uint32_t count


cdef inline bint same(const Hash* left, const Hash* right) noexcept nogil:
    return left.low == right.low and left.high == right.high


cdef class KeyTable:
    """Entries by 128 bits of a keyed hash of the key. Changes can be undone until `forget_changes`."""

    cdef Shard shards[SHARDS]
    cdef uint64_t secret_words[2]
    cdef KeyVersion* changes    # entries as they were before, in the order of changes
    cdef Py_ssize_t change_count
    cdef Py_ssize_t change_room
    cdef int64_t start_offset   # of the log when it was last appended to
    cdef readonly int64_t count
    cdef readonly bytes secret

    def __cinit__(self, bytes secret=None):
        self.secret = os.urandom(16) if secret is None else secret
        if len(self.secret) != 16:
            raise ValueError("a secret has 16 bytes")
        self.secret_words[0] = int.from_bytes(self.secret[:8], "little")
        self.secret_words[1] = int.from_bytes(self.secret[8:], "little")

    def __dealloc__(self):
        cdef int i
        for i in range(SHARDS):
            free(self.shards[i].entries)
        free(self.changes)

    def get(self, const uint8_t[::1] key, int64_t start_offset=0):
        """(version, offset) of a key's last record; (0, -1) if it has none from there on."""
        cdef Hash hash = sip_hash(&key[0] if key.shape[0] else NULL, key.shape[0],
                                  self.secret_words)
        cdef KeyVersion* entry = self.look_up(&hash)
        if entry == NULL or entry.offset_plus_one <= start_offset:
            return 0, -1
        return entry.version, entry.offset_plus_one - 1

    # Slots

    cdef KeyVersion* look_up(self, const Hash* hash) noexcept nogil:
        """The key's entry; NULL if there is none."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t at
        if shard.slots == 0:
            return NULL
        at = <uint32_t>hash.low & (shard.slots - 1)
        while shard.entries[at].offset_plus_one != 0:
            if same(&shard.entries[at].hash, hash):
                return &shard.entries[at]
            at = (at + 1) & (shard.slots - 1)
        return NULL

    cdef KeyVersion* insert(self, const Hash* hash) except? NULL:
        """A new entry; the caller sets its offset. NULL if the table is full."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t at
        if self.count >= MAX_KEYS:
            return NULL
        if (<uint64_t>shard.count + 1) * 5 > <uint64_t>shard.slots * 4:
            self.grow(shard)
        at = free_slot(shard, hash)
        shard.entries[at].hash = hash[0]
        shard.entries[at].version = 0
        shard.entries[at].offset_plus_one = 1
        shard.entries[at].event = 0
        shard.count += 1
        self.count += 1
        return &shard.entries[at]

    cdef int grow(self, Shard* shard) except -1:
        """Make room for another entry; drop those before the log's start."""
        cdef Shard larger
        cdef uint32_t i
        larger.count = 0
        for i in range(shard.slots):
            if shard.entries[i].offset_plus_one > self.start_offset:
                larger.count += 1
        larger.slots = shard.slots if shard.slots else FIRST_SLOTS
        while <uint64_t>larger.count * 5 > <uint64_t>larger.slots * 2:
            larger.slots *= 2
        larger.entries = <KeyVersion*>calloc(larger.slots, sizeof(KeyVersion))
        if larger.entries == NULL:
            raise MemoryError
        for i in range(shard.slots):
            if shard.entries[i].offset_plus_one > self.start_offset:
                larger.entries[free_slot(&larger, &shard.entries[i].hash)] = shard.entries[i]
        self.count -= shard.count - larger.count
        free(shard.entries)
        shard[0] = larger
        return 0

    cdef void remove(self, const Hash* hash) noexcept:
        """Remove an entry, and move up those that follow it."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t mask = shard.slots - 1
        cdef uint32_t hole, at, home
        cdef KeyVersion* found = self.look_up(hash)
        if found == NULL:
            return
        hole = <uint32_t>(found - shard.entries)
        at = (hole + 1) & mask
        while shard.entries[at].offset_plus_one != 0:
            home = <uint32_t>shard.entries[at].hash.low & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                shard.entries[hole] = shard.entries[at]
                hole = at
            at = (at + 1) & mask
        shard.entries[hole].offset_plus_one = 0
        shard.count -= 1
        self.count -= 1

    cdef int note_change(self, const KeyVersion* before) except -1:
        cdef KeyVersion* larger
        if self.change_count == self.change_room:
            larger = <KeyVersion*>realloc(
                self.changes, (self.change_room * 2 + 16) * sizeof(KeyVersion))
            if larger == NULL:
                raise MemoryError
            self.changes = larger
            self.change_room = self.change_room * 2 + 16
        self.changes[self.change_count] = before[0]
        self.change_count += 1
        return 0

    cdef int set(self, KeyVersion* entry, const Hash* hash, int64_t version, int64_t offset,
                 uint64_t event, bint undoable) except -1:
        """Enter a key's record, unless a later one is entered; `entry` is what `look_up` has found.
        1 if the table is full."""
        cdef KeyVersion none
        if entry != NULL and offset + 1 < entry.offset_plus_one:
            return 0
        if entry == NULL:
            if undoable:
                none.hash = hash[0]
                none.version = none.offset_plus_one = 0
                none.event = 0
                self.note_change(&none)
            entry = self.insert(hash)
            if entry == NULL:
                return 1
        elif undoable:
            self.note_change(entry)
        entry.version = version
        entry.offset_plus_one = offset + 1
        entry.event = event
        return 0

    # Undoing

    cdef void undo_changes(self) noexcept:
        cdef KeyVersion* before
        cdef KeyVersion* entry
        while self.change_count > 0:
            self.change_count -= 1
            before = &self.changes[self.change_count]
            if before.offset_plus_one == 0:
                self.remove(&before.hash)
            else:
                entry = self.look_up(&before.hash)
                if entry != NULL:  # otherwise it was dropped, for it is before the log's start
                    entry[0] = before[0]

    cdef void forget_changes(self) noexcept:
        self.change_count = 0
        if self.change_room > KEPT_ROOM:
            free(self.changes)
            self.changes = NULL
            self.change_room = 0

    # Snapshots

    def encode(self, int first_shard, int last_shard, int64_t start_offset):
        """The entries of these shards whose records are at or after `start_offset`."""
        cdef Py_ssize_t room = 0, used = 0
        cdef uint8_t* out
        cdef KeyVersion* entry
        cdef uint32_t i
        cdef int number
        for number in range(max(first_shard, 0), min(last_shard, SHARDS)):
            room += self.shards[number].count
        encoded = PyBytes_FromStringAndSize(NULL, room * ENTRY_SIZE)
        out = <uint8_t*>PyBytes_AS_STRING(encoded)
        for number in range(max(first_shard, 0), min(last_shard, SHARDS)):
            for i in range(self.shards[number].slots):
                entry = &self.shards[number].entries[i]
                if entry.offset_plus_one > start_offset:
                    store_int64(out, <int64_t>entry.hash.low)
                    store_int64(out + 8, <int64_t>entry.hash.high)
                    store_int64(out + 16, entry.version)
                    store_int64(out + 24, entry.offset_plus_one - 1)
                    store_int64(out + 32, <int64_t>entry.event)
                    out += ENTRY_SIZE
                    used += ENTRY_SIZE
        return encoded if used == room * ENTRY_SIZE else encoded[:used]

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
                hash.low = <uint64_t>load_int64(at)
                hash.high = <uint64_t>load_int64(at + 8)
                if self.set(self.look_up(&hash), &hash, load_int64(at + 16), load_int64(at + 24),
                            <uint64_t>load_int64(at + 32), False):
                    raise MemoryError("too many keys have a version")
                at += ENTRY_SIZE
        finally:
            PyBuffer_Release(&view)


cdef uint32_t free_slot(const Shard* shard, const Hash* hash) noexcept nogil:
    cdef uint32_t at = <uint32_t>hash.low & (shard.slots - 1)
    while shard.entries[at].offset_plus_one != 0:
        at = (at + 1) & (shard.slots - 1)
    return at
