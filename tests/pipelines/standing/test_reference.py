"""Queries on one event, with three truth values."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from millstream.pipelines.standing.reference import explain, truth
from millstream.pipelines.standing.templates import Compiler
from tests.pipelines.standing.drawing import SCHEMA

COMPILER = Compiler(SCHEMA)
EVENT: dict[str, Any] = {
    "n": 3,
    "x": float("nan"),
    "city": "Köln",
    "sold": None,
    "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "text": "Tea of green leaf, in bags",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 3", True),
        ("n < 2.5", False),
        ("sold", None),
        ("NOT sold", None),
        ("sold OR n = 3", True),
        ("sold AND n = 4", False),
        ("sold AND n = 3", None),
        ("sold IS NULL", True),
        ("sold IN (TRUE, FALSE)", None),
        ("n NOT IN (1, 2)", True),
        ("n NOT BETWEEN 1 AND 2", True),
        ("n BETWEEN 1 AND 3", True),
        ("n BETWEEN 3 AND 4", True),
        ("3 < n", False),
        ("3 <= n", True),
        ("3 > n", False),
        ("3 >= n", True),
        ("2 < n", True),
        ("4 > n", True),
        ("x > 1e300", True),
        ("city > 'Kz'", True),
        ("city < 'Kz'", False),
        ("'2026-01-01T13:00:00+01:00' = at", True),
        ("day >= DATE '2026-01-02'", True),
        ("matches(text, 'TEA \"green leaf\" bag*')", True),
        ("matches(text, '\"leaf green\"')", False),
        ("matches(text, 'tea NOT bag')", True),
        ("matches(text, 'tea NOT bag*')", False),
        ("matches(city, 'k*')", True),
    ],
)
def test_truth_is_that_of_sql(text: str, expected: bool | None) -> None:
    assert truth(COMPILER.compile(text), EVENT) is expected


def test_text_that_is_null_neither_has_nor_lacks_words() -> None:
    query = COMPILER.compile("matches(text, 'NOT tea')")
    assert truth(query, {"text": None}) is None
    assert truth(query, {"text": ""}) is True


def test_explain_has_the_truth_of_each_condition() -> None:
    query = COMPILER.compile("n = 3 AND (sold OR NOT matches(text, 'tea \"a b\"'))")
    assert explain(query, EVENT) == [
        ("n = 3", True),
        ("sold", None),
        ("text: tea", True),
        ('text: "a b"', False),
    ]
