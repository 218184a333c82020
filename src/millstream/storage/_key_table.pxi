# A table of keys: the version, offset and event of each one's last record. Part of _core.pyx, after
# _conditions.pxi and _hash.pxi. See versions.py.
#
# Between two requests of a broker, a large table leaves the processor's caches, and so do the
# translations of its addresses. So entries stand in the order of their arrival: new ones are written
# one after the other. The index, which leads from a hash to the number of an entry, has hash bits of
# its own, so that a key that is new needs one look at the index and none at the entries of others.

cdef enum:
    SHARDS = 256                # the index grows shard by shard, so that no append waits for long
    FIRST_SLOTS = 8             # of a shard; a power of two
    CHUNK_BITS = 10
    CHUNK_ENTRIES = 1 << CHUNK_BITS     # of memory that is allocated at once
    MAX_KEYS = 1 << 26
    ENTRY_SIZE = 40             # of an encoded entry
    KEPT_ROOM = 4096            # room for the records of larger batches is freed after the append


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define millstream_prefetch(address) __builtin_prefetch(address)
    #else
    #define millstream_prefetch(address) ((void)(address))
    #endif
    """
    void prefetch "millstream_prefetch"(const void* address) noexcept nogil


cdef struct KeyVersion:
    Hash hash                   # of a free entry: the number of the next one
    int64_t version
    int64_t offset_plus_one     # of the key's last record; 0: a free entry
    uint64_t event              # hash of its event id; 0: it has none


cdef struct Slot:
    uint32_t number             # of the entry, from 1; 0: an empty slot
    uint32_t hash               # the low bits


cdef struct Shard:
    Slot* slots
    uint32_t slot_count
    uint32_t count
    int64_t start_offset        # of the log when it last grew


cdef inline bint same(const Hash* left, const Hash* right) noexcept nogil:
    return left.low == right.low and left.high == right.high


cdef class KeyTable:
    """Entries by 128 bits of a keyed hash of the key. Changes can be undone until `forget_changes`."""

    cdef Shard shards[SHARDS]
    cdef KeyVersion** chunks    # the entries; they never move
    cdef uint32_t chunk_count
    cdef uint32_t chunk_room
    cdef uint32_t free_number   # the first of the free entries; 0: there is none
    cdef readonly uint32_t end_number   # of the entries that were ever in use, + 1
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
        self.end_number = 1

    def __dealloc__(self):
        cdef int shard
        cdef uint32_t chunk
        for shard in range(SHARDS):
            free(self.shards[shard].slots)
        for chunk in range(self.chunk_count):
            free(self.chunks[chunk])
        free(self.chunks)
        free(self.changes)

    def get(self, const uint8_t[::1] key, int64_t start_offset=0):
        """(version, offset) of a key's last record; (0, -1) if it has none from there on."""
        cdef Hash hash = sip_hash(&key[0] if key.shape[0] else NULL, key.shape[0],
                                  self.secret_words)
        cdef KeyVersion* entry = self.look_up(&hash)
        if entry == NULL or entry.offset_plus_one <= start_offset:
            return 0, -1
        return entry.version, entry.offset_plus_one - 1

    # Entries

    cdef inline KeyVersion* entry(self, uint32_t number) noexcept nogil:
        return &self.chunks[number >> CHUNK_BITS][number & (CHUNK_ENTRIES - 1)]

    cdef uint32_t take_number(self) except 0:
        """The number of a free entry."""
        cdef uint32_t number = self.free_number
        if number:
            self.free_number = <uint32_t>self.entry(number).hash.low
            return number
        number = self.end_number
        if number >> CHUNK_BITS == self.chunk_count:
            self.add_chunk()
        self.end_number += 1
        return number

    cdef int add_chunk(self) except -1:
        cdef KeyVersion** larger
        cdef uint32_t room = self.chunk_room * 2 + 1
        if self.chunk_count == self.chunk_room:
            larger = <KeyVersion**>realloc(self.chunks, room * sizeof(KeyVersion*))
            if larger == NULL:
                raise MemoryError
            self.chunks = larger
            self.chunk_room = room
        self.chunks[self.chunk_count] = <KeyVersion*>malloc(CHUNK_ENTRIES * sizeof(KeyVersion))
        if self.chunks[self.chunk_count] == NULL:
            raise MemoryError
        self.chunk_count += 1
        return 0

    cdef void free_entry(self, uint32_t number) noexcept nogil:
        cdef KeyVersion* entry = self.entry(number)
        entry.offset_plus_one = 0
        entry.hash.low = self.free_number
        self.free_number = number

    # The index

    cdef inline void fetch_slot(self, const Hash* hash) noexcept nogil:
        """Begin to fetch the line where the key's slot is."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        if shard.slots != NULL:
            prefetch(&shard.slots[<uint32_t>hash.low & (shard.slot_count - 1)])

    cdef inline void fetch_entry(self, const Hash* hash) noexcept nogil:
        """Begin to fetch what is probably the key's entry, once its slot is there."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t at = <uint32_t>hash.low & (shard.slot_count - 1)
        cdef Slot slot
        if shard.slots == NULL:
            return
        slot = shard.slots[at]
        while slot.number and slot.hash != <uint32_t>hash.low:
            at = (at + 1) & (shard.slot_count - 1)
            slot = shard.slots[at]
        if slot.number:
            prefetch(self.entry(slot.number))

    cdef Slot* find(self, const Hash* hash) noexcept nogil:
        """The key's slot, or the empty one that ends the search; NULL if the shard has none."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t at = <uint32_t>hash.low & (shard.slot_count - 1)
        cdef Slot* slot
        if shard.slots == NULL:
            return NULL
        while True:
            slot = &shard.slots[at]
            if slot.number == 0 or (slot.hash == <uint32_t>hash.low
                                    and same(&self.entry(slot.number).hash, hash)):
                return slot
            at = (at + 1) & (shard.slot_count - 1)

    cdef KeyVersion* look_up(self, const Hash* hash) noexcept nogil:
        """The key's entry; NULL if there is none."""
        cdef Slot* slot = self.find(hash)
        return NULL if slot == NULL or slot.number == 0 else self.entry(slot.number)

    cdef KeyVersion* insert(self, const Hash* hash) except? NULL:
        """A new entry; the caller sets its offset. NULL if the table is full."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef KeyVersion* entry
        cdef Slot slot
        if self.count >= MAX_KEYS:
            return NULL
        if (<uint64_t>shard.count + 1) * 5 > <uint64_t>shard.slot_count * 4:
            self.grow(shard)
        slot.number = self.take_number()
        slot.hash = <uint32_t>hash.low
        put(shard, slot)
        shard.count += 1
        self.count += 1
        entry = self.entry(slot.number)
        entry.hash = hash[0]
        return entry

    cdef int grow(self, Shard* shard) except -1:
        """Make room for another entry; drop those before the log's start."""
        cdef bint drops = shard.start_offset != self.start_offset
        cdef Shard larger
        cdef Slot slot
        cdef uint32_t i
        larger.start_offset = self.start_offset
        larger.count = shard.count
        if drops:  # otherwise the entries, which are far apart, need not be read
            larger.count = 0
            for i in range(shard.slot_count):
                slot = shard.slots[i]
                if slot.number and not self.is_gone(slot.number):
                    larger.count += 1
        larger.slot_count = shard.slot_count if shard.slot_count else FIRST_SLOTS
        while <uint64_t>larger.count * 5 > <uint64_t>larger.slot_count * 2:
            larger.slot_count *= 2
        larger.slots = <Slot*>calloc(larger.slot_count, sizeof(Slot))
        if larger.slots == NULL:
            raise MemoryError
        for i in range(shard.slot_count):
            slot = shard.slots[i]
            if drops and slot.number and self.is_gone(slot.number):
                self.free_entry(slot.number)
            elif slot.number:
                put(&larger, slot)
        self.count -= shard.count - larger.count
        free(shard.slots)
        shard[0] = larger
        return 0

    cdef inline bint is_gone(self, uint32_t number) noexcept nogil:
        """Whether an entry's record is before the log's start."""
        return self.entry(number).offset_plus_one <= self.start_offset

    cdef void remove(self, const Hash* hash) noexcept:
        """Remove an entry, and move up the slots that follow its own."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t mask = shard.slot_count - 1
        cdef uint32_t hole, at, home
        cdef Slot* found = self.find(hash)
        if found == NULL or found.number == 0:
            return
        self.free_entry(found.number)
        hole = <uint32_t>(found - shard.slots)
        at = (hole + 1) & mask
        while shard.slots[at].number != 0:
            home = shard.slots[at].hash & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                shard.slots[hole] = shard.slots[at]
                hole = at
            at = (at + 1) & mask
        shard.slots[hole].number = 0
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

    def encode(self, uint32_t first, uint32_t end, int64_t start_offset):
        """The entries with numbers from `first` to before `end` whose records are at or after
        `start_offset`."""
        cdef Py_ssize_t used = 0
        cdef uint8_t* out
        cdef KeyVersion* entry
        cdef uint32_t number
        first = max(first, 1)
        end = max(first, min(end, self.end_number))
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(end - first) * ENTRY_SIZE)
        out = <uint8_t*>PyBytes_AS_STRING(encoded)
        for number in range(first, end):
            entry = self.entry(number)
            if entry.offset_plus_one > start_offset:
                store_int64(out + used, <int64_t>entry.hash.low)
                store_int64(out + used + 8, <int64_t>entry.hash.high)
                store_int64(out + used + 16, entry.version)
                store_int64(out + used + 24, entry.offset_plus_one - 1)
                store_int64(out + used + 32, <int64_t>entry.event)
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
                hash.low = <uint64_t>load_int64(at)
                hash.high = <uint64_t>load_int64(at + 8)
                if self.set(self.look_up(&hash), &hash, load_int64(at + 16), load_int64(at + 24),
                            <uint64_t>load_int64(at + 32), False):
                    raise MemoryError("too many keys have a version")
                at += ENTRY_SIZE
        finally:
            PyBuffer_Release(&view)


cdef void put(Shard* shard, Slot slot) noexcept nogil:
    """Write a slot where `find` will come to it."""
    cdef uint32_t at = slot.hash & (shard.slot_count - 1)
    while shard.slots[at].number != 0:
        at = (at + 1) & (shard.slot_count - 1)
    shard.slots[at] = slot
