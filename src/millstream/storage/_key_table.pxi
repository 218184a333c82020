# A table of keys: the version, offset and event of each one's last record. Part of _core.pyx, after
# _conditions.pxi and _hash.pxi. See versions.py.
#
# Between two requests of a broker, a large table leaves the processor's caches, and so do the
# translations of its addresses. So entries stand in the order of their arrival: new ones are written
# one after the other. The index, which leads from a hash to the number of an entry, has hash bits of
# its own, so that a key that is new needs one look at the index and none at the entries of others.
# Both are in huge pages (_large_memory.pxi) once they are large.

cdef enum:
    SHARDS = 256                # the index grows shard by shard, so that no append waits for long
    FIRST_SLOTS = 8             # of a shard; a power of two
    CHUNK_BITS = 10
    CHUNK_ENTRIES = 1 << CHUNK_BITS     # of memory that is allocated at once, at first
    SMALL_CHUNKS = 32           # then blocks of them are
    BLOCK_CHUNKS = 256          # together 5 huge pages
    REGION_BITS = 10            # of the slots of a shard, from which on it is in a region
    REGIONS = 32
    MAX_KEYS = 1 << 26
    ENTRY_SIZE = 40             # of an encoded entry
    LINE = 64                   # of the processor's caches
    FIRST_ROOM = 32             # for the records of a batch
    KEPT_ROOM = 1024            # room for the records of larger batches is freed after the append


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


cdef struct Region:             # where the shards with one number of slots are, each in its place
    Slot* slots
    uint32_t shard_count        # of those that are there


cdef inline bint same(const Hash* left, const Hash* right) noexcept nogil:
    return left.low == right.low and left.high == right.high


cdef class KeyTable:
    """Entries by 128 bits of a keyed hash of the key. Changes can be undone until `forget_changes`."""

    cdef Shard shards[SHARDS]
    cdef Region regions[REGIONS]        # by the logarithm of the number of slots
    cdef KeyVersion** chunks    # the entries; they never move
    cdef uint32_t chunk_count
    cdef uint32_t chunk_room
    cdef uint32_t free_number   # the first of the free entries; 0: there is none
    cdef readonly uint32_t end_number   # of the entries that were ever in use, + 1
    cdef uint64_t secret_words[2]
    cdef KeyVersion* changes    # entries as they were before, in the order of changes
    cdef Py_ssize_t change_count
    cdef Py_ssize_t change_room
    cdef int64_t growth_count   # how often the index grew
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
            self.free_slots(&self.shards[shard])
        for chunk in range(self.chunk_count):
            if chunk < SMALL_CHUNKS:
                free(self.chunks[chunk])
            elif (chunk - SMALL_CHUNKS) % BLOCK_CHUNKS == 0:
                unmap_large(self.chunks[chunk], BLOCK_CHUNKS * CHUNK_ENTRIES * sizeof(KeyVersion))
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

    cdef inline uint32_t take_number(self) except 0:
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
        cdef KeyVersion* chunk
        cdef uint32_t room = self.chunk_room * 2 + 1
        if self.chunk_count == self.chunk_room:
            larger = <KeyVersion**>realloc(self.chunks, room * sizeof(KeyVersion*))
            if larger == NULL:
                raise MemoryError
            self.chunks = larger
            self.chunk_room = room
        if self.chunk_count < SMALL_CHUNKS:
            chunk = <KeyVersion*>malloc(CHUNK_ENTRIES * sizeof(KeyVersion))
        elif (self.chunk_count - SMALL_CHUNKS) % BLOCK_CHUNKS == 0:
            chunk = <KeyVersion*>map_large(BLOCK_CHUNKS * CHUNK_ENTRIES * sizeof(KeyVersion))
        else:
            chunk = self.chunks[self.chunk_count - 1] + CHUNK_ENTRIES
        if chunk == NULL:
            raise MemoryError
        self.chunks[self.chunk_count] = chunk
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

    cdef inline void fetch_new(self, int32_t count) noexcept nogil:
        """Begin to fetch the lines of the next entries, if they follow each other."""
        cdef const char* at
        cdef const char* end
        if self.free_number or self.end_number >> CHUNK_BITS == self.chunk_count:
            return
        at = <const char*>self.entry(self.end_number)
        count = min(count, <int32_t>(CHUNK_ENTRIES - (self.end_number & (CHUNK_ENTRIES - 1))))
        end = at + count * sizeof(KeyVersion)
        while at < end:
            prefetch(at)
            at += LINE

    cdef inline Slot* approach(self, const Hash* hash) noexcept nogil:
        """The first slot that may be the key's: it has the same bits of the hash, or is the empty
        one that ends the search. NULL if the shard has none. For `find`, until the index grows."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t at = <uint32_t>hash.low & (shard.slot_count - 1)
        if shard.slots == NULL:
            return NULL
        while shard.slots[at].number and shard.slots[at].hash != <uint32_t>hash.low:
            at = (at + 1) & (shard.slot_count - 1)
        return &shard.slots[at]

    cdef inline Slot* find(self, const Hash* hash, Slot* slot) noexcept nogil:
        """The key's slot, or the empty one that ends the search, from where `approach` has come;
        NULL if the shard has none."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        if slot == NULL:
            return NULL
        while slot.number and not (slot.hash == <uint32_t>hash.low
                                   and same(&self.entry(slot.number).hash, hash)):
            slot += 1
            if slot == shard.slots + shard.slot_count:
                slot = shard.slots
        return slot

    cdef inline KeyVersion* entry_in(self, const Slot* slot) noexcept nogil:
        """The entry of a slot that `find` has returned; NULL if there is none."""
        return self.entry(slot.number) if slot != NULL and slot.number else NULL

    cdef inline KeyVersion* look_up(self, const Hash* hash) noexcept nogil:
        """The key's entry; NULL if there is none."""
        return self.entry_in(self.find(hash, self.approach(hash)))

    cdef inline KeyVersion* insert(self, const Hash* hash, Slot* slot) except? NULL:
        """A new entry; the caller sets its offset. NULL if the table is full. `slot` is what `find`
        has returned."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef KeyVersion* entry
        cdef uint32_t number
        if self.count >= MAX_KEYS:
            return NULL
        if (<uint64_t>shard.count + 1) * 5 > <uint64_t>shard.slot_count * 4:
            self.grow(shard)
            slot = self.find(hash, self.approach(hash))
        number = self.take_number()
        slot.number = number
        slot.hash = <uint32_t>hash.low
        shard.count += 1
        self.count += 1
        entry = self.entry(number)
        entry.hash = hash[0]
        return entry

    cdef int grow(self, Shard* shard) except -1:
        """Make room for another entry; drop those before the log's start."""
        cdef Shard larger
        self.growth_count += 1
        larger.start_offset = self.start_offset
        larger.count = self.count_after_drop(shard)
        larger.slot_count = shard.slot_count if shard.slot_count else FIRST_SLOTS
        while <uint64_t>larger.count * 5 > <uint64_t>larger.slot_count * 2:
            larger.slot_count *= 2
        if larger.slot_count == shard.slot_count:
            larger.slots = <Slot*>calloc(larger.slot_count, sizeof(Slot))
            if larger.slots == NULL:
                raise MemoryError
            self.move_slots(shard, &larger)
            memcpy(shard.slots, larger.slots, larger.slot_count * sizeof(Slot))
            free(larger.slots)
            larger.slots = shard.slots
        else:
            larger.slots = self.take_slots(shard, larger.slot_count)
            self.move_slots(shard, &larger)
            self.free_slots(shard)
        self.count -= shard.count - larger.count
        shard[0] = larger
        return 0

    cdef uint32_t count_after_drop(self, const Shard* shard) noexcept nogil:
        cdef uint32_t count = 0
        cdef uint32_t i
        if shard.start_offset == self.start_offset:
            return shard.count  # the entries, which are far apart, need not be read
        for i in range(shard.slot_count):
            if shard.slots[i].number and not self.is_gone(shard.slots[i].number):
                count += 1
        return count

    cdef void move_slots(self, const Shard* shard, Shard* larger) noexcept nogil:
        cdef bint drops = larger.count != shard.count
        cdef Slot slot
        cdef uint32_t i
        for i in range(shard.slot_count):
            slot = shard.slots[i]
            if drops and slot.number and self.is_gone(slot.number):
                self.free_entry(slot.number)
            elif slot.number:
                put(larger, slot)

    cdef Slot* take_slots(self, const Shard* shard, uint32_t slot_count) except NULL:
        """Empty slots for a shard."""
        cdef Region* region
        cdef Slot* slots
        if slot_count < 1 << REGION_BITS:
            slots = <Slot*>calloc(slot_count, sizeof(Slot))
            if slots == NULL:
                raise MemoryError
            return slots
        region = self.region_of(slot_count)
        if region.slots == NULL:
            region.slots = <Slot*>map_large(SHARDS * <size_t>slot_count * sizeof(Slot))
            if region.slots == NULL:
                raise MemoryError
        region.shard_count += 1
        return region.slots + <size_t>(shard - self.shards) * slot_count

    cdef void free_slots(self, const Shard* shard) noexcept nogil:
        cdef Region* region
        if shard.slot_count < 1 << REGION_BITS:
            free(shard.slots)
            return
        region = self.region_of(shard.slot_count)
        region.shard_count -= 1
        if region.shard_count == 0:
            unmap_large(region.slots, SHARDS * <size_t>shard.slot_count * sizeof(Slot))
            region.slots = NULL

    cdef Region* region_of(self, uint32_t slot_count) noexcept nogil:
        cdef int bits = 0
        while <uint32_t>1 << bits < slot_count:
            bits += 1
        return &self.regions[bits]

    cdef inline bint is_gone(self, uint32_t number) noexcept nogil:
        """Whether an entry's record is before the log's start."""
        return self.entry(number).offset_plus_one <= self.start_offset

    cdef void remove(self, const Hash* hash) noexcept:
        """Remove an entry, and move up the slots that follow its own."""
        cdef Shard* shard = &self.shards[hash.high >> 56]
        cdef uint32_t mask = shard.slot_count - 1
        cdef uint32_t hole, at, home
        cdef Slot* found = self.find(hash, self.approach(hash))
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

    cdef inline int note_change(self, const KeyVersion* before) except -1:
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

    cdef inline int set(self, Slot* slot, const Hash* hash, int64_t version, int64_t offset,
                        uint64_t event, bint undoable) except -1:
        """Enter a key's record, unless a later one is entered; `slot` is what `find` has returned.
        1 if the table is full."""
        cdef KeyVersion* entry = self.entry_in(slot)
        cdef KeyVersion none
        if entry != NULL and offset + 1 < entry.offset_plus_one:
            return 0
        if entry == NULL:
            if undoable:
                none.hash = hash[0]
                none.version = none.offset_plus_one = 0
                none.event = 0
                self.note_change(&none)
            entry = self.insert(hash, slot)
            if entry == NULL:
                return 1
        elif undoable:
            self.note_change(entry)
        entry.version = version
        entry.offset_plus_one = offset + 1
        entry.event = event
        return 0

    cdef int load_entry(self, const Hash* hash, int64_t version, int64_t offset,
                        uint64_t event) except -1:
        """Enter a record of the log; it cannot be undone."""
        cdef Slot* slot = self.find(hash, self.approach(hash))
        if self.set(slot, hash, version, offset, event, False):
            raise MemoryError("too many keys have a version")
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
                self.load_entry(&hash, load_int64(at + 16), load_int64(at + 24),
                                <uint64_t>load_int64(at + 32))
                at += ENTRY_SIZE
        finally:
            PyBuffer_Release(&view)


cdef inline void put(Shard* shard, Slot slot) noexcept nogil:
    """Write a slot where `find` will come to it."""
    cdef uint32_t at = slot.hash & (shard.slot_count - 1)
    while shard.slots[at].number != 0:
        at = (at + 1) & (shard.slot_count - 1)
    shard.slots[at] = slot
