# The index of a table of keys: from a hash to the number of an entry. Part of _core.pyx, after
# _key_entries.pxi. See _key_table.pxi.
#
# It is divided into shards by the first bits of the hash, which grow one at a time, so that no append
# waits for long. All shards of one size are in one region, each in its own place, so the address of a
# slot follows from the hash and one byte of its shard. From some hundred keys per shard on, a region
# is in huge pages; the first such region fills one of them, and shards grow to it at once.

cdef enum:
    SHARDS = 256
    FIRST_BITS = 3              # of the number of slots of a shard
    STEP_BITS = 2               # more each time it grows, outside of huge pages
    SMALL_BITS = 7              # at most there
    LARGE_BITS = 10             # at least, in huge pages
    END_BITS = 32
    MAX_KEYS = 1 << 26


cdef struct Slot:
    uint32_t number             # of the entry, from 1; 0: an empty slot
    uint32_t hash               # its low bits, as the entry has them


cdef struct Region:
    Slot* slots                 # NULL if no shard is there
    uint32_t shard_count        # of those that are there


cdef inline uint32_t number_in(const Slot* slot) noexcept nogil:
    """The number of the entry of a slot that `find` has returned; 0 if there is none."""
    return slot.number if slot != NULL else 0


cdef inline uint8_t bits_for(uint32_t count, uint8_t bits) noexcept nogil:
    """The size that a shard with `count` keys grows to: they are in at most 40 % of the slots then."""
    bits = max(bits, <uint8_t>FIRST_BITS)
    while <uint64_t>count * 5 > <uint64_t>2 << bits:
        bits += STEP_BITS if bits < SMALL_BITS else 1
    return LARGE_BITS if SMALL_BITS < bits < LARGE_BITS else bits


cdef inline void put(Slot* slots, uint8_t bits, Slot slot) noexcept nogil:
    """Write a slot where `find` will come to it."""
    cdef uint32_t mask = (<uint32_t>1 << bits) - 1
    cdef uint32_t at = slot.hash & mask
    while slots[at].number != 0:
        at = (at + 1) & mask
    slots[at] = slot


cdef class KeyIndex(KeyEntries):
    """Entries by 96 bits of a hash."""

    cdef uint8_t slot_bits[SHARDS]      # 0: the shard has no slots
    cdef uint32_t key_counts[SHARDS]
    cdef int64_t start_offsets[SHARDS]  # of the log when the shard last grew
    cdef Region regions[END_BITS]
    cdef int64_t growth_count   # how often a shard grew
    cdef int64_t start_offset   # of the log when it was last appended to
    cdef readonly int64_t count
    cdef int64_t keys_max

    def __dealloc__(self):
        cdef uint8_t bits
        for bits in range(FIRST_BITS, END_BITS):
            self.free_region(bits)

    # Looking up

    cdef inline Slot* slots_of(self, uint32_t shard) noexcept nogil:
        cdef uint8_t bits = self.slot_bits[shard]
        return self.regions[bits].slots + (<size_t>shard << bits)

    cdef inline void fetch_slot(self, const Hash* hash) noexcept nogil:
        """Begin to fetch the lines of the key's slot and of the count of its shard."""
        cdef uint32_t shard = hash.high >> 56
        cdef uint8_t bits = self.slot_bits[shard]
        prefetch(&self.key_counts[shard])
        if bits:
            prefetch(self.slots_of(shard) + (<uint32_t>hash.low & ((<uint32_t>1 << bits) - 1)))

    cdef inline Slot* approach(self, const Hash* hash) noexcept nogil:
        """The first slot that may be the key's: it has the same bits of the hash, or is the empty
        one that ends the search. NULL if the shard has none. For `find`, until the index grows."""
        cdef uint32_t shard = hash.high >> 56
        cdef uint32_t mask = (<uint32_t>1 << self.slot_bits[shard]) - 1
        cdef uint32_t at = <uint32_t>hash.low & mask
        cdef Slot* slots
        if mask == 0:
            return NULL
        slots = self.slots_of(shard)
        while slots[at].number and slots[at].hash != <uint32_t>hash.low:
            at = (at + 1) & mask
        return &slots[at]

    cdef inline Slot* find(self, const Hash* hash, Slot* slot) noexcept nogil:
        """The key's slot, or the empty one that ends the search, from where `approach` has come;
        NULL if the shard has none."""
        cdef uint32_t shard = hash.high >> 56
        if slot == NULL:
            return NULL
        while slot.number and not (slot.hash == <uint32_t>hash.low
                                   and self.entry(slot.number).hash_high == hash.high):
            slot += 1
            if slot == self.slots_of(shard) + (<size_t>1 << self.slot_bits[shard]):
                slot = self.slots_of(shard)
        return slot

    cdef inline uint32_t look_up(self, const Hash* hash) noexcept nogil:
        """The number of the key's entry; 0 if there is none."""
        return number_in(self.find(hash, self.approach(hash)))

    # Changing

    cdef inline uint32_t insert(self, const Hash* hash, Slot* slot) except? 0:
        """The number of a new entry; the caller writes it. 0 if the table is full. `slot` is what
        `find` has returned."""
        cdef uint32_t shard = hash.high >> 56
        cdef uint32_t number
        if self.count >= self.keys_max:
            if self.is_full(hash, 0):
                return 0
            slot = self.find(hash, self.approach(hash))
        if (slot == NULL or (<uint64_t>self.key_counts[shard] + 1) * 5
                > <uint64_t>4 << self.slot_bits[shard]):
            self.grow(shard)
            slot = self.find(hash, self.approach(hash))
        number = self.take_number(hash)
        slot.number = number
        slot.hash = <uint32_t>hash.low
        self.key_counts[shard] += 1
        self.count += 1
        return number

    cdef void remove(self, const Hash* hash) noexcept:
        """Remove an entry, and move up the slots that follow its own."""
        cdef uint32_t shard = hash.high >> 56
        cdef uint32_t mask = (<uint32_t>1 << self.slot_bits[shard]) - 1
        cdef uint32_t hole, at, home
        cdef Slot* slots
        cdef Slot* found = self.find(hash, self.approach(hash))
        if not number_in(found):
            return
        self.free_entry(found.number)
        slots = self.slots_of(shard)
        hole = <uint32_t>(found - slots)
        at = (hole + 1) & mask
        while slots[at].number != 0:
            home = slots[at].hash & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                slots[hole] = slots[at]
                hole = at
            at = (at + 1) & mask
        slots[hole].number = 0
        self.key_counts[shard] -= 1
        self.count -= 1

    # Growing

    cdef bint is_full(self, const Hash* hash, Py_ssize_t more) except -1:
        """Whether there is no room for a key besides `more` others, also after those of its shard
        are dropped whose records are before the log's start."""
        cdef uint32_t shard = hash.high >> 56
        if self.count + more >= self.keys_max and self.start_offsets[shard] != self.start_offset:
            self.grow(shard)
        return self.count + more >= self.keys_max

    cdef int grow(self, uint32_t shard) except -1:
        """Make room for another key; drop those whose records are before the log's start."""
        cdef uint8_t before = self.slot_bits[shard]
        cdef uint32_t count = self.count_after_drop(shard)
        cdef uint8_t after = bits_for(count, before)
        cdef Slot* slots = self.take_slots(shard, after, before)
        self.growth_count += 1
        if before:
            self.move_slots(shard, count, slots, after)
            if before == after:
                memcpy(self.slots_of(shard), slots, sizeof(Slot) << before)
                free(slots)
            else:
                self.leave_region(before)
        self.slot_bits[shard] = after
        self.count -= self.key_counts[shard] - count
        self.key_counts[shard] = count
        self.start_offsets[shard] = self.start_offset
        return 0

    cdef uint32_t count_after_drop(self, uint32_t shard) noexcept nogil:
        cdef const Slot* slots
        cdef uint32_t count = 0
        cdef uint32_t i
        if self.start_offsets[shard] == self.start_offset or self.slot_bits[shard] == 0:
            return self.key_counts[shard]  # the entries, which are far apart, need not be read
        slots = self.slots_of(shard)
        for i in range(<uint32_t>1 << self.slot_bits[shard]):
            if slots[i].number and not self.is_gone(slots[i].number):
                count += 1
        return count

    cdef inline bint is_gone(self, uint32_t number) noexcept nogil:
        return offset_plus_one_of(self.entry(number)) <= self.start_offset

    cdef void move_slots(self, uint32_t shard, uint32_t count, Slot* larger,
                         uint8_t bits) noexcept nogil:
        """To `larger`, which `bits` is the size of, all but those that are dropped."""
        cdef bint drops = count != self.key_counts[shard]
        cdef const Slot* slots = self.slots_of(shard)
        cdef uint32_t i
        for i in range(<uint32_t>1 << self.slot_bits[shard]):
            if drops and slots[i].number and self.is_gone(slots[i].number):
                self.free_entry(slots[i].number)
            elif slots[i].number:
                put(larger, bits, slots[i])

    # Memory

    cdef Slot* take_slots(self, uint32_t shard, uint8_t bits, uint8_t before) except NULL:
        """Empty slots for a shard, in their region; apart from it if the shard is there already."""
        cdef Region* region = &self.regions[bits]
        cdef Slot* slots
        cdef size_t size = sizeof(Slot) << bits
        if bits == before:
            slots = <Slot*>calloc(1, size)
        else:
            if region.slots == NULL:
                region.slots = <Slot*>(map_large(SHARDS * size) if bits >= LARGE_BITS
                                       else calloc(SHARDS, size))
            slots = region.slots + (<size_t>shard << bits) if region.slots != NULL else NULL
        if slots == NULL:
            raise MemoryError
        if bits != before:
            region.shard_count += 1
        return slots

    cdef void leave_region(self, uint8_t bits) noexcept nogil:
        """A shard has left it."""
        self.regions[bits].shard_count -= 1
        if self.regions[bits].shard_count == 0:
            self.free_region(bits)

    cdef void free_region(self, uint8_t bits) noexcept nogil:
        cdef Region* region = &self.regions[bits]
        if region.slots == NULL:
            return
        if bits >= LARGE_BITS:
            unmap_large(region.slots, SHARDS * sizeof(Slot) << bits)
        else:
            free(region.slots)
        region.slots = NULL
