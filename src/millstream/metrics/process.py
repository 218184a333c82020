"""Metrics of this process, from /proc: memory, files, CPU and disk.

`read` reads files, so call it in a thread. Without /proc (macOS), only the CPU time is known.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from millstream.metrics.exposition import Family, counter, gauge

_PROC = Path("/proc/self")
_STARTED = time.time()


class ProcessState(NamedTuple):
    """None: not known on this system."""

    cpu_seconds: float
    resident_bytes: int | None = None
    virtual_bytes: int | None = None
    open_fds: int | None = None
    max_fds: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None


def read() -> ProcessState:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    state = ProcessState(usage.ru_utime + usage.ru_stime)
    with suppress(OSError, ValueError):
        pages = (_PROC / "statm").read_text().split()
        size = os.sysconf("SC_PAGE_SIZE")
        state = state._replace(
            resident_bytes=int(pages[1]) * size, virtual_bytes=int(pages[0]) * size
        )
    with suppress(OSError):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The directory that lists them is open, too.
        state = state._replace(open_fds=len(list((_PROC / "fd").iterdir())) - 1, max_fds=soft)
    with suppress(OSError, ValueError):
        lines = (_PROC / "io").read_text().splitlines()
        io = {name: int(value) for name, value in (line.split(": ") for line in lines)}
        state = state._replace(
            disk_read_bytes=io["read_bytes"], disk_written_bytes=io["write_bytes"]
        )
    return state


def families(state: ProcessState) -> Iterator[Family]:
    """The names of Prometheus' client libraries."""
    yield counter(
        "process_cpu_seconds_total", "CPU time of this process, in seconds.", state.cpu_seconds
    )
    yield gauge("process_start_time_seconds", "When this process started, in Unix time.", _STARTED)
    described = (
        ("process_resident_memory_bytes", "Memory of this process.", state.resident_bytes),
        ("process_virtual_memory_bytes", "Address space of this process.", state.virtual_bytes),
        ("process_open_fds", "Open files and sockets.", state.open_fds),
        ("process_max_fds", "Limit of open files and sockets.", state.max_fds),
    )
    for name, help, value in described:
        if value is not None:
            yield gauge(name, help, value)
