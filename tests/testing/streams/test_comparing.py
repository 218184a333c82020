"""Two results: when they are the same, and how a difference is told."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.testing.streams.comparing import Comparison, Difference

ROW = {"shop": "a", "n": 1}


def compare(ours: list[Any], theirs: list[Any], **settings: Any) -> Difference | None:
    return Comparison(**settings).compare(ours, theirs)


def test_order_does_not_count_and_number_does() -> None:
    other = {"shop": "b", "n": 2}
    assert compare([ROW, other], [other, ROW]) is None
    difference = compare([ROW, ROW], [ROW])
    assert difference is not None
    assert difference.only_stream == [("a", 1)]
    assert not difference.only_batch


def test_last_row_of_a_key_counts() -> None:
    comparison = Comparison(key=("shop",))
    first, second = {"shop": "a", "n": 1, "_kind": "x"}, {"shop": "a", "n": 2, "_kind": "y"}
    table = comparison.table([[first], [second, {"shop": "b", "n": 1, "_kind": "x"}], []])
    expected = [{"shop": "a", "n": 2, "_kind": "z"}, {"shop": "b", "n": 1, "_kind": "z"}]
    assert comparison.compare(table, expected) is None, "how it came to be is not compared"


def test_deleted_row_is_gone() -> None:
    comparison = Comparison(key=("shop",), delete="gone")
    table = comparison.table([[{**ROW, "gone": False}], [{**ROW, "gone": True}]])
    assert table == []


def test_replaced_key_has_all_rows_of_its_last_batch() -> None:
    comparison = Comparison(key=("shop",), is_replaced=True)
    rows = [{"shop": "a", "n": number} for number in range(4)]
    assert comparison.table([rows[:2], rows[2:]]) == rows[2:]


def test_key_that_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match="no column city, which is part of the key"):
        Comparison(key=("city",)).table([[ROW]])


def test_changes_add_up() -> None:
    comparison = Comparison()
    changes = [
        {**ROW, "_weight": 1, "_op": "insert"},
        {**ROW, "_weight": -1, "_op": "delete"},
        {"shop": "b", "n": 1, "_weight": 2, "_op": "insert"},
        {"shop": "b", "n": 1, "_weight": -1, "_op": "delete"},
    ]
    assert comparison.table([changes]) == [{"shop": "b", "n": 1, "_weight": 1}]


def test_doubles_may_differ_in_the_last_digits() -> None:
    assert compare([{"x": 0.1 + 0.2}], [{"x": 0.3}]) is None
    assert compare([{"x": [0.1 + 0.2]}], [{"x": [0.3]}]) is None
    assert compare([{"x": 0.30001}], [{"x": 0.3}]) is not None
    assert compare([{"x": float("nan")}], [{"x": float("nan")}]) is None
    assert compare([{"x": float("nan")}], [{"x": None}]) is not None


def test_small_doubles_may_differ_in_the_last_digits_alone() -> None:
    assert compare([{"x": 1e-10}], [{"x": 7e-10}]) is not None
    assert compare([{"x": 1e-10 * (1 + 1e-12)}], [{"x": 1e-10}]) is None
    assert compare([{"x": 0.1 + 0.2 - 0.3}], [{"x": 0.0}]) is None, "what adds up to nothing"
    assert compare([{"x": 1.0}], [{"x": 1.0 + 1e-15}], tolerance=0.0) is not None


def test_values_that_mean_the_same_are_equal() -> None:
    one = {"d": Decimal("1.50"), "m": {"k": [1]}, "b": bytearray(b"x"), "z": -0.0}
    two = {"d": Decimal("1.5"), "m": {"k": [1]}, "b": b"x", "z": 0.0}
    assert compare([one], [two]) is None


def test_columns_can_be_left_out() -> None:
    assert compare([{**ROW, "seen": 1}], [{**ROW, "seen": 2}], ignore=frozenset({"seen"})) is None
    assert compare([{**ROW, "seen": 1}], [ROW]) is not None


def test_difference_is_told_as_a_table() -> None:
    moment = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    difference = compare([{"minute": moment, "n": 1}], [{"minute": moment, "n": 12}])
    assert difference is not None
    assert difference.lines() == [
        "                    minute               n",
        "only in the stream  2026-01-01 00:01:00  1",
        "only in the batch   2026-01-01 00:01:00  12",
    ]
    endless = compare([{"x": float("inf")}], [{"x": float("nan")}])
    assert endless is not None
    assert [line.split()[-1] for line in endless.lines()] == ["x", "inf", "nan"]
    many = compare([{"n": number} for number in range(50)], [])
    assert many is not None
    assert many.lines()[-1] == "... and 30 more"
