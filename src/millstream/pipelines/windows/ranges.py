"""Aggregates over many ranges of one sorted column at once, exact, and without a loop over rows.

A sliding window has a range of rows for every event: `values[first[i] : end[i]]`. All functions
take the column, the ranges' `first` and `end`, and answer one value per range. The ranges overlap,
yet nothing is computed per range and element:

    totals       differences of running sums. Doubles are summed as integers of 32 bits each, at
                 fixed places, so no digit is lost: the sum of a range is the same number whichever
                 rows surround it, and a stream equals a batch to the last bit
    deviations   sums and sums of squares, to twice the digits of a double (moments.py)
    extremes     ranges are covered by two spans whose length is a power of two
                 (what is not a number, by its rank)
    percentiles  by halving the values' ranks bit by bit (a wavelet matrix)
    distinct     values whose last occurrence is before the range, counted in the same way
    decimals     as integers of 128 bits (decimal_sums.py)

Nulls take no part; a range without values has no result (null), except that its count is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.state.tables import expand
from millstream.pipelines.windows.decimal_sums import (
    LIMB,
    LIMB_BITS,
    average_type,
    carry_limbs,
    decimal_averages,
    decimal_totals,
    sum_type,
)
from millstream.pipelines.windows.moments import (
    Doubles,
    Pair,
    sample_deviations,
    squares,
    two_sum,
)

Mask: TypeAlias = npt.NDArray[np.bool_]

_MANTISSA_BITS = 53
_SAFE_MAX = 2**62
_SQUARE_MAX = 2.0**500
DISTINCT = "distinct"
_ORDERED = (pa.types.is_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_temporal)
_SHORT_RANGES = 16  # elements per range, up to which sorting them all is quicker


def sort_rows(codes: Numbers, times: Numbers) -> Numbers:
    """The order by code, then time; rows with both the same come in any order."""
    if not len(codes):
        return np.zeros(0, np.int64)
    first_us = int(times.min())
    span = int(times.max()) - first_us + 1
    if span * (int(codes.max()) + 1) >= _SAFE_MAX:
        return np.lexsort((times, codes))
    return np.argsort(codes * span + (times - first_us))  # one sort instead of two


def window_bounds(
    codes: Numbers, times: Numbers, interval_us: int, *, preceding: bool = False
) -> tuple[Numbers, Numbers]:
    """Of rows sorted by code and time, for each: the rows of its code from `time - interval_us`
    to `time`, both included, as `first` and `end`; `preceding`: without those at `time`."""
    if not len(codes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # One line of time for all codes, on which whatever is further apart than the interval is just
    # that, and two codes are too.
    steps = np.minimum(np.diff(times), interval_us + 1)
    steps[codes[1:] != codes[:-1]] = interval_us + 1
    if steps.sum(dtype=np.float64) >= _SAFE_MAX:
        return _bounds_by_code(codes, times, interval_us, preceding)
    line = np.concatenate([[0], np.cumsum(steps)])
    end = np.searchsorted(line, line, side="left" if preceding else "right")
    return np.searchsorted(line, line - interval_us), end


def _bounds_by_code(
    codes: Numbers, times: Numbers, interval_us: int, preceding: bool
) -> tuple[Numbers, Numbers]:
    """For months of a million codes, whose line would leave 64 bits: code by code."""
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    parts = []
    for begin, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        own = times[begin:end]
        first = np.searchsorted(own, own - interval_us)
        last = np.searchsorted(own, own, side="left" if preceding else "right")
        parts.append((first + begin, last + begin))
    return np.concatenate([it[0] for it in parts]), np.concatenate([it[1] for it in parts])


def narrow(is_member: Mask, first: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """The same ranges over the members alone."""
    members_before = np.concatenate([[0], np.cumsum(is_member)])
    return members_before[first], members_before[end]


def aggregate(
    kind: str, values: pa.Array, first: Numbers, end: Numbers, fraction: float = 0.5
) -> pa.Array:
    """`kind` is count, distinct, sum, total (a sum that is a double), avg, stddev, min, max,
    percentile or collect; see `result_type`."""
    if values.null_count:
        is_member = values.is_valid().to_numpy(zero_copy_only=False)
        first, end = narrow(is_member, first, end)
        values = values.drop_null()
    counts = end - first
    if kind == "count":
        return pa.array(counts)
    if kind == "collect":
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, values.take(pa.array(expand(first, counts))))
    if kind == DISTINCT:
        return pa.array(distinct_counts(values, first, end))
    is_empty = counts < 2 if kind == "stddev" else counts == 0
    first, end = first[~is_empty], end[~is_empty]
    return _spread(_of_members(kind, values, first, end, fraction), is_empty)


def _of_members(
    kind: str, values: pa.Array, first: Numbers, end: Numbers, fraction: float
) -> pa.Array:
    """The aggregates of ranges that are not empty, over values that are not null."""
    of = values.type
    if kind in ("min", "max"):
        return _best(values, first, end, largest=kind == "max")
    if pa.types.is_decimal128(of):
        if kind in ("sum", "avg"):
            sums = decimal_totals(values, first, end)
            is_sum = kind == "sum"
            return sums if is_sum else decimal_averages(sums, end - first, average_type(of))
        values = values.cast(pa.float64())
    numbers = values.to_numpy()
    if kind == "sum":
        found = totals(numbers, first, end)
    elif kind == "total":
        found = double_totals(numbers, first, end)
    elif kind == "avg":
        found = double_totals(numbers, first, end) / (end - first)
    elif kind == "stddev":
        found = deviations(numbers.astype(np.float64), first, end)
    else:
        found = percentiles(numbers.astype(np.float64), first, end, fraction)
    return pa.array(found, result_type(kind, of))


def result_type(kind: str, of: pa.DataType) -> pa.DataType:
    """As Spark has it; raises `TypeError` where there is nothing to compute with."""
    if kind in ("count", DISTINCT):
        return pa.int64()
    if kind == "collect":
        return pa.list_(of)
    is_decimal = pa.types.is_decimal128(of)
    is_number = pa.types.is_integer(of) or pa.types.is_floating(of) or is_decimal
    if kind in ("min", "max"):
        if not (is_number or any(is_kind(of) for is_kind in _ORDERED)):
            raise TypeError(f"{kind} of {of}")
        return of
    if not is_number:
        raise TypeError(f"{kind} of {of}")
    if is_decimal and kind in ("sum", "avg"):
        return sum_type(of) if kind == "sum" else average_type(of)
    if kind in ("total", "avg", "stddev", "percentile"):
        return pa.float64()
    return pa.int64() if pa.types.is_integer(of) else pa.float64()


def totals(values: npt.NDArray[Any], first: Numbers, end: Numbers) -> npt.NDArray[Any]:
    if not np.issubdtype(values.dtype, np.floating):
        return _integer_totals(values.astype(np.int64), first, end)
    doubles = values.astype(np.float64)
    is_finite = np.isfinite(doubles)
    if is_finite.all():
        return _finite_totals(doubles, first, end)
    sums = _finite_totals(doubles[is_finite], *narrow(is_finite, first, end))
    for special in (np.isposinf(doubles), np.isneginf(doubles), np.isnan(doubles)):
        begin, stop = narrow(special, first, end)
        with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, as it should be
            sums[stop > begin] += doubles[special][0] if special.any() else 0.0
    return sums


def double_totals(values: npt.NDArray[Any], first: Numbers, end: Numbers) -> Doubles:
    """Sums as doubles, as Spark has them under an average: those of whole numbers may leave 64
    bits. Halves of 32 bits are summed exactly, so rounding knows nothing of rows around a range."""
    if np.issubdtype(values.dtype, np.floating):
        return totals(values, first, end)
    whole = values.astype(np.int64)
    high = _integer_totals(whole >> LIMB_BITS, first, end)
    low = _integer_totals(whole & LIMB, first, end)
    return np.ldexp(high.astype(np.float64), LIMB_BITS) + low


def _integer_totals(values: Numbers, first: Numbers, end: Numbers) -> Numbers:
    running = np.concatenate([[0], np.cumsum(values)])  # wraps, and so do the differences: exact
    sums: Numbers = running[end] - running[first]
    largest = int(np.abs(values.astype(np.float64)).max(initial=0))
    if len(first) and largest * int((end - first).max()) >= 2**63:
        about = np.concatenate([[0.0], np.cumsum(values.astype(np.float64))])
        if (np.abs(about[end] - about[first] - sums) > 2.0**62).any():
            raise OverflowError(
                "a sum of whole numbers leaves 64 bits: cast the column to double to sum it"
            )
    return sums


def deviations(values: Doubles, first: Numbers, end: Numbers) -> Doubles:
    """Of a sample, as Spark's `stddev`; NaN where a value is not finite, or its square is not."""
    is_finite = np.abs(values) < _SQUARE_MAX
    begin, stop = narrow(is_finite, first, end)
    finite = values[is_finite]
    found = sample_deviations(
        np.maximum(stop - begin, 2).astype(np.float64),
        _finite_pairs(finite, begin, stop),
        _finite_pairs(squares(finite), 2 * begin, 2 * stop),
    )
    found[stop - begin < end - first] = np.nan
    return found


def _finite_totals(values: Doubles, first: Numbers, end: Numbers) -> Doubles:
    high, low = _finite_pairs(values, first, end)
    return high + low


def _finite_pairs(values: Doubles, first: Numbers, end: Numbers) -> Pair:
    """Sums as two doubles each, the second being what does not fit into the first.

    Limbs are summed as integers, carried, and added up from the highest. A negative sum is added up
    as its magnitude: to borrow would fill all limbs up to the highest that any other range has,
    which may be none that a double reaches. A sum that no double reaches is infinite."""
    if not len(values):
        return np.zeros(len(first)), np.zeros(len(first))
    lowest, limbs = _limb_totals(values, first, end)
    signs = np.where(carry_limbs(limbs)[-1] < 0, -1, 1)
    sums: Doubles = np.zeros(len(first))
    rests: Doubles = np.zeros(len(first))
    magnitudes = carry_limbs([limb * signs for limb in limbs])
    with np.errstate(over="ignore", invalid="ignore"):
        for place, limb in reversed(list(enumerate(magnitudes, start=lowest))):
            sums, rest = two_sum(sums, np.ldexp(limb.astype(np.float64), place * LIMB_BITS))
            rests += rest
    return sums * signs, np.where(np.isfinite(sums), rests, 0) * signs


def _limb_totals(values: Doubles, first: Numbers, end: Numbers) -> tuple[int, list[Numbers]]:
    """The place of the lowest limb, and the sums of limbs from there on, not carried yet.

    Each double is an integer of 53 bits at a place; cut at multiples of 32 bits it falls into
    three limbs."""
    fractions, exponents = np.frexp(values)
    mantissas = (fractions * 2.0**_MANTISSA_BITS).astype(np.int64)
    places, shifts = np.divmod(exponents.astype(np.int64) - _MANTISSA_BITS, LIMB_BITS)
    places[mantissas == 0] = places.max()
    low = (mantissas & LIMB) << shifts
    high = (mantissas >> LIMB_BITS) << shifts
    pieces = (low & LIMB, (low >> LIMB_BITS) + (high & LIMB), high >> LIMB_BITS)
    lowest, highest = int(places.min()), int(places.max()) + 2
    limbs: list[Numbers] = []
    for place in range(lowest, highest + 1):
        part = sum(np.where(places + i == place, piece, 0) for i, piece in enumerate(pieces))
        running = np.concatenate([[0], np.cumsum(part)])
        limbs.append(running[end] - running[first])
    return lowest, limbs


def _best(values: pa.Array, first: Numbers, end: Numbers, *, largest: bool) -> pa.Array:
    """The least or the greatest value of each range, of any type that has an order."""
    of = values.type
    if pa.types.is_integer(of) or pa.types.is_floating(of):
        return pa.array(extremes(values.to_numpy(), first, end, largest=largest), of)
    if pa.types.is_timestamp(of):
        times = values.view(pa.int64()).to_numpy()
        return pa.array(extremes(times, first, end, largest=largest)).view(of)
    order = pc.array_sort_indices(values).to_numpy().astype(np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return values.take(pa.array(order[extremes(ranks, first, end, largest=largest)]))


def distinct_counts(values: pa.Array, first: Numbers, end: Numbers) -> Numbers:
    """How many different values each range has: a value counts where it has not been before, in the
    range."""
    if pa.types.is_floating(values.type):
        values = pa.array(values.to_numpy() + 0.0)  # 0.0 and -0.0 are one value
    codes = values.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    is_same = codes[order[1:]] == codes[order[:-1]]
    after_last = np.zeros(len(codes), np.int64)  # the place after the one that had the value before
    after_last[order[1:][is_same]] = order[:-1][is_same] + 1
    return count_below(after_last, first, end, first + 1)


def count_below(ranks: Numbers, first: Numbers, end: Numbers, bounds: Numbers) -> Numbers:
    """How many of each range are less than its bound, by the bits of the ranks from the highest on,
    as in `halved_ranks`."""
    counts = np.zeros(len(first), np.int64)
    highest = max(int(ranks.max(initial=0)), int(bounds.max(initial=0)))
    for bit in reversed(range(highest.bit_length())):
        is_one = (ranks >> bit) & 1
        zeros_before = np.concatenate([[0], np.cumsum(1 - is_one)])
        first_zero, end_zero = zeros_before[first], zeros_before[end]
        goes_right = (bounds >> bit) & 1 == 1
        counts += np.where(goes_right, end_zero - first_zero, 0)
        first = np.where(goes_right, zeros_before[-1] + first - first_zero, first_zero)
        end = np.where(goes_right, zeros_before[-1] + end - end_zero, end_zero)
        ranks = np.concatenate([ranks[is_one == 0], ranks[is_one == 1]])
    return counts


def extremes(
    values: npt.NDArray[Any], first: Numbers, end: Numbers, *, largest: bool
) -> npt.NDArray[Any]:
    """Spark's order: NaN is greater than all numbers."""
    is_double = np.issubdtype(values.dtype, np.floating)
    better = np.maximum if largest else np.fmin if is_double else np.minimum
    found = np.empty(len(first), values.dtype)
    levels = np.frexp((end - first).astype(np.float64))[1] - 1
    spans = values  # the best of 2^level values from each place on
    for level in range(int(levels.max(initial=-1)) + 1):
        length = 1 << level
        here = levels == level
        found[here] = better(spans[first[here]], spans[end[here] - length])
        spans = better(spans[:-length], spans[length:])
    return found


def percentiles(values: Doubles, first: Numbers, end: Numbers, fraction: float) -> Doubles:
    """As Spark's `percentile`: between the two values next to the place, in proportion."""
    places = (end - first - 1) * fraction
    below = np.floor(places)
    above = np.ceil(places)
    distinct, ranks = np.unique(values, return_inverse=True)
    are_short = int((end - first).sum()) <= _SHORT_RANGES * len(values)
    nth_ranks = sorted_ranks if are_short else halved_ranks
    lower, upper = (distinct[found] for found in nth_ranks(ranks, first, end, [below, above]))
    between = (above - places) * lower + (places - below) * upper
    return np.where(below == above, lower, between)


def sorted_ranks(
    ranks: Numbers, first: Numbers, end: Numbers, places: Sequence[Doubles]
) -> list[Numbers]:
    """The smallest but `place` of each range, by sorting every range: quick for short ones."""
    lengths = end - first
    starts = np.cumsum(lengths) - lengths
    ranges = np.repeat(np.arange(len(first)), lengths) << LIMB_BITS
    ordered = np.sort(ranges | ranks[expand(first, lengths)])
    return [ordered[starts + place.astype(np.int64)] & LIMB for place in places]


def halved_ranks(
    ranks: Numbers, first: Numbers, end: Numbers, places: Sequence[Doubles]
) -> list[Numbers]:
    """The same for ranges of any length, by the ranks' bits from the highest on: those with a zero
    go to the left half, those with a one to the right, and the ranges with them."""
    count = len(places)
    nth = np.concatenate([place.astype(np.int64) for place in places])
    first, end = np.tile(first, count), np.tile(end, count)
    found = np.zeros(len(nth), np.int64)
    for bit in reversed(range(int(ranks.max(initial=0)).bit_length())):
        is_one = (ranks >> bit) & 1
        zeros_before = np.concatenate([[0], np.cumsum(1 - is_one)])
        first_zero, end_zero = zeros_before[first], zeros_before[end]
        zero_count = end_zero - first_zero
        goes_right = nth >= zero_count
        found |= goes_right.astype(np.int64) << bit
        nth = np.where(goes_right, nth - zero_count, nth)
        first = np.where(goes_right, zeros_before[-1] + first - first_zero, first_zero)
        end = np.where(goes_right, zeros_before[-1] + end - end_zero, end_zero)
        ranks = np.concatenate([ranks[is_one == 0], ranks[is_one == 1]])
    return np.split(found, count)


def _spread(found: pa.Array, is_empty: Mask) -> pa.Array:
    """Put results in the places that are not empty, and nulls in those that are."""
    if not is_empty.any():
        return found
    places = pa.array(np.cumsum(~is_empty) - 1, mask=is_empty)
    return pc.take(found, places)
