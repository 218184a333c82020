"""CSV as typed rows: one record, one line."""

from __future__ import annotations

import csv
import io
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from tests.pipelines.reading.decoding import values
from tests.pipelines.reading.decoding.values import TIMESTAMP, TIMESTAMP_NTZ, decoder_for, schema_of

THREE = schema_of(a=pa.int64(), b=pa.string(), c=pa.float64())


def read(schema: pa.Schema, *records: bytes | None, **options: str) -> list[dict[str, Any]]:
    return values.read(schema, *records, value_format="csv", **options)


def complaint(schema: pa.Schema, record: bytes | None) -> str:
    return values.complaint(schema, record, value_format="csv")


def test_line_is_read_by_position() -> None:
    assert read(THREE, b"1,x,1.5", b"-2,,\r\n", b',"",7\n', None) == [
        {"a": 1, "b": "x", "c": 1.5},
        {"a": -2, "b": None, "c": None},
        {"a": None, "b": "", "c": 7.0},
        {"a": None, "b": None, "c": None},
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.bool_(), "True", True),
        (pa.bool_(), "false", False),
        (pa.int8(), "-128", -128),
        (pa.int64(), "0042", 42),
        (pa.float64(), "1e3", 1000.0),
        (pa.float32(), "-Infinity", -math.inf),
        (pa.float64(), '"123456789.123456789"', 123456789.123456789),
        (pa.decimal128(10, 2), "12.5", Decimal("12.50")),
        (pa.string(), " é ", " é "),
        (pa.binary(), "aGk=", b"hi"),
        (pa.date32(), "2026-11-14", date(2026, 11, 14)),
        (TIMESTAMP, "2026-11-14 08:30:00+01:00", datetime(2026, 11, 14, 7, 30, tzinfo=UTC)),
        (TIMESTAMP_NTZ, "2026-11-14T08:30", datetime(2026, 11, 14, 8, 30)),
    ],
)
def test_field_is_read_as_its_type(kind: Any, text: str, expected: Any) -> None:
    assert read(schema_of(v=kind), text.encode()) == [{"v": expected}]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b'1,"x, ""y""\nz",2', 'x, "y"\nz'),
        (b'1,"a\\"b\\\\c\\d",2', 'a"b\\c\\d'),
        (b'1,a"b,2', 'a"b'),
    ],
)
def test_quotes_hold_separators_lines_and_quotes(record: bytes, expected: str) -> None:
    assert read(THREE, record)[0]["b"] == expected


def test_quotes_are_text_where_there_are_none() -> None:
    assert read(THREE, b'1,"x",2', quote="") == [{"a": 1, "b": '"x"', "c": 2.0}]
    assert read(THREE, b'1,"x\\""y",2', escape="") == [{"a": 1, "b": 'x\\"y', "c": 2.0}]


def test_number_is_a_timestamp_where_its_unit_is_named() -> None:
    schema = schema_of(v=TIMESTAMP)
    noon = {"v": datetime(2026, 3, 1, 12, tzinfo=UTC)}
    records = (b"1772366400000", b"2026-03-01T12:00:00Z")
    assert read(schema, *records, timestampFormat="epoch_millis") == [noon, noon]


def test_dialect_is_as_the_options_say() -> None:
    assert read(THREE, b"1|'x|''y'|2", sep="|", quote="'") == [{"a": 1, "b": "x|'y", "c": 2.0}]
    assert read(THREE, b"1\tx\t2", delimiter="\t") == [{"a": 1, "b": "x", "c": 2.0}]
    assert read(THREE, b'1,"^"^^",2', escape="^") == [{"a": 1, "b": '"^', "c": 2.0}]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"", "malformed: the value is empty"),
        (b"\n", "malformed: the value is empty"),
        (b"1,x", "malformed: another number of fields than the 3 of the schema"),
        (b"1,x,2,y", "malformed: another number of fields than the 3 of the schema"),
        (b"1,x,2\n3,y,4", "malformed: a second line begins at byte 5"),
        (b'1,"x,2', "malformed: it ends too early, after 6 bytes"),
        (b'1,"x"y,2', "malformed: unexpected 'y' after a closing quote, at byte 5"),
        (b"1,\xff,2", "malformed: not UTF-8 at byte 3"),
        (b"x,y,2", "wrong type: field a is something else, not long"),
        (b"1.5,y,2", "wrong type: field a is no whole number, and long takes no other"),
        (b"9223372036854775808,y,2", "wrong type: field a is too large for long"),
        (b"1,y,two", "wrong type: field c is something else, not double"),
        (b'"",y,2', "wrong type: field a is something else, not long"),
    ],
)
def test_line_that_does_not_fit_is_a_failure(record: bytes, expected: str) -> None:
    assert complaint(THREE, record) == expected


def test_field_that_must_be_there_is_missed() -> None:
    schema = schema_of(("a",), a=pa.int64(), b=pa.string())
    assert complaint(schema, b",x").startswith("missing field: field a is missing")
    assert complaint(schema, None).startswith("missing field: the record has no value")


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), min_size=2))
def test_what_python_writes_is_read(texts: list[str]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL).writerow(texts)
    names = [f"c{number}" for number in range(len(texts))]
    # Python knows no escapes but doubled quotes.
    rows = read(
        schema_of(**dict.fromkeys(names, pa.string())), buffer.getvalue().encode(), escape='"'
    )
    assert list(rows[0].values()) == texts


def test_schema_with_nested_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="column v: CSV has no array; declare it string"):
        decoder_for(schema_of(v=pa.list_(pa.int32())), "csv")
    with pytest.raises(ConfigError, match="csv needs a column for each field"):
        decoder_for(schema_of(), "csv")
