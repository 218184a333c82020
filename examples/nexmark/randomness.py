"""Random numbers that belong to an event's number, not to the order in which they are drawn.

SplitMix64 (Steele, Lea and Flood, 2014) run as a function: the word of number n in a stream is the
n-th output of the generator that starts at the stream's key. 64 bits suffice for several small
draws, so an event takes few words; `field_of` cuts them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POOL = 1 << 14
_TEXT_LETTERS = 1 << 18
SPECIAL_EVERY = 13  # one letter in so many is the special one


def words(seed: int, stream: str, numbers: Numbers) -> Words:
    """64 random bits for each number, others in each stream."""
    mixed: Words = numbers.astype(np.uint64)
    mixed *= _GOLDEN
    mixed += _key(seed, stream)
    return _mix(mixed)


def field_of(drawn: Words, first_bit: int, bits: int, bound: int | Numbers) -> Numbers:
    """A number below the bound, from `bits` bits (at most 32) of each word."""
    picked = (drawn >> np.uint64(first_bit)) & np.uint64((1 << bits) - 1)
    scaled = picked.astype(np.int64)
    scaled *= bound
    scaled >>= bits
    return scaled


def fraction_of(drawn: Words) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A fraction from 0 to below 1, from the upper 53 bits of each word."""
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Texts:
    """Random texts of small letters, cut from one long one."""

    def __init__(self, seed: int, special: str = "") -> None:
        self._seed = seed
        drawn = words(seed, f"letters {special}", np.arange(_TEXT_LETTERS))
        letters = field_of(drawn, 0, 32, 26) + ord("a")
        if special:
            letters[field_of(drawn, 32, 32, SPECIAL_EVERY) == 0] = ord(special)
        self._text = letters.astype(np.uint8).tobytes().decode()

    def pool(self, name: str, shortest: int, longest: int, count: int = _POOL) -> list[str]:
        """So many texts with lengths from `shortest` to `longest`, before blanks are trimmed."""
        drawn = words(self._seed, f"pool {name}", np.arange(count))
        lengths = shortest + field_of(drawn, 0, 32, longest - shortest + 1)
        starts = field_of(drawn, 32, 32, _TEXT_LETTERS - longest)
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        return [self._text[start : start + length].strip() for start, length in spans]


def _key(seed: int, stream: str) -> np.uint64:
    """Where the stream's generator starts."""
    mask = (1 << 64) - 1
    folded = seed & mask
    for byte in stream.encode():
        folded = (folded * 1099511628211 ^ byte) & mask  # FNV's step, so that names differ
        folded ^= folded >> 29
    return np.uint64(_mix(np.array([folded], np.uint64))[0])


def _mix(mixed: Words) -> Words:
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
