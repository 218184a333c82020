"""Keys of two sides, and the order of versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.joins.matching import (
    common_codes,
    has_null_key,
    newest,
    numbers_of,
    pairs,
    take_or_null,
)
from millstream.pipelines.state.keys import HASH, with_hash

CODES = st.lists(st.integers(0, 4), max_size=8)


def keyed(
    name: str, values: Sequence[str | None], hashes: Sequence[int] | None = None
) -> pa.RecordBatch:
    rows = with_hash(pa.RecordBatch.from_pydict({name: pa.array(values, pa.string())}), [name])
    if hashes is None:
        return rows
    return rows.set_column(0, HASH, pa.array(hashes, pa.uint64()))


def test_keys_of_both_sides_have_common_numbers() -> None:
    left, right = common_codes(keyed("a", ["x", None, "y"]), ["a"], keyed("b", ["y", "x"]), ["b"])
    assert left[0] == right[1]
    assert left[2] == right[0]
    assert left[1] not in right


def test_keys_that_share_a_hash_are_told_apart() -> None:
    left = keyed("a", ["x", "y"], [7, 7])
    right = keyed("b", ["y", "z"], [7, 7])
    left_codes, right_codes = common_codes(left, ["a"], right, ["b"])
    assert left_codes[1] == right_codes[0]
    assert len({*left_codes, *right_codes}) == 3


@given(CODES, CODES)
def test_pairs_are_those_of_two_loops(left: list[int], right: list[int]) -> None:
    a, b = pairs(np.array(left, np.int64), np.array(right, np.int64))
    expected = [(i, j) for i, x in enumerate(left) for j, y in enumerate(right) if x == y]
    assert sorted(zip(a.tolist(), b.tolist(), strict=True)) == expected


def test_newest_row_does_not_depend_on_order_even_among_equals() -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("at", pa.int64()),
            ("value", pa.string()),
            ("extra", pa.map_(pa.string(), pa.int64())),
        ]
    )
    rows: list[dict[str, Any]] = [
        {"key": "x", "at": at, "value": value, "extra": []}
        for at, value in ((None, "n"), (1, "a"), (2, "b"), (2, "c"))
    ]
    found = {
        newest(
            with_hash(pa.RecordBatch.from_pylist(it, schema=schema), ["key"]), ["key"], ["at"]
        ).to_pylist()[0]["value"]
        for it in (rows, rows[::-1])
    }
    assert len(found) == 1
    assert found < {"b", "c"}


def test_null_is_before_all_and_in_no_key() -> None:
    assert numbers_of(pa.array([0, None], pa.int32())).argmin() == 1
    assert has_null_key(keyed("a", ["x", None]), ["a"]).tolist() == [False, True]


def test_nothing_is_taken_from_nowhere() -> None:
    places = np.array([-1, 1])
    assert take_or_null(pa.array(["a", "b"]), places).to_pylist() == [None, "b"]
    assert take_or_null(pa.array([], pa.string()), places[:1]).to_pylist() == [None]
