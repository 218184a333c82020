"""Keys: hashes that never change, and the same number for the same key only."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.state.keys import (
    HASH,
    HASH_FIELD,
    _spark_hash,
    bucket_labels,
    buckets_of,
    check_buckets,
    distinct,
    first_rows,
    key_codes,
    key_hashes,
    sorted_order,
    split_by_bucket,
    with_hash,
)
from tests.drawing import draws

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats()),
    "string": (pa.string(), st.text(max_size=20) | st.text(min_size=250, max_size=270)),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    "decimal": (pa.decimal128(20, 2), st.decimals(-(10**9), 10**9, places=2)),
    "array": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 3), max_size=3)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 3) | st.none(), "b": st.sampled_from("xy")}),
    ),
}


@pytest.mark.parametrize("buckets", [0, 2**16 + 1, "x", 2.0, True, None])
def test_number_of_buckets_is_a_whole_one(buckets: object) -> None:
    check_buckets(1)
    check_buckets(2**16)
    with pytest.raises(ConfigError, match="it must be an integer between 1 and 65536"):
        check_buckets(buckets)


def one_hash(value: Any, kind: pa.DataType) -> int:
    return int(key_hashes([pa.array([value], kind)], 1)[0])


def equal_for_spark(a: Any, b: Any) -> bool:
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or a == b


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=draws(30))
@given(data=st.data())
def test_equal_values_have_equal_hashes_and_codes(name: str, data: st.DataObject) -> None:
    kind, strategy = KINDS[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=10))
    values += data.draw(st.lists(st.sampled_from(values), max_size=5)) if values else []
    column = pa.concat_arrays([pa.array([None], kind), pa.array(values, kind)]).slice(1)
    rows = with_hash(pa.RecordBatch.from_pydict({"key": column}), ["key"])
    codes = key_codes(rows, ["key"])
    hashes = rows.column(HASH).to_pylist()
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            assert (codes[i] == codes[j]) == equal_for_spark(a, b)
            assert hashes[i] == hashes[j] or codes[i] != codes[j]
    assert set(codes) == set(range(len(set(codes))))
    assert first_rows(codes).tolist() == [list(codes).index(it) for it in range(len(set(codes)))]
    assert hashes == [one_hash(value, kind) for value in values], "the rows around do not matter"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.string(), KNOWN_NULL := 7960286522194355700),
        (None, pa.int64(), KNOWN_NULL),
        ("", pa.string(), 12035550249420947055),
        ("a", pa.string(), 6929337210094110363),
        ("abcdefgh", pa.string(), 12715885702479283708),
        (b"abcdefghi", pa.binary(), 7780097627031694091),
        ("x" * 300, pa.string(), 14992945415999794643),
        ([1, 2], pa.list_(pa.int64()), 12453504919095472260),
        (
            {"a": 1, "b": None},
            pa.struct([("a", pa.int64()), ("b", pa.int8())]),
            8095047586846014546,
        ),
    ],
)
def test_hashes_stay_what_they_are(value: Any, kind: pa.DataType, expected: int) -> None:
    """State lies where they say. If this fails, mend the code, not the numbers."""
    assert one_hash(value, kind) == expected


def test_hash_is_the_same_in_every_process() -> None:
    program = (
        "import pyarrow as pa; from millstream.pipelines.state.keys import key_hashes; "
        "print(key_hashes([pa.array(['ann']), pa.array([7])], 1)[0])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {str(key_hashes([pa.array(["ann"]), pa.array([7])], 1)[0])}


def test_numbers_of_different_width_meet() -> None:
    """So that an int joins a long."""
    assert one_hash(7, pa.int16()) == one_hash(7, pa.int64())
    assert one_hash(0.0, pa.float64()) == one_hash(-0.0, pa.float32())
    assert one_hash(date(2026, 1, 1), pa.date32()) != one_hash(
        datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC")
    )
    assert one_hash(Decimal("1.50"), pa.decimal128(10, 2)) == one_hash(
        Decimal("1.50"), pa.decimal128(20, 2)
    )


def test_keys_of_several_columns_keep_their_order() -> None:
    one, two = pa.array(["a"]), pa.array(["b"])
    assert key_hashes([one, two], 1) != key_hashes([two, one], 1)


def test_key_that_spark_does_not_group_by_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be a key"):
        one_hash([("a", 1)], pa.map_(pa.string(), pa.int64()))


def test_keys_with_equal_hashes_are_distinguished() -> None:
    keys = pa.array(["x", "y", "x", None, "y", "z"])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([5, 5, 5, 5, 5, 9], pa.uint64()), keys],
        schema=pa.schema([HASH_FIELD, ("key", pa.string())]),
    )
    codes = list(key_codes(rows, ["key"]))
    assert codes[0] == codes[2]
    assert codes[1] == codes[4]
    assert len(set(codes)) == 4


def test_buckets_are_filled_evenly() -> None:
    hashes = key_hashes([pa.array([f"user-{i}" for i in range(16_000)])], 16_000)
    sizes = np.bincount(buckets_of(hashes, 16))
    assert len(sizes) == 16
    assert 850 < sizes.min() <= sizes.max() < 1150


def test_splitting_loses_no_row() -> None:
    rows = with_hash(pa.RecordBatch.from_pydict({"key": list(range(100))}), ["key"])
    parts = dict(split_by_bucket(rows, 7))
    assert sorted(key for part in parts.values() for key in part.column("key").to_pylist()) == list(
        range(100)
    )
    for bucket, part in parts.items():
        assert set(buckets_of(part.column(HASH).to_numpy(), 7)) == {bucket}


@pytest.mark.parametrize("bucket_count", [1, 7, 16, 2**16])
def test_splitting_sorts_by_the_first_bits_and_keeps_the_order_of_a_key(bucket_count: int) -> None:
    keys = [row * 7919 % 100 for row in range(1_000)]
    rows = pa.RecordBatch.from_pydict({"key": keys, "row": list(range(1_000))})
    free_bits = 16 - (bucket_count - 1).bit_length()
    for _, part in split_by_bucket(with_hash(rows, ["key"]), bucket_count):
        leading = part.column(HASH).to_numpy() >> np.uint64(64 - free_bits) if free_bits else 0
        assert (np.diff(np.atleast_1d(leading).astype(np.int64)) >= 0).all()
        seen: dict[int, int] = {}
        for key, row in zip(part["key"].to_pylist(), part["row"].to_pylist(), strict=True):
            assert seen.get(key, -1) < row
            seen[key] = row


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=30))
def test_sorted_order_is_stable_and_by_the_first_numbers_first(
    rows: list[tuple[int, int, int]],
) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    for count in (1, 2, 3):
        expected = sorted(range(len(rows)), key=lambda it: rows[it][:count])
        assert sorted_order(*columns[:count]).tolist() == expected


def test_spark_hash_is_that_of_spark() -> None:
    """Known values of `SELECT hash(0), hash(1), hash(2)`, as unsigned integers."""
    known = [933211791, -559580957, 1765031574]
    assert [_spark_hash(value) for value in range(3)] == [value % 2**32 for value in known]


@pytest.mark.parametrize("bucket_count", [1, 2, 12, 16, 64])
def test_buckets_spread_over_the_shuffle_partitions(bucket_count: int) -> None:
    labels = bucket_labels(bucket_count)
    assert len(set(labels)) == bucket_count
    for partition_count in range(1, bucket_count + 1):
        if bucket_count % partition_count == 0:
            partitions = Counter(_spark_hash(label) % partition_count for label in labels)
            assert set(partitions.values()) == {bucket_count // partition_count}


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5)))
def test_distinct_values_come_in_order_each_once(values: list[int]) -> None:
    assert distinct(np.array(values, np.uint64)).tolist() == sorted(set(values))
