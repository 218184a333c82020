# Large memory of tables, in huge pages where the system has them. Part of _core.pyx, before
# _key_entries.pxi.
#
# Memory that is touched at random between requests needs a translation of each address, and the
# processor keeps only a few: one for two megabytes instead of four kilobytes saves most of its
# walks through the tables of pages. Linux also fills a huge page with one fault instead of 512.

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __linux__
    #include <stdint.h>
    #include <sys/mman.h>
    #endif

    #define MILLSTREAM_HUGE_PAGE ((size_t)1 << 21)

    /* Zeroed memory; NULL if there is none. `size` is a multiple of a huge page. */
    static void *millstream_map(size_t size) {
    #ifdef __linux__
        size_t before, mapped = size + MILLSTREAM_HUGE_PAGE;
        char *start = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return NULL;
        before = -(uintptr_t)start & (MILLSTREAM_HUGE_PAGE - 1);
        if (before) munmap(start, before);
        munmap(start + before + size, MILLSTREAM_HUGE_PAGE - before);
    #ifdef MADV_HUGEPAGE
        madvise(start + before, size, MADV_HUGEPAGE);
    #endif
        return start + before;
    #else
        return calloc(1, size);
    #endif
    }

    static void millstream_unmap(void *start, size_t size) {
    #ifdef __linux__
        munmap(start, size);
    #else
        free(start);
    #endif
    }
    """
    void* map_large "millstream_map"(size_t size) noexcept nogil
    void unmap_large "millstream_unmap"(void* start, size_t size) noexcept nogil
