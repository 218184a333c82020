"""Standard deviations from sums, without cancellation.

A deviation is computed from `n * sum(x²) - sum(x)²`. If values are large compared with their
differences (times, counters), nearly all digits of both terms cancel; in doubles all of them, if
values are 10^8 times as large as their differences. So numbers here are pairs of doubles, with
about 100 bits together: squares are split into a double and the remainder, both sums are exact to
that many bits, and so is their difference.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Doubles: TypeAlias = npt.NDArray[np.float64]
Pair: TypeAlias = tuple[Doubles, Doubles]  # a number: the sum of both; the second is the rest

_SPLITTER = 2.0**27 + 1  # cuts the 53 bits of a double in halves


def two_sum(a: Doubles, b: Doubles) -> Pair:
    """The sum, and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Doubles, b: Doubles) -> Pair:
    """The product, and its rounding error."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def squares(values: Doubles) -> Doubles:
    """The square of each value, as two consecutive doubles."""
    return np.stack(two_product(values, values), axis=1).reshape(-1)


def sample_deviations(counts: Doubles, sums: Pair, sums_of_squares: Pair) -> Doubles:
    """Of at least two values; NaN if it is too large for doubles."""
    with np.errstate(invalid="ignore", over="ignore"):
        high, low = two_product(counts, sums_of_squares[0])
        low += counts * sums_of_squares[1]
        square_high, square_low = two_product(sums[0], sums[0])
        square_low += 2 * sums[0] * sums[1]
        total, rest = two_sum(high, -square_high)
        spread = total + (rest + (low - square_low))
        return np.sqrt(np.maximum(spread, 0) / (counts * (counts - 1)))


def _halves(values: Doubles) -> Pair:
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high
