"""Spark's Python workers, which run one task after another: less work before, between and in tasks.

Workers are forked from a daemon. What it has imported (`preload`) is there in all of them.

After every task, Spark's worker runs `gc.collect()`, which traverses every object of all imported
modules: 50 ms of a core, ten times the time of a small task. `freeze_imports` makes the collector
skip these objects, once everything is imported, and `frozen` those of a large structure that a
task builds for the tasks after it.

A task that reads much allocates and frees megabytes with every fetch. By default glibc may return
them to the system each time, and get them back zeroed, page by page: decoding then takes five times
as long. Whether it does depends on what else is allocated. `keep_memory` makes it keep some memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

KEPT_BYTES = 64 * 1024 * 1024
MAPPED_BYTES_MIN = 32 * 1024 * 1024  # glibc's maximum; larger allocations are mapped
# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_frozen: set[str] = set()


def preload(*modules: str) -> None:
    """Import what is installed, in a process from which workers are forked. An import that fails
    here fails again in its task."""
    # Spark reads the daemon's port from standard output.
    with contextlib.redirect_stdout(sys.stderr):
        for name in modules:
            with contextlib.suppress(Exception):
                import_module(name)
    if "numpy.random" in sys.modules:  # else all workers draw the same numbers
        os.register_at_fork(after_in_child=import_module("numpy.random").seed)
    gc.collect()
    gc.freeze()


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
