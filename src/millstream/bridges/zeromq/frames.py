"""Messages as frames.

    numbered    header, key, value: from a bridge. The header has a mark, flags, the sender's id and
                the message's number, so that a receiver sees what is missing.
    heartbeat   a header alone: its number is that of the next message
    foreign     anything else. One frame is the value; of two, the first is the key, as PUB sockets
                send what they are subscribed by; frames between them are kept in order.

Numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

MARK = b"MSQ1"
HEADER = struct.Struct(">4sB16sQ")
SENDER_BYTES = 16
FRAMES_MAX = 64
_HAS_KEY, _HAS_VALUE, _HEARTBEAT = 1, 2, 4


class BadMessage(ValueError):
    """Frames that are no message; the text is the reason, for metrics."""


class Numbered(NamedTuple):
    """A message of a bridge."""

    sender: bytes
    number: int
    key: bytes | None
    value: bytes | None


class Heartbeat(NamedTuple):
    """What a bridge sends when it has nothing to send."""

    sender: bytes
    next: int


class Foreign(NamedTuple):
    """A message of anything else: nobody knows what is missing before it."""

    key: bytes | None
    value: bytes
    between: tuple[bytes, ...] = ()


def encode_numbered(message: Numbered) -> list[bytes]:
    flags = _HAS_KEY * (message.key is not None) | _HAS_VALUE * (message.value is not None)
    header = HEADER.pack(MARK, flags, message.sender, message.number)
    return [header, message.key or b"", message.value or b""]


def encode_heartbeat(heartbeat: Heartbeat) -> list[bytes]:
    return [HEADER.pack(MARK, _HEARTBEAT, heartbeat.sender, heartbeat.next)]


def encode_foreign(key: bytes | None, value: bytes | None) -> list[bytes]:
    """For receivers that expect no header."""
    return [key or b"", value or b""]


def parse_frames(frames: Sequence[bytes]) -> Numbered | Heartbeat | Foreign:
    """Raises `BadMessage`."""
    if not 0 < len(frames) <= FRAMES_MAX:
        raise BadMessage("too many frames")
    first = frames[0]
    if len(first) == HEADER.size and first.startswith(MARK):
        _, flags, sender, number = HEADER.unpack(first)
        if flags == _HEARTBEAT and len(frames) == 1:
            return Heartbeat(sender, number)
        if flags <= _HAS_KEY | _HAS_VALUE and len(frames) == 3:
            key = frames[1] if flags & _HAS_KEY else None
            return Numbered(sender, number, key, frames[2] if flags & _HAS_VALUE else None)
        raise BadMessage("bad header")
    if len(frames) == 1:
        return Foreign(None, first)
    return Foreign(first, frames[-1], tuple(frames[1:-1]))
