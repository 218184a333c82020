"""Positions in the partitions of a topic, as text in an address: `0:17,1:4`.

A page of records merged from many partitions ends at a different offset in each. Its links to older
and newer records contain these offsets: short ones as text that people can read and change, long
ones packed (`~` and base64), so that an address with a thousand partitions stays short enough for
browsers and servers.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping

from millstream.errors import MillstreamError

READABLE_MAX = 16
PARTITIONS_MAX = 4000  # about 32 KB
_PACKED_BYTES_MAX = 64 * 1024
_PACKED = "~"


class BadPosition(MillstreamError):
    """Text that is not a position."""


def encode_positions(offsets: Mapping[int, int]) -> str:
    """The text for an address; empty if there are too many partitions for one."""
    text = ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
    if len(offsets) <= READABLE_MAX:
        return text
    if len(offsets) > PARTITIONS_MAX:
        return ""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9))
    return _PACKED + packed.decode().rstrip("=")


def decode_positions(text: str) -> dict[int, int]:
    """Raises `BadPosition`."""
    if text.startswith(_PACKED):
        text = _unpacked(text[1:])
    positions: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, offset = part.partition(":")
        if not colon or not _is_number(partition) or not _is_number(offset):
            raise BadPosition(f"{part[:40]!r} is not a position; write PARTITION:OFFSET, like 0:17")
        positions[int(partition)] = int(offset)
    return positions


def _unpacked(text: str) -> str:
    unpacker = zlib.decompressobj()
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        found = unpacker.decompress(packed, _PACKED_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise BadPosition("a packed position is too long")
        return found.decode("ascii")
    except (binascii.Error, zlib.error, UnicodeError):
        raise BadPosition(f"{text[:20]!r}... is not a packed position; was it cut?") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19
