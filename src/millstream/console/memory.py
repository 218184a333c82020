"""Memory of a console beside a broker, which is measured in few megabytes: settings of glibc's
allocator. They do nothing elsewhere."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # of mallopt(3)
ARENAS_MAX = 2


def share_arenas() -> None:
    """Let new threads use the arenas that are there: each would get one of its own, in which
    pieces stay free that no other thread uses."""
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(_M_ARENA_MAX, ARENAS_MAX)


def give_back() -> None:
    """Return to the system what importing pages freed."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), name, None)
