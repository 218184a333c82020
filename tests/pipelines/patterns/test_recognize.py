"""MATCH_RECOGNIZE as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.patterns import recognize


def test_all_clauses_are_read() -> None:
    it = recognize(
        """
        MATCH_RECOGNIZE (
            PARTITION BY symbol, `the day`  -- ORDER BY is next
            ORDER BY at ASC, id
            MEASURES first(down.price) AS began, concat('a, b', strt.x) AS "text"
            ALL ROWS PER MATCH OMIT EMPTY MATCHES
            AFTER MATCH SKIP TO LAST up
            PATTERN (strt down+ (up | even)*)
            WITHIN INTERVAL '90' SECOND
            SUBSET s = (strt, down), t = (up)
            DEFINE down AS price < prev(price), up AS price > coalesce(prev(price), 0)
        )
        """
    )
    assert it.keys == ("symbol", "the day")
    assert (it.time, it.order_by) == ("at", ("id",))
    assert it.measures == {"began": "first(down.price)", "text": "concat('a, b', strt.x)"}
    assert it.rows == "all omitting empty"
    assert it.skip[0] == "to last"
    assert it.pattern == "strt down+ (up | even)*"
    assert it.within_us == 90_000_000
    assert it.subsets == {"s": ["strt", "down"], "t": ["up"]}
    assert it.where == {"down": "price < prev(price)", "up": "price > coalesce(prev(price), 0)"}


def test_defaults_are_those_of_the_standard() -> None:
    it = recognize("ORDER BY at MEASURES count(*) AS n PATTERN (a B)")
    assert (it.keys, it.rows, it.skip_text) == ((), "one", "past last row")
    assert it.within_us is None
    assert list(it.variables.values()) == ["A", "B"]


def test_columns_may_be_in_descending_order() -> None:
    it = recognize("ORDER BY at DESC, id ASC, x desc MEASURES count(*) AS n PATTERN (a)")
    assert (it.time, it.order_by, it.descending) == ("at", ("id", "x"), ("at", "x"))
    with pytest.raises(ConfigError, match="a stream always gets newer ones"):
        replace(it, within_us=1).check_stream()
    assert it.identity() != replace(it, descending=()).identity()


def test_a_column_can_be_the_time_and_the_order_of_arrival() -> None:
    it = recognize("ORDER BY at, at DESC MEASURES count(*) AS n PATTERN (a)", order="arrival")
    assert (it.time, it.order_by, it.descending) == ("at", ("at",), ())


def test_names_of_measures_may_be_those_of_settings() -> None:
    it = recognize("ORDER BY at MEASURES count(*) AS time, a.x AS key PATTERN (a)")
    assert it.measures == {"time": "count(*)", "key": "a.x"}


@pytest.mark.parametrize(
    ("within", "microseconds"),
    [
        ("INTERVAL '1' HOUR", 3_600_000_000),
        ("interval 10 minutes", 600_000_000),
        ("INTERVAL '1 day'", 86_400_000_000),
    ],
)
def test_intervals(within: str, microseconds: int) -> None:
    it = recognize(f"ORDER BY at MEASURES count(*) AS n PATTERN (a) WITHIN {within}")
    assert it.within_us == microseconds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("MEASURES count(*) AS n PATTERN (a)", "needs a clause ORDER"),
        ("ORDER BY at MEASURES count(*) AS n", "needs a clause PATTERN"),
        ("SELECT 1 ORDER BY at PATTERN (a)", "unexpected text before the clauses"),
        ("ORDER BY at PATTERN (a) MEASURES a.x AS x", "MEASURES must come earlier"),
        ("ORDER BY at ORDER BY at PATTERN (a)", "is there twice"),
        ("ORDER BY at NULLS LAST PATTERN (a)", "ASC or DESC"),
        ("ORDER BY at MEASURES a.x PATTERN (a)", "needs a name"),
        ("ORDER BY at MEASURES a.x AS x PATTERN a b", "must be in parentheses"),
        ("ORDER BY at MEASURES a.x AS x PATTERN (a b", "must be in parentheses"),
        ("ORDER BY at MEASURES a.x AS x PATTERN (a) DEFINE b", "variable AS condition"),
        ("ORDER BY at MEASURES a.x AS x PATTERN (a) SUBSET s (a)", "a subset is"),
        ("ORDER BY at MEASURES a.x AS x PATTERN (a) WITHIN 5", "needs an interval"),
        ("ORDER BY at MEASURES a.x AS x ONE ROW PER MATCH WITH CARE PATTERN (a)", "rows per match"),
        ("PARTITION BY a + 1 ORDER BY at MEASURES a.x AS x PATTERN (a)", "the name of a column"),
    ],
)
def test_errors_name_the_clause(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        recognize(text)
