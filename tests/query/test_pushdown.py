"""What a filter allows to skip: never a record that matches."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.query.columns import TIMESTAMP, table_schema
from millstream.query.pushdown import TimeBounds, columns_in, matching_ranges, time_bounds
from millstream.query.ranges import ScanRange, total_size

SCHEMA = table_schema(pa.schema([]))
offset_, partition_, time_ = pc.field("_offset"), pc.field("_partition"), pc.field("_timestamp")
RANGES = (ScanRange(0, 0, 100_000), ScanRange(1, 500, 2_000_000))


def moment(time_us: int) -> pa.Scalar:
    return pa.scalar(time_us, TIMESTAMP)


def test_columns_of_a_condition_are_not_those_that_its_constants_resemble() -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.struct([("id", pa.int64())])), *SCHEMA])
    assert columns_in(None, schema) == frozenset()
    assert columns_in(pc.field("_value") == "id of _offset", schema) == {"_value"}
    nested = (pc.field("a", "id") == 3) | (offset_ > 7)
    assert columns_in(nested, schema) == {"a", "_offset"}
    assert time_bounds(pc.field("_value") == "_timestamp", schema) == TimeBounds()


def test_offsets_and_partitions_bound_the_ranges() -> None:
    found = matching_ranges((partition_ == 1) & (offset_ >= 1_000_000), RANGES, SCHEMA)
    assert found == (ScanRange(1, 1_000_000, 2_000_000),)
    few = matching_ranges(offset_.isin([5, 90_000]), RANGES, SCHEMA)
    assert total_size(few) == 3
    assert matching_ranges(partition_ == 7, RANGES, SCHEMA) == ()
    assert matching_ranges(None, RANGES, SCHEMA) == RANGES


def test_other_conditions_bound_nothing() -> None:
    assert matching_ranges(pc.field("_value") == "x", RANGES, SCHEMA) == RANGES
    assert time_bounds(offset_ == 5, SCHEMA) == TimeBounds()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (time_ > moment(5_000_001), TimeBounds(5000, None)),
        (time_ >= moment(5_000_000), TimeBounds(5000, None)),
        (time_ < moment(5_000_001), TimeBounds(None, 5000)),
        ((time_ >= moment(1000)) & (time_ <= moment(9000)), TimeBounds(1, 9)),
        ((time_ >= moment(1000)) | (offset_ == 3), TimeBounds()),
    ],
)
def test_time_bounds_are_rounded_outwards(condition: Any, expected: TimeBounds) -> None:
    assert time_bounds(condition, SCHEMA) == expected


def test_time_bounds_of_a_contradiction_are_empty() -> None:
    found = time_bounds((time_ > moment(9000)) & (time_ < moment(1000)), SCHEMA)
    assert found.are_empty


def random_condition(chance: random.Random, depth: int) -> Any:
    if depth and chance.random() < 0.6:
        left, right = (random_condition(chance, depth - 1) for _ in range(2))
        return left & right if chance.random() < 0.5 else left | right
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice([partition_ == chance.randrange(3), partition_ != chance.randrange(3)])
    if kind == 1:
        return offset_.isin([chance.randrange(3000) for _ in range(3)])
    if kind == 2:
        return ~(offset_ < chance.randrange(3000))
    if kind == 3:
        return time_ >= moment(chance.randrange(3000) * 1000)
    limit = chance.randrange(3000)
    return chance.choice([offset_ >= limit, offset_ < limit, offset_ == limit, offset_ > limit])


def test_matching_ranges_keep_every_record_that_matches() -> None:
    chance = random.Random(17)
    ranges = [ScanRange(0, 0, 3000), ScanRange(1, 1000, 2500)]
    rows = [(it.partition, offset) for it in ranges for offset in range(it.first, it.end)]
    table = pa.table(
        {
            "_partition": pa.array([it[0] for it in rows], pa.int32()),
            "_offset": pa.array([it[1] for it in rows], pa.int64()),
            "_timestamp": pa.array([it[1] * 1000 for it in rows]).cast(TIMESTAMP),
        }
    )
    for _ in range(40):
        condition = random_condition(chance, 3)
        matches = table.filter(condition)
        kept = matching_ranges(condition, ranges, SCHEMA)
        places = {(it.partition, offset) for it in kept for offset in range(it.first, it.end)}
        expected = zip(
            matches["_partition"].to_pylist(), matches["_offset"].to_pylist(), strict=True
        )
        assert set(expected) <= places, condition
        bounds = time_bounds(condition, SCHEMA)
        times = [it * 1000 // 1000 for it in matches["_offset"].to_pylist()]
        assert all(bounds.first_ms is None or it >= bounds.first_ms for it in times), condition
        assert all(bounds.last_ms is None or it <= bounds.last_ms for it in times), condition
