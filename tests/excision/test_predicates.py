"""Which rows a predicate selects, and which predicates rows cannot answer."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.connect.sinks.changes import Format
from millstream.connect.sinks.columns import parse_columns
from millstream.connect.sinks.sink import Target
from millstream.excision.documents import Undecidable
from millstream.excision.predicates import Predicate

COLUMNS = "name string, age int, price decimal(9,2), at timestamp, tags json"
TABLE = Target("people", "people", ("name",), parse_columns(COLUMNS, "test"))
DOCUMENTS = Target("people", "people", ("name",))
INDEX = Target("people", "people", ("name",), fields=("email",), stored=("city", "tags"))


def row(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    nothing = {"age": None, "price": None, "at": None, "tags": None}
    return name, {"name": name, **nothing, **fields}


ROWS = [
    row("alice", age=30, price="12.50", at="2026-01-01T00:00:00+00:00", tags='{"vip": true}'),
    row("bob", age=41, price="9.00", tags="[1]"),
]
FREE = [
    ("alice", {"name": "alice", "address": {"city": "Bath"}, "total": 7.5}),
    ("bob", {"name": "bob"}),
]


def names(
    where: str,
    rows: list[tuple[str, dict[str, Any]]] = ROWS,
    target: Target = TABLE,
    format: Format = "json",
) -> list[str]:
    return [id for id, _ in Predicate(where, target, format).select(rows)]


@pytest.mark.parametrize(
    "where",
    [
        "name = 'alice'",
        "_value->>'$.name' = 'alice'",
        "_value ->> 'name' = 'alice'",
        "json_extract_string(_value, '$.name') like 'ali%'",
        "cast(_value->>'$.age' as int) < 40",
        "age = 30 and price > 12.4",
        "\"at\" < timestamptz '2026-06-01 00:00:00+00'",
        "_value->>'$.tags.vip' = 'true'  -- a comment",
    ],
)
def test_rows_are_selected_by_their_fields(where: str) -> None:
    assert names(where) == ["alice"]


def test_documents_may_have_any_fields() -> None:
    assert names("_value->>'$.address.city' = 'Bath'", FREE, DOCUMENTS) == ["alice"]
    assert names("address.city = 'Bath'", FREE, DOCUMENTS) == ["alice"]
    assert names("total > 7", FREE, DOCUMENTS) == ["alice"]
    assert names("nickname = 'al'", FREE, DOCUMENTS) == []  # none of these has it
    assert names("nickname is null and total is null", FREE, DOCUMENTS) == ["bob"]


def test_field_of_several_types_is_no_column() -> None:
    rows = [("alice", {"name": "alice", "Zip": "12345"}), ("bob", {"name": "bob", "Zip": 99})]
    with pytest.raises(Undecidable, match="rows have the field zip in several types"):
        names("zip = '12345'", rows, DOCUMENTS)
    assert names("_value->>'$.Zip' = '12345'", rows, DOCUMENTS) == ["alice"]
    assert names("zip = 99", rows[1:], DOCUMENTS) == ["bob"]


def test_lists_and_objects_are_text_in_an_index() -> None:
    rows: list[tuple[str, dict[str, Any]]] = [
        ("alice", {"name": "alice", "city": "[Bath]", "tags": '["vip"]'}),
        ("bob", {"name": "bob", "city": "{", "tags": None}),
    ]
    for where in ("tags[1] = 'vip'", "len(TAGS) > 1", "_value->>'$.tags' = 'vip'"):
        with pytest.raises(Undecidable, match="the sink has tags as text"):
            names(where, rows, INDEX)
    assert names("city = '[Bath]'", rows, INDEX) == ["alice"]
    assert names("len(tags) > 1", [("carol", {"name": "carol", "tags": "vip"})], INDEX) == ["carol"]


def test_row_of_a_change_is_the_after_of_its_record() -> None:
    assert names("_value->>'$.after.name' = 'alice'", format="debezium") == ["alice"]
    assert names("after.age = 30", format="debezium") == ["alice"]


def test_no_rows_are_selected_from_none() -> None:
    assert names("name = 'alice'", []) == []


@pytest.mark.parametrize(
    ("where", "target", "format", "reason"),
    [
        ("_timestamp < now()", TABLE, "json", "about _timestamp"),
        ("_key = 'alice'", TABLE, "json", "about _key"),
        ("contains(_value, 'alice')", TABLE, "json", "text of the value"),
        ("_value->>'$.name' = 'a' or _value like '%b%'", TABLE, "json", "text of the value"),
        ("_value->>'$.email' = 'a'", TABLE, "json", "leaves out the field email"),
        ("_value->>'$.alice-42' = 'a'", TABLE, "json", "leaves out a field$"),
        ("_value->>'$.price' = '12.5'", TABLE, "json", "has price as decimal"),
        ("_value->>'$.name.first' = 'a'", TABLE, "json", "has name as string"),
        ("_value->>'$.*' = 'a'", TABLE, "json", "not one of names"),
        ("_value->>'$.before.name' = 'a'", TABLE, "debezium", "beside `after`"),
        ("_value->>'$.email.host' = 'a'", INDEX, "json", "has email as text"),
        ("name in (select 'alice')", TABLE, "json", "has a query in it"),
    ],
)
def test_predicates_about_what_rows_do_not_have_are_undecidable(
    where: str, target: Target, format: Format, reason: str
) -> None:
    with pytest.raises(Undecidable, match=reason):
        Predicate(where, target, format)


def test_column_that_the_sink_does_not_have_is_undecidable() -> None:
    with pytest.raises(Undecidable, match="email"):
        names("email = 'alice@example.org'")


@pytest.mark.parametrize(
    "where",
    [
        "cast(name as int) = 5",
        "age = 'mallory@example.org'",
        "strptime(name, '%Y') > date '2020-01-01'",
        '"mallory@example.org" = name',
        "mallory(name)",
        "name = 'mallory@example.org",
        "_value->>'$[mallory]' = 'a'",
    ],
)
def test_reason_quotes_neither_rows_nor_the_predicate(where: str) -> None:
    with pytest.raises(Undecidable) as raised:
        names(where)
    assert "alice" not in str(raised.value)
    assert "mallory" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({"name": "alice", "age": "old"}, TABLE),  # something else wrote to the table
        ({"name": "alice", "at": "2026-01-01 00:00:00"}, TABLE),
        ({"name": "alice", "price": "NaN"}, TABLE),
        ({"name": "alice", "age": 2**70}, DOCUMENTS),
        ({"name": "alice \ud800"}, DOCUMENTS),
    ],
)
def test_rows_with_values_that_do_not_fit_are_undecidable(
    fields: dict[str, Any], target: Target
) -> None:
    with pytest.raises(Undecidable, match="values that their columns cannot hold"):
        names("name = 'alice'", [("alice", fields)], target)
