"""Schemas as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.standing.schemas import parse_schema


def test_schema_is_names_and_types() -> None:
    found = parse_schema("a string, `b` BIGINT, c: timestamp")
    assert found.names == ["a", "b", "c"]
    assert found.types == [pa.string(), pa.int64(), pa.timestamp("us", "UTC")]


def test_decimals_and_structs_are_written_as_in_spark() -> None:
    found = parse_schema(
        "p decimal(10,2), q DECIMAL, s struct<a: int, t: struct<`b c`: date>>, n int"
    )
    inner = pa.struct([("a", pa.int32()), ("t", pa.struct([("b c", pa.date32())]))])
    assert found.names == ["p", "q", "s", "n"]
    assert found.types == [pa.decimal128(10, 2), pa.decimal128(10, 0), inner, pa.int32()]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a string, d", "'d' is no column"),
        ("", "'' is no column"),
        ("a array<int>", "'a array' is no column"),
        ("a int b", "'b' is no column"),
        ("a decimal(x)", "is no column"),
        ("a decimal(39)", r"decimal\(39,0\) must have 1 to 38 digits"),
        ("a decimal(2,3)", r"decimal\(2,3\) must have"),
        ("a struct<b int", "> expected"),
        ("a; int", "unexpected ';'"),
        ("a struct<" * 20 + "b int", "more than 16 structs"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_schema(text)
