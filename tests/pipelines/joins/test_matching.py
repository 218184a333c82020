"""Keys of two sides, and the order of versions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
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
    sort_versions,
    take_or_null,
)
from millstream.pipelines.row_positions import Positions, encode_positions
from millstream.pipelines.state.keys import HASH, key_codes, with_hash
from millstream.pipelines.state.tables import concat

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


def test_keys_with_equal_hashes_are_distinguished() -> None:
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
            with_hash(pa.RecordBatch.from_pylist(it, schema=schema), ["key"]), ["key"], "at"
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


Record = tuple[str, int, int, int]  # key, log, offset, time


def with_positions(records: Sequence[Record]) -> pa.RecordBatch:
    """Rows whose value is the record itself."""
    columns = [np.array([it[at] for it in records], np.int64) for at in (3, 1, 2)]
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([it[0] for it in records], pa.string()),
            "value": pa.array([repr(it) for it in records], pa.string()),
            "_position": encode_positions(Positions(*columns)),
        }
    )
    return with_hash(rows, ["key"])


def newest_of(records: Sequence[Record]) -> dict[str, str]:
    """By the definition: of each log the last record and the greatest time, of logs the latest."""
    found = {}
    for key in {it[0] for it in records}:
        logs: dict[int, tuple[int, Record]] = {}
        for it in sorted((it for it in records if it[0] == key), key=lambda it: it[2]):
            logs[it[1]] = max(it[3], logs[it[1]][0] if it[1] in logs else it[3]), it
        found[key] = repr(max((time, log, it) for log, (time, it) in logs.items())[2])
    return found


def test_key_that_moved_to_another_partition_follows_the_newer_log() -> None:
    records = [("ada", 0, 1000, 10), ("ada", 3, 2, 20), ("bob", 0, 1001, 20), ("bob", 0, 1002, 5)]
    rows = newest(with_positions(records), ["key"], "_position").to_pylist()
    found = {it["key"]: it["value"] for it in rows}
    assert found == {"ada": repr(records[1]), "bob": repr(records[3])}


RECORDS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.just(0), st.integers(0, 9)), max_size=12
)


@given(RECORDS, st.lists(st.integers(1, 11), max_size=4), st.randoms())
def test_newest_row_is_the_same_however_the_log_is_cut_and_merged(
    given_records: list[Record], cuts: list[int], random: Random
) -> None:
    """Batches have the records of a log in order; parts of them are merged in any order before
    they are merged as a whole, and the whole is merged again with the next batch."""
    records = [(key, log, place, time) for place, (key, log, _, time) in enumerate(given_records)]
    stored: list[pa.RecordBatch] = []
    bounds = sorted({0, len(records), *(it for it in cuts if it < len(records))})
    for begin, end in pairwise(bounds):
        stored.append(with_positions(records[begin:end]))
        random.shuffle(stored)
        is_whole = random.random() < 0.5
        count = len(stored) if is_whole else random.randint(1, len(stored))
        merged = newest(concat(stored[:count]), ["key"], "_position", is_whole=is_whole)
        stored = [merged, *stored[count:]]
    rows = newest(concat([with_positions([]), *stored]), ["key"], "_position").to_pylist()
    assert {it["key"]: it["value"] for it in rows} == newest_of(records)


def test_versions_of_equal_times_are_ordered_by_position() -> None:
    records = [("a", 0, 9, 1), ("a", 1, 0, 2), ("a", 0, 8, 9), ("a", 2, 0, 5)]
    rows = with_positions(records)
    rows = rows.append_column("at", pa.array([1, 1, 0, 0], pa.int64()))
    order = sort_versions(rows, key_codes(rows, ["key"]), ("at", "_position"))
    assert order.tolist() == [3, 2, 0, 1]
