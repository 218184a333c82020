"""Declared columns, and JSON as values of their types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.connect.sinks.changes import Change, Changes
from millstream.connect.sinks.columns import (
    parse_columns,
    refuse_missing,
    to_arrow,
    to_json,
    typed_keys,
)
from millstream.errors import ConfigError


def test_columns_are_declared_as_in_spark() -> None:
    found = parse_columns("id long, `a b` string,price decimal( 9 , 2 ), at timestamp", "t")
    assert found.names == ["id", "a b", "price", "at"]
    assert found.types == [
        pa.int64(),
        pa.string(),
        pa.decimal128(9, 2),
        pa.timestamp("us", tz="UTC"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("id", "cannot read 'id'"),
        ("id long name string", "cannot read"),
        ("id money", "'money' is none of boolean"),
        ("id long, id int", "named twice"),
        ("", "none"),
        ("p decimal(40,2)", "1 to 38 digits"),
    ],
)
def test_ill_formed_columns_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_columns(text, "topic t")


def test_key_must_be_among_the_columns() -> None:
    with pytest.raises(ConfigError, match=r"key names \['b'\]"):
        refuse_missing(parse_columns("a int", "t"), ("a", "b"), "topic t")


def converted(kind: str, *values: Any) -> tuple[list[Any], list[str]]:
    changes = [Change(number, (number,), {"v": it}) for number, it in enumerate(values)]
    found = Changes(changes=changes)
    table = to_arrow(found, parse_columns(f"id long, v {kind}", "t"), ("id",))
    return table.column("v").to_pylist(), [it.message for it in found.failures]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("boolean", [True, None], [True, None]),
        ("int", [1, None], [1, None]),
        ("double", [1, 2.5], [1.0, 2.5]),
        ("decimal(9,2)", ["1.50", None], [Decimal("1.50"), None]),
        ("decimal(9,2)", [1, 2.5, "3"], [Decimal(1), Decimal("2.5"), Decimal(3)]),
        ("string", ["a", None], ["a", None]),
        ("binary", ["AQI="], [b"\1\2"]),
        ("date", ["2026-01-31", None], [date(2026, 1, 31), None]),
        ("date", [20_000], [date(2024, 10, 4)]),
        ("timestamp", ["2026-01-31T10:00:00.5Z"], [datetime(2026, 1, 31, 10, 0, 0, 500000, UTC)]),
        ("timestamp", [1_000_000], [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        ("timestamp_ntz", [1_000_000], [datetime(1970, 1, 1, 0, 0, 1)]),
        ("json", [{"a": [1]}, '{"b":2}', None], ['{"a": [1]}', '{"b":2}', None]),
    ],
)
def test_values_become_those_of_the_column(
    kind: str, given: list[Any], expected: list[Any]
) -> None:
    assert converted(kind, *given) == (expected, [])


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("int", 2**40),
        ("long", "7"),
        ("long", 1.5),
        ("boolean", "true"),
        ("string", 5),
        ("decimal(9,2)", "1.555"),
        ("decimal(3,2)", "100"),
        ("decimal(3,2)", "abc"),
        ("date", "31.01.2026"),
        ("timestamp", "2026-01-31T10:00:00"),
        ("timestamp_ntz", "2026-01-31T10:00:00Z"),
        ("binary", "not base64"),
    ],
)
def test_value_that_does_not_fit_makes_its_record_bad(kind: str, bad: Any) -> None:
    good = {"int": 1, "long": 1, "boolean": True, "string": "a"}.get(kind)
    values, problems = converted(kind, good, bad, good)
    assert values == [good, good]
    assert len(problems) == 1
    assert problems[0].startswith("column 'v'")


def test_deleted_rows_have_only_their_key() -> None:
    found = Changes(changes=[Change(0, (1,), {"id": 1, "v": "a"}), Change(1, (2,), None)])
    table = to_arrow(found, parse_columns("id long, v string", "t"), ("id",))
    assert table.to_pylist() == [
        {"id": 1, "v": "a", "__deleted": False},
        {"id": 2, "v": None, "__deleted": True},
    ]


def test_keys_have_the_types_of_the_table_and_those_that_do_not_fit_are_left_out() -> None:
    schema = parse_columns("id long, at timestamp, price decimal(4,1)", "here")
    given = [(1, "2026-01-31T10:00:00Z"), ("x", "2026-01-31T10:00:00Z"), (2, "2026-01-31T11:00Z")]
    found = typed_keys(given, schema, ("id", "at"))
    assert found == {
        (1, datetime(2026, 1, 31, 10, tzinfo=UTC)): given[0],
        (2, datetime(2026, 1, 31, 11, tzinfo=UTC)): given[2],
    }


def test_values_of_a_table_are_those_of_json() -> None:
    given = [
        Decimal("1.50"),
        b"\0\1",
        date(2026, 1, 31),
        datetime(2026, 1, 31, 10, tzinfo=UTC),
        "x",
    ]
    assert [to_json(it) for it in given] == [
        "1.50",
        "AAE=",
        "2026-01-31",
        "2026-01-31T10:00:00+00:00",
        "x",
    ]
