"""Spark's Python workers, which run one task after another: less work between and in tasks.

After every task, Spark's worker runs `gc.collect()`, which traverses every object of all imported
modules: 50 ms of a core, ten times the time of a small task. `freeze_imports` makes the collector
skip these objects, once everything is imported, and `frozen` those of a large structure that a
task builds for the tasks after it.

A task that reads much allocates and frees megabytes with every fetch. By default glibc may return
them to the system each time, and get them back zeroed, page by page: decoding then takes five times
as long. Whether it does depends on what else is allocated. `keep_memory` makes it keep some memory.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

KEPT_BYTES = 64 * 1024 * 1024
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # glibc's maximum; larger allocations are mapped
# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_frozen: set[str] = set()


def freeze_imports(work: str) -> None:
    """Call it at the end of a task. The first task of each kind of `work` has imported everything
    that this kind needs; the calls after it do nothing."""
    if work in _frozen:
        return
    _frozen.add(work)
    gc.collect()
    gc.freeze()


@contextmanager
def frozen() -> Iterator[None]:
    """Build objects that outlive the task: the collector skips them. Garbage with cycles that is
    there at the end is never freed, so use it for large structures only."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@cache
def keep_memory() -> bool:
    """Make this process keep freed memory, up to a limit; returns whether it does. Call it at the
    start of a task."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc
    return bool(set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    )
