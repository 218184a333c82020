"""Messages between a broker and its archive process, over a socket pair.

A message is two int32 (big-endian), the sizes of its JSON and of the bytes after it, then those. A
request may bring open files (segments), which stay readable whatever happens to their names.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

_SIZES = struct.Struct(">ii")
FILES_MAX = 64
MESSAGE_BYTES_MAX = 512 * 1024 * 1024


class Message(NamedTuple):
    """`files` are open, and the receiver's to close."""

    fields: dict[str, Any]
    payload: bytes | bytearray = b""
    files: Sequence[int] = ()


def send(channel: socket.socket, message: Message) -> None:
    """Raises `OSError`, as `receive` does, if the other end is gone or too slow."""
    content = json.dumps(message.fields).encode()
    head = _SIZES.pack(len(content), len(message.payload))
    if message.files:
        socket.send_fds(channel, [head], list(message.files))
    else:
        channel.sendall(head)
    channel.sendall(content)
    if message.payload:
        channel.sendall(message.payload)


def receive(channel: socket.socket) -> Message | None:
    """None at the end of the channel."""
    head, files, _, _ = socket.recv_fds(channel, _SIZES.size, FILES_MAX)
    try:
        if not head:
            return None
        head += _receive(channel, _SIZES.size - len(head))
        content_size, payload_size = _SIZES.unpack(head)
        if not (0 <= content_size <= MESSAGE_BYTES_MAX and 0 <= payload_size <= MESSAGE_BYTES_MAX):
            raise OSError(f"a message of {content_size} and {payload_size} bytes")
        fields = json.loads(_receive(channel, content_size))
        return Message(fields, _receive(channel, payload_size), files)
    except BaseException:
        for fd in files:
            os.close(fd)
        raise


def _receive(channel: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view, position = memoryview(content), 0
    while position < size:
        count = channel.recv_into(view[position:])
        if not count:
            raise ConnectionResetError("the channel ended inside a message")
        position += count
    return content
