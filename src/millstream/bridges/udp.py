"""UDP sockets: how much the kernel keeps for one, and what it dropped."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
_DROPS = 8  # the ninth number


def grow_buffer(opened: socket.socket, size_bytes: int) -> int:
    """Ask for a receive buffer; returns what the kernel gives. It gives more than net.core.rmem_max
    only to root."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size_bytes)
        return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # it doubles them
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def kernel_drops(opened: socket.socket) -> int | None:
    """Packets that the kernel dropped for this socket, or None if it does not tell."""
    if sys.platform != "linux":
        return None
    found = struct.unpack("9I", opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
    return int(found[_DROPS])
