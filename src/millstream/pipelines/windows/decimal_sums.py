"""Sums and averages of decimals over ranges of a column, exact, and without a loop over rows.

A decimal128 is an integer of 128 bits with a scale. It is cut into four limbs of 32 bits, which are
summed as integers of 64 bits and carried afterwards. Types are those of Spark: a sum has ten digits
more than what is summed, an average four more after the point, rounded half up; both have at most
38, and a result with more raises `OverflowError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import Numbers

DIGITS_MAX = 38
LIMB_BITS = 32
LIMB = (1 << LIMB_BITS) - 1
_LIMBS = 4
_SIGN = 1 << (LIMB_BITS - 1)


def sum_type(of: pa.Decimal128Type) -> pa.DataType:
    return pa.decimal128(min(of.precision + 10, DIGITS_MAX), of.scale)


def average_type(of: pa.Decimal128Type) -> pa.DataType:
    return pa.decimal128(min(of.precision + 4, DIGITS_MAX), min(of.scale + 4, DIGITS_MAX))


def decimal_totals(values: pa.Array, first: Numbers, end: Numbers) -> pa.Array:
    """The sum of each range of values, none of which is null."""
    sums = []
    for limb in _limbs_of(values):
        running = np.concatenate([[0], np.cumsum(limb)])
        sums.append(running[end] - running[first])
    return _decimals(carry_limbs(sums), sum_type(values.type))


def decimal_sums(values: pa.Array, weights: Numbers, codes: Numbers, count: int) -> pa.Array:
    """The sum of `value * weight` for each code, with all digits; nulls count as nothing."""
    if values.null_count:
        weights = np.where(values.is_valid().to_numpy(zero_copy_only=False), weights, 0)
    sums = []
    for limb in _limbs_of(values):
        total = np.zeros(count, np.int64)
        np.add.at(total, codes, limb * weights)
        sums.append(total)
    return _decimals(carry_limbs(sums), pa.decimal128(DIGITS_MAX, values.type.scale))


def decimal_averages(sums: pa.Array, counts: Numbers, kind: pa.DataType) -> pa.Array:
    """Sums, none of which is null, divided by counts between 1 and 2^32; `kind` is of the result,
    whose scale is that of the sums or greater."""
    limbs = _limbs_of(sums)
    signs = np.where(limbs[-1] < 0, -1, 1)
    shift = 10 ** (kind.scale - sums.type.scale)
    scaled = carry_limbs([limb * signs * shift for limb in limbs])
    divisor = counts.astype(np.uint64)
    rest = np.zeros(len(counts), np.uint64)
    quotient: list[Numbers] = []
    for limb in reversed(scaled):
        digit = (rest << np.uint64(LIMB_BITS)) | limb.astype(np.uint64)
        quotient.append((digit // divisor).astype(np.int64))
        rest = digit % divisor
    quotient.reverse()
    quotient[0] = quotient[0] + (2 * rest >= divisor)
    return _decimals(carry_limbs([limb * signs for limb in carry_limbs(quotient)]), kind)


def _limbs_of(values: pa.Array) -> list[Numbers]:
    """From the lowest; the highest one has the sign."""
    if not len(values):
        return [np.zeros(0, np.int64)] * _LIMBS
    words = np.frombuffer(values.buffers()[1], np.uint32)
    begin = values.offset * _LIMBS
    table = words[begin : begin + len(values) * _LIMBS].reshape(-1, _LIMBS).astype(np.int64)
    table[:, -1] = (table[:, -1] ^ _SIGN) - _SIGN
    return [table[:, place] for place in range(_LIMBS)]


def carry_limbs(limbs: Sequence[Numbers]) -> list[Numbers]:
    """Limbs of `LIMB_BITS` bits, and one more, which is negative if the whole number is."""
    carried = []
    carry: Numbers = np.zeros(len(limbs[0]), np.int64)
    for limb in limbs:
        total = limb + carry
        carry = total >> LIMB_BITS
        carried.append(total & LIMB)
    return [*carried, carry]


def _decimals(limbs: Sequence[Numbers], kind: pa.DataType) -> pa.Array:
    """Limbs that are carried as decimals. Raises `OverflowError` if one does not fit."""
    signs = np.where(limbs[-1] < 0, LIMB, 0)
    is_negative = limbs[_LIMBS - 1] >= _SIGN
    fits = is_negative == (signs != 0)
    for limb in limbs[_LIMBS:-1]:
        fits &= limb == signs
    fits &= limbs[-1] == np.where(signs != 0, -1, 0)
    words = np.stack(limbs[:_LIMBS], axis=1).astype(np.uint32)
    made = pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(words.tobytes())])
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        fits = np.zeros(1, np.bool_)
    if not fits.all():
        raise OverflowError(
            f"a result has more digits than {kind}: cast the column to double, or to a decimal "
            "with fewer digits"
        )
    return made
