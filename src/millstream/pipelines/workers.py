"""Spark's Python workers, which serve one task after another, and how to make them quick at it.

After every task Spark's worker runs `gc.collect()`, which looks at every object of all imported
modules: 50 ms of a core, ten times what a small task takes. `settle` puts those objects out of the
collector's sight, once they are all there.

A task that reads much allocates and frees megabytes with every fetch. By default glibc may give
them back to the system each time, and get them again zeroed, page by page: where it does, decoding
takes five times as long. Whether it does depends on what else is allocated; `keep_memory` has it
keep some.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache

KEPT_BYTES = 64 * 1024 * 1024
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # the most that glibc takes: from there on memory is mapped
# glibc's names for what mallopt may set.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_settled: set[str] = set()


def settle(work: str) -> None:
    """Call it at the end of a task; the first of each kind of `work` imports what all need."""
    if work in _settled:
        return
    _settled.add(work)
    gc.collect()
    gc.freeze()


@cache
def keep_memory() -> bool:
    """Whether this process keeps what it frees, up to a limit; call it at the start of a task."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc: its own rules are as good
    return bool(set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    )
