"""Keys: which bucket they belong to, and which rows have the same one.

A key is one or more columns of any type that Spark groups by. Its hash has 64 bits and depends on
the values alone; it is computed column by column, without a loop over rows. It is part of the state
format: **it never changes** (tests have known values), because it determines the bucket of a key.

    null                    a constant
    boolean, integer, date, timestamp, ...    mix(the value as 64 bits), of any width
    float, double           mix(the bits of the double); -0.0 is 0.0, and there is one NaN
    decimal                 both halves of the 128 bits, combined
    string, binary          FNV-like over words of 8 bytes (the last one padded with zeros), then
                            the length; for values longer than 256 bytes, BLAKE2b's first 8 bytes
    struct, array           the hashes of the elements, combined

`mix` is the finaliser of SplitMix64; `combine(a, b) = mix(a * 31 + b)`.

Two keys may share a hash. So a hash only narrows the search, and `key_codes` compares the keys
themselves: equal as in Spark's GROUP BY, where nulls are equal and NaNs are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError

Hashes: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Value = TypeVar("Value", bound=np.generic)

HASH = "_hash"
HASH_FIELD = pa.field(HASH, pa.uint64(), nullable=False)
_NULL = np.uint64(0x9E3779B97F4A7C15)
_WORD_PRIME = np.uint64(0x100000001B3)
_THIRTY_ONE = np.uint64(31)
_LONG_BYTES = 256
_WORD = 0xFFFFFFFF
BUCKETS_MAX = 2**16


def with_hash(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The rows with the hash of their key as the first column."""
    hashes = key_hashes([rows.column(name) for name in keys], rows.num_rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(hashes), *rows.columns], schema=pa.schema([HASH_FIELD, *rows.schema])
    )


def key_hashes(columns: Sequence[pa.Array], row_count: int) -> Hashes:
    hashes = np.zeros(row_count, np.uint64)
    for column in columns:
        hashes = _combine(hashes, _hash_column(column))
    return hashes


def check_buckets(buckets: object) -> None:
    """Raises `ConfigError` unless state can be divided into so many buckets."""
    if not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets <= BUCKETS_MAX:
        raise ConfigError(f"buckets={buckets!r}: it must be an integer between 1 and {BUCKETS_MAX}")


def buckets_of(hashes: Hashes, bucket_count: int) -> npt.NDArray[np.uint16]:
    return (hashes % np.uint64(bucket_count)).astype(np.uint16)


def split_by_bucket(
    rows: pa.RecordBatch, bucket_count: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each bucket that has rows, and its rows with their hash: nearly in the order of their hashes,
    and of one hash in the order in which they were, so that later sorts have little left to do."""
    hashes = rows.column(HASH).to_numpy()
    free_bits = 16 - (bucket_count - 1).bit_length()  # numpy sorts 16 bits by radix
    places = buckets_of(hashes, bucket_count) << np.uint16(free_bits)
    if free_bits:
        places |= (hashes >> np.uint64(64 - free_bits)).astype(np.uint16)
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order] >> np.uint16(free_bits), np.arange(bucket_count + 1))
    rows = rows.take(pa.array(order))
    for bucket, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            yield bucket, rows.slice(begin, end - begin)


def distinct(values: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """The distinct values in order. `np.unique` hashes them, which takes ten times as long."""
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def sorted_order(codes: Numbers, *ranks: Numbers) -> Numbers:
    """The stable order by these numbers, the most important first. Rows of a code mostly have the
    right order already: they are only sorted again if they do not."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_tied = ordered[1:] == ordered[:-1]
    for values in ranks:
        ordered = values[order]
        if (is_tied & (ordered[1:] < ordered[:-1])).any():
            return np.lexsort((*reversed(ranks), codes))
        is_tied &= ordered[1:] == ordered[:-1]
    return order


@cache
def bucket_labels(bucket_count: int) -> tuple[int, ...]:
    """The integers that represent the buckets in Spark's shuffle.

    Spark hashes the integer. These are the smallest whose hashes are spread evenly: with as many
    shuffle partitions as buckets, each partition gets one bucket; with half as many, two.
    """
    labels: dict[int, int] = {}
    for label in count():
        labels.setdefault(_spark_hash(label) % bucket_count, label)
        if len(labels) == bucket_count:
            return tuple(labels[bucket] for bucket in range(bucket_count))
    raise AssertionError("unreachable: the integers do not end")


def _spark_hash(value: int) -> int:
    """Spark's hash of an `int` column: Murmur3 (x86, 32 bits) with seed 42, as unsigned."""
    block = _rotated(value * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    mixed = (_rotated(42 ^ block, 13) * 5 + 0xE6546B64 & _WORD) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _WORD
    return mixed ^ mixed >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD


def key_codes(rows: pa.RecordBatch, keys: Sequence[str]) -> Numbers:
    """A number for each row, from 0: the same number for the same key, and for no other."""
    hashes = rows.column(HASH).to_numpy()
    order = np.argsort(hashes, kind="stable")
    if not rows.num_rows:
        return order
    ordered = hashes[order]
    is_new = ordered[1:] != ordered[:-1]
    codes = np.empty(rows.num_rows, np.int64)
    codes[order] = np.concatenate([[0], np.cumsum(is_new)])
    columns = [rows.column(name) for name in keys]
    alike = np.flatnonzero(~is_new)
    differs = ~equal_keys(columns, order[1:][alike], columns, order[:-1][alike])
    if differs.any():
        _split_collisions(codes, distinct(ordered[1:][alike[differs]]), hashes, columns)
    return codes


def first_rows(codes: Numbers) -> Numbers:
    """The index of the first row of each code, for codes of `key_codes`."""
    firsts = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]  # of equal codes, the last assignment counts
    return firsts


def bounds_of(codes: Numbers, count: int) -> Numbers:
    """Where the rows of each of `count` codes begin, and the end, if they are in order."""
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=count), out=bounds[1:])
    return bounds


def _split_collisions(
    codes: Numbers, shared: Hashes, hashes: Hashes, columns: Sequence[pa.Array]
) -> None:
    """Give keys that share a hash different numbers. Row by row, because it is very rare."""
    numbers: dict[Any, int] = {}
    for row in np.flatnonzero(np.isin(hashes, shared)):
        key = tuple(_comparable(column[row].as_py()) for column in columns)
        codes[row] = numbers.setdefault(key, len(codes) + len(numbers))
    _, codes[:] = np.unique(codes, return_inverse=True)


def equal_keys(
    left: Sequence[pa.Array], left_rows: Numbers, right: Sequence[pa.Array], right_rows: Numbers
) -> npt.NDArray[np.bool_]:
    """Row by row, whether two keys are the same."""
    equal = np.ones(len(left_rows), np.bool_)
    for a, b in zip(left, right, strict=True):
        equal &= _equal(a.take(pa.array(left_rows)), b.take(pa.array(right_rows)))
    return equal


def _equal(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(a.type):
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return np.array([_comparable(x) == _comparable(y) for x, y in pairs], np.bool_)
    equal = pc.equal(a, b)
    if pa.types.is_floating(a.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    if a.null_count or b.null_count:
        equal = pc.if_else(equal.is_valid(), equal, pc.and_(a.is_null(), b.is_null()))
    result: npt.NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
    return result


def _comparable(value: Any) -> Any:
    """A value that can be compared and used as a key of a dict; NaN is equal to NaN."""
    if isinstance(value, dict):
        return tuple((name, _comparable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, float) and value != value:
        return "NaN", None
    return value


def _hash_column(column: pa.Array) -> Hashes:
    hashes = _hash_values(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _hash_values(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL)
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan
        return _mix(numbers.view(np.uint64))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        integers = column if kind == pa.int64() else column.cast(pa.int64())
        filled = integers.fill_null(0) if integers.null_count else integers
        return _mix(filled.to_numpy().view(np.uint64))
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return _hash_values(column.view(width))
    if pa.types.is_decimal(kind):
        return _hash_decimals(column.cast(pa.decimal128(38, kind.scale)))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(column)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _hash_bytes(column.cast(pa.binary()))
    if pa.types.is_struct(kind):
        return key_hashes([column.field(i) for i in range(kind.num_fields)], len(column))
    if pa.types.is_list(kind):
        return _hash_lists(column)
    raise ConfigError(f"a column of type {kind} cannot be a key: Spark cannot group by it")


def _hash_decimals(column: pa.Array) -> Hashes:
    words = np.frombuffer(column.buffers()[1], np.uint64)
    halves = words[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    return _combine(_mix(halves[:, 0]), _mix(halves[:, 1]))


def _hash_bytes(column: pa.Array) -> Hashes:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = column.buffers()[2]
    lengths = np.diff(offsets)
    starts = offsets[:-1]
    hashes = np.zeros(len(column), np.uint64)
    padded = np.zeros((0 if data is None else data.size) + 8, np.uint8)
    if data is not None:
        padded[:-8] = np.frombuffer(data, np.uint8)
    words = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))  # one begins at every byte
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    at = 0
    while len(rows):
        word = words[starts[rows] + at]
        missing = np.maximum(8 - (lengths[rows] - at), 0).astype(np.uint64) * np.uint64(8)
        word = word << missing >> missing
        hashes[rows] = _mix(hashes[rows] * _WORD_PRIME + word)
        at += 8
        rows = rows[lengths[rows] > at]
    for row in np.flatnonzero(lengths > _LONG_BYTES):
        value = padded[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
    return _combine(hashes, lengths.astype(np.uint64))


def _hash_lists(column: pa.Array) -> Hashes:
    """The hashes of the elements, combined with their position, summed with wrap-around."""
    lengths = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    inner = _hash_column(column.flatten())
    places = np.arange(len(inner)) - np.repeat(ends - lengths, lengths)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(_combine(inner, places.astype(np.uint64)))])
    return _combine(sums[ends] - sums[ends - lengths], lengths.astype(np.uint64))


def _combine(hashes: Hashes, more: Hashes) -> Hashes:
    return _mix(hashes * _THIRTY_ONE + more)


def _mix(words: Hashes) -> Hashes:
    mixed = words + _NULL
    shifted = mixed >> np.uint64(30)
    mixed ^= shifted
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed ^= shifted
    mixed *= np.uint64(0x94D049BB133111EB)
    np.right_shift(mixed, np.uint64(31), out=shifted)
    mixed ^= shifted
    return mixed
