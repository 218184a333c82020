"""Positions in the partitions of a topic, as text in an address: `0:17,1:4`.

A page of records merged from many partitions ends at a different offset in each. Its links to older
and newer records contain these offsets: short ones as text that people can read and change, long
ones packed (`~` and base64), so that an address with a thousand partitions stays short enough for
browsers and servers.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Mapping

from millstream.errors import MillstreamError

READABLE_MAX = 16
PARTITIONS_MAX = 4000  # about 32 KB
_PACKED_BYTES_MAX = 256 * 1024
_PACKED = "~"
_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})-([0-9]{1,19})")

Range = tuple[int, int, int]  # partition, first offset, end offset


class BadPosition(MillstreamError):
    """Text that is not a position."""


def encode_positions(offsets: Mapping[int, int]) -> str:
    """The text for an address; empty if there are too many partitions for one."""
    return _encode([f"{partition}:{offset}" for partition, offset in sorted(offsets.items())])


def encode_ranges(ranges: Iterable[Range]) -> str:
    """Ranges of offsets, such as those that a search has not read yet: `0:17-500,1:4-90`."""
    return _encode([f"{partition}:{first}-{end}" for partition, first, end in ranges])


def _encode(parts: list[str]) -> str:
    text = ",".join(parts)
    if len(parts) <= READABLE_MAX:
        return text
    if len(parts) > PARTITIONS_MAX:
        return ""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9))
    return _PACKED + packed.decode().rstrip("=")


def decode_positions(text: str) -> dict[int, int]:
    """Raises `BadPosition`."""
    positions: dict[int, int] = {}
    for part in _parts(text):
        partition, colon, offset = part.partition(":")
        if not colon or not _is_number(partition) or not _is_number(offset):
            raise BadPosition(f"{part[:40]!r} is not a position; write PARTITION:OFFSET, like 0:17")
        positions[int(partition)] = int(offset)
    return positions


def decode_ranges(text: str) -> list[Range]:
    """Raises `BadPosition`."""
    ranges: list[Range] = []
    for part in _parts(text):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise BadPosition(f"{part[:60]!r} is not a range of offsets; write 0:17-500")
        partition, first, end = map(int, found.groups())
        ranges.append((partition, first, end))
    return ranges


def _parts(text: str) -> list[str]:
    return (_unpacked(text[1:]) if text.startswith(_PACKED) else text).split(",")


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
