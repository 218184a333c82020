"""Sums, averages, minima and maxima of groups, from counters or from the values themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.joins.matching import is_last, take_or_null
from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.windows.decimal_sums import (
    DIGITS_MAX,
    average_type,
    decimal_averages,
    decimal_sums,
    sum_type,
)

_BEYOND = float(2**63)


def is_exact(kind: pa.DataType) -> bool:
    """Whether sums of this type have no rounding errors, so that rows can be taken out of them."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal128(kind))


def sums_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a sum is stored."""
    return pa.decimal128(DIGITS_MAX, kind.scale) if pa.types.is_decimal128(kind) else pa.int64()


def result_type(kind: str, of: pa.DataType | None) -> pa.DataType:
    """The type of an aggregate. Raises `ConfigError` if there is none of this column."""
    if of is None or kind in ("count", "distinct"):
        return pa.int64()
    if kind in ("min", "max"):
        if pa.types.is_nested(of):
            raise ConfigError(f"there is no {kind} of {of}")
        return of
    if not is_exact(of) and not pa.types.is_floating(of):
        raise ConfigError(f"there is no {kind} of {of}: cast it to a number")
    if pa.types.is_decimal128(of):
        return sum_type(of) if kind == "sum" else average_type(of)
    return pa.int64() if kind == "sum" and pa.types.is_integer(of) else pa.float64()


def sums_by(values: pa.Array, weights: Numbers, codes: Numbers, count: int) -> pa.Array:
    """The sum of `value * weight` for each code; nulls count as nothing."""
    if pa.types.is_decimal128(values.type):
        return decimal_sums(values, weights, codes, count)
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy()
    sums, about = np.zeros(count, np.int64), np.zeros(count)
    np.add.at(sums, codes, numbers * weights)
    np.add.at(about, codes, numbers.astype(np.float64) * weights)
    if (np.abs(about) >= _BEYOND).any():
        raise OverflowError(
            "a sum is greater than a bigint can hold: cast the column to decimal(38, 0)"
        )
    return pa.array(sums)


def averages_of(sums: pa.Array, counts: Numbers, kind: str, wanted: pa.DataType) -> pa.Array:
    """The sums themselves, or divided by the counts; null where no value counts."""
    is_there = counts > 0
    if kind == "avg" and not pa.types.is_decimal128(sums.type):
        quotients = sums.to_numpy().astype(np.float64) / np.maximum(counts, 1)
        return pa.array(quotients, mask=~is_there)
    if kind == "avg":
        wide = pa.decimal128(DIGITS_MAX, wanted.scale)
        known = decimal_averages(sums.filter(pa.array(is_there)), counts[is_there], wide)
        # Only while removed rows have come and their additions have not, an average may not fit.
        bound = pa.scalar(10 ** (wanted.precision - wanted.scale)).cast(wide)
        known = pc.if_else(pc.less(pc.abs(known), bound), known, pa.scalar(None, wide))
        return take_or_null(known.cast(wanted), np.where(is_there, np.cumsum(is_there) - 1, -1))
    return pc.if_else(pa.array(is_there), sums, pa.scalar(None, sums.type)).cast(wanted)


def float_sums(
    values: pa.Array, weights: Numbers, codes: Numbers, count: int, kind: str
) -> pa.Array:
    """Sums or averages of doubles, always added in the order of the values, so that the same values
    have the same sum, whatever the order in which they came and others went."""
    numbers = values.cast(pa.float64()).to_numpy()
    order = np.argsort(numbers, kind="stable")
    sums, counts = np.zeros(count), np.zeros(count, np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, codes[order], numbers[order] * weights[order])
    np.add.at(counts, codes, weights)
    found = sums / np.maximum(counts, 1) if kind == "avg" else sums
    return pa.array(found, mask=counts <= 0)


def greatest_and_least(values: pa.Array, codes: Numbers, count: int) -> tuple[pa.Array, pa.Array]:
    """Of the values of each code, none of which is null; null for a code without values. NaN is
    greater than all numbers, as in Spark."""
    order = pc.sort_indices(values).to_numpy()
    order = order[np.argsort(codes[order], kind="stable")]
    ends = is_last(codes[order])
    begins = np.roll(ends, 1) if len(ends) else ends
    found = []
    for chosen in (order[ends], order[begins]):
        places = np.full(count, -1, np.int64)
        places[codes[chosen]] = chosen
        found.append(take_or_null(values, places))
    return found[0], found[1]
