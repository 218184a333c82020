"""Bytes without their highest bits: what Spark hands to Python quickly.

Spark gives Python a binary value of state as a pickle of text, a letter for each byte. Letters
above 127 take two bytes in UTF-8 and must be looked at one by one: 7 ms per MB on Python's side
alone. Where all are below 128, both sides copy them in one go, in a tenth of the time. So what goes
into Spark's state store has bytes of 7 bits:

    bytes                what
    0 .. n - 1           the lower 7 bits of each of the n bytes
    n .. n + k - 1       the highest bits, k = n / 7, rounded up: bit j of byte i is that of byte
                         j * k + i, for j from 0 to 6

An eighth of the length is added by it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BITS = 7
_LOWER = np.uint8(0x7F)
_HIGHEST = np.uint64(0x8080808080808080)


def to_seven_bits(blob: bytes) -> bytes:
    whole = np.frombuffer(blob, np.uint8)
    step = -(-len(whole) // _BITS)
    part, highest = _words(step), _words(step)
    for bit in range(_BITS):
        given = whole[bit * step : (bit + 1) * step]
        part.view(np.uint8)[: len(given)] = given
        part.view(np.uint8)[len(given) :] = 0
        highest |= (part & _HIGHEST) >> np.uint64(7 - bit)
    return (whole & _LOWER).tobytes() + highest.tobytes()[:step]


def from_seven_bits(blob: bytes) -> bytes:
    encoded = np.frombuffer(blob, np.uint8)
    size = len(encoded) * _BITS // (_BITS + 1)
    whole, highest = encoded[:size].copy(), encoded[size:]
    step = len(highest)
    words = _words(step)
    words.view(np.uint8)[:step] = highest
    for bit in range(_BITS):
        part = whole[bit * step : (bit + 1) * step]
        part |= (words << np.uint64(7 - bit) & _HIGHEST).view(np.uint8)[: len(part)]
    return whole.tobytes()


def _words(size: int) -> npt.NDArray[np.uint64]:
    """Zeros for at least this many bytes: 8 are shifted at once, and none into the byte beside it,
    as only one bit of each counts."""
    return np.zeros(-(-size // 8), np.uint64)
