"""Conditions of searches as SQL."""

from __future__ import annotations

import duckdb
import pytest

from millstream.query.conditions import search_condition
from millstream.query.search import SearchRequest

RECORDS = """(values
    ('k1', 'say "hi"', [{'key': 'trace', 'value': 'a%'}]),
    ('k2', NULL, []),
    (NULL, 'x -- y', [{'key': 'trace', 'value': NULL}])
) records(_key, _value, _headers)"""


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (SearchRequest("t", ()), 3),
        (SearchRequest("t", (), text='"hi"'), 1),
        (SearchRequest("t", (), text="k"), 2),
        (SearchRequest("t", (), text="trace"), 2),
        (SearchRequest("t", (), text="%"), 1),
        (SearchRequest("t", (), text="'; drop table records"), 0),
        (SearchRequest("t", (), header="trace"), 2),
        (SearchRequest("t", (), header="trace", header_value="a%"), 1),
        (SearchRequest("t", (), where="_key = 'k1' -- a comment"), 1),
        (SearchRequest("t", (), where="_key = 'k2' or true", text="hi"), 1),
    ],
)
def test_conditions_are_combined_and_quoted(request_: SearchRequest, expected: int) -> None:
    condition, parameters = search_condition(request_)
    sql = f"select count(*) from {RECORDS} where {condition}"
    with duckdb.connect() as connection:
        assert connection.execute(sql, parameters).fetchall() == [(expected,)]
