"""Whether a range of a file is in the page cache, so that sending it does not wait for the disk.

`sendfile` has no flag like RWF_NOWAIT of `preadv2`, so the kernel is asked before. mincore(2)
counts only pages that have been read completely: a range whose read-ahead is under way is not
cached. A page can still be evicted between the two calls; then the second waits for that page.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value
_PAGES_MAX = 4096  # a larger range is not looked at

# PyDLL keeps the GIL: these calls take microseconds, and getting it back can take milliseconds.
_libc = ctypes.PyDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
if sys.platform == "linux":
    _libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def is_cached(fd: int, size: int, position: int) -> bool:
    """Whether all of the range is in memory; False if that is not known."""
    start = position - position % mmap.PAGESIZE
    length = position + size - start
    pages = -(-length // mmap.PAGESIZE)
    if sys.platform != "linux" or not 0 < pages <= _PAGES_MAX:
        return False
    address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, start)
    if address is None or address == _FAILED:
        return False
    found = ctypes.create_string_buffer(pages)
    try:
        if _libc.mincore(address, length, found):
            return False
    finally:
        _libc.munmap(address, length)
    return b"\0" not in found.raw
