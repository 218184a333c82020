# The entries of a table of keys, in the order of their arrival; they never move. Part of _core.pyx,
# after _hash.pxi and _large_memory.pxi. See _key_table.pxi.
#
# Memory is what a new key costs most: the system clears each page before it gives it out. So an entry
# has 24 bytes: 96 bits of the hash, and 48 each of the version and the offset. Hashes of event ids are
# apart, in chunks that only exist where a record had one.

cdef enum:
    CHUNK_BITS = 10
    CHUNK_ENTRIES = 1 << CHUNK_BITS     # of memory that is allocated at once, at first
    SMALL_CHUNKS = 32           # then blocks of them are
    BLOCK_CHUNKS = 256          # together 3 huge pages
    LINE = 64                   # of the processor's caches
    NUMBER_BITS = 48            # of a version, and of an offset + 1


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define millstream_prefetch(address) __builtin_prefetch(address)
    #else
    #define millstream_prefetch(address) ((void)(address))
    #endif
    """
    void prefetch "millstream_prefetch"(const void* address) noexcept nogil


cdef struct KeyVersion:         # the last record of a key
    int64_t version
    int64_t offset_plus_one     # 0: there is none
    uint64_t event              # hash of its event id; 0: it has none


cdef struct KeyEntry:
    uint64_t hash_high
    uint64_t offset_and_version # offset + 1, and the upper 16 bits of the version; 0: it is free, or
                                # taken and not written yet
    uint32_t version_low        # of a free entry: the number of the next one
    uint32_t hash_low           # 32 bits of it


cdef inline int64_t version_of(const KeyEntry* entry) noexcept nogil:
    return <int64_t>((entry.offset_and_version & 0xFFFF) << 32 | entry.version_low)


cdef inline int64_t offset_plus_one_of(const KeyEntry* entry) noexcept nogil:
    return <int64_t>(entry.offset_and_version >> 16)


cdef inline Hash hash_of(const KeyEntry* entry) noexcept nogil:
    """As many of its bits as an entry has."""
    cdef Hash hash
    hash.low = entry.hash_low
    hash.high = entry.hash_high
    return hash


cdef inline bint fits(const KeyVersion* value) noexcept nogil:
    """Whether an entry has room for the numbers."""
    return (value.version | value.offset_plus_one) >> NUMBER_BITS == 0


cdef int refuse_numbers(const KeyVersion* value) except -1:
    raise OverflowError(f"version {value.version} at offset {value.offset_plus_one - 1}: "
                        "versions and offsets of keys have 48 bits")


cdef class KeyEntries:
    """Entries by number, from 1."""

    cdef KeyEntry** chunks
    cdef uint64_t** events      # of the entries of each chunk; NULL if none of them has one
    cdef uint32_t chunk_count
    cdef uint32_t chunk_room
    cdef uint32_t free_number   # the first of the free entries; 0: there is none
    cdef readonly uint32_t end_number   # of the entries that were ever in use, + 1

    def __cinit__(self, *_, **__):
        self.end_number = 1

    def __dealloc__(self):
        cdef uint32_t chunk
        for chunk in range(self.chunk_count):
            free(self.events[chunk])
            if chunk < SMALL_CHUNKS:
                free(self.chunks[chunk])
            elif (chunk - SMALL_CHUNKS) % BLOCK_CHUNKS == 0:
                unmap_large(self.chunks[chunk], BLOCK_CHUNKS * CHUNK_ENTRIES * sizeof(KeyEntry))
        free(self.chunks)
        free(self.events)

    # Reading and writing

    cdef inline KeyEntry* entry(self, uint32_t number) noexcept nogil:
        return &self.chunks[number >> CHUNK_BITS][number & (CHUNK_ENTRIES - 1)]

    cdef inline uint64_t event_of(self, uint32_t number) noexcept nogil:
        cdef const uint64_t* events = self.events[number >> CHUNK_BITS]
        return events[number & (CHUNK_ENTRIES - 1)] if events != NULL else 0

    cdef inline KeyVersion read(self, uint32_t number) noexcept nogil:
        cdef const KeyEntry* entry = self.entry(number)
        cdef KeyVersion found
        found.version = version_of(entry)
        found.offset_plus_one = offset_plus_one_of(entry)
        found.event = self.event_of(number)
        return found

    cdef inline void write(self, uint32_t number, const KeyVersion* value) noexcept nogil:
        """It `fits`; there is room if it has an event."""
        cdef KeyEntry* entry = self.entry(number)
        cdef uint64_t* events = self.events[number >> CHUNK_BITS]
        entry.offset_and_version = (<uint64_t>value.offset_plus_one << 16
                                    | <uint64_t>value.version >> 32)
        entry.version_low = <uint32_t>value.version
        if events != NULL:
            events[number & (CHUNK_ENTRIES - 1)] = value.event

    cdef int add_events(self, uint32_t number) except -1:
        """Make room for the hash of an entry's event id."""
        cdef uint64_t* events = <uint64_t*>calloc(CHUNK_ENTRIES, sizeof(uint64_t))
        if events == NULL:
            raise MemoryError
        self.events[number >> CHUNK_BITS] = events
        return 0

    cdef inline void fetch_entry(self, uint32_t number) noexcept nogil:
        """Begin to fetch the lines of an entry."""
        cdef const uint64_t* events = self.events[number >> CHUNK_BITS]
        prefetch(self.entry(number))
        if events != NULL:
            prefetch(&events[number & (CHUNK_ENTRIES - 1)])

    cdef inline void fetch_new(self, int32_t count) noexcept nogil:
        """Begin to fetch the lines of the next entries, if they follow each other."""
        cdef const char* at
        cdef const char* end
        if self.free_number or self.end_number >> CHUNK_BITS == self.chunk_count:
            return
        at = <const char*>self.entry(self.end_number)
        count = min(count, <int32_t>(CHUNK_ENTRIES - (self.end_number & (CHUNK_ENTRIES - 1))))
        end = at + count * sizeof(KeyEntry)
        while at < end:
            prefetch(at)
            at += LINE

    # Memory

    cdef inline uint32_t take_number(self, const Hash* hash) except 0:
        """The number of a new entry for a hash. The caller writes it."""
        cdef uint32_t number = self.free_number
        cdef KeyEntry* entry
        if number:
            self.free_number = self.entry(number).version_low
        else:
            number = self.end_number
            if number >> CHUNK_BITS == self.chunk_count:
                self.add_chunk()
            self.end_number += 1
        entry = self.entry(number)
        entry.hash_high = hash.high
        entry.hash_low = <uint32_t>hash.low
        entry.offset_and_version = 0
        entry.version_low = 0  # `note_change` reads it, and would wait for the line
        return number

    cdef void free_entry(self, uint32_t number) noexcept nogil:
        cdef KeyEntry* entry = self.entry(number)
        entry.offset_and_version = 0
        entry.version_low = self.free_number
        self.free_number = number

    cdef int add_chunk(self) except -1:
        cdef KeyEntry* chunk
        if self.chunk_count == self.chunk_room:
            self.add_room()
        if self.chunk_count < SMALL_CHUNKS:
            chunk = <KeyEntry*>malloc(CHUNK_ENTRIES * sizeof(KeyEntry))
        elif (self.chunk_count - SMALL_CHUNKS) % BLOCK_CHUNKS == 0:
            chunk = <KeyEntry*>map_large(BLOCK_CHUNKS * CHUNK_ENTRIES * sizeof(KeyEntry))
        else:
            chunk = self.chunks[self.chunk_count - 1] + CHUNK_ENTRIES
        if chunk == NULL:
            raise MemoryError
        self.chunks[self.chunk_count] = chunk
        self.events[self.chunk_count] = NULL
        self.chunk_count += 1
        return 0

    cdef int add_room(self) except -1:
        cdef uint32_t room = self.chunk_room * 2 + 1
        cdef void* chunks = realloc(self.chunks, room * sizeof(KeyEntry*))
        cdef void* events
        if chunks == NULL:
            raise MemoryError
        self.chunks = <KeyEntry**>chunks
        events = realloc(self.events, room * sizeof(uint64_t*))
        if events == NULL:
            raise MemoryError
        self.events = <uint64_t**>events
        self.chunk_room = room
        return 0
