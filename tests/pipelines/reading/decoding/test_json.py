"""JSON as typed rows: what fits, what does not, and what is said of it."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.reading.decoding.values import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    complaint,
    decode,
    read,
    read_one,
    schema_of,
)

ID_AND_NAME = schema_of(id=pa.int64(), name=pa.string())


def value(text: str) -> bytes:
    return b'{"v": ' + text.encode() + b"}"


# Types


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.bool_(), "true", True),
        (pa.bool_(), "false", False),
        (pa.int8(), "-128", -128),
        (pa.int16(), "32767", 32767),
        (pa.int32(), "-2147483648", -(2**31)),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int64(), "-9223372036854775808", -(2**63)),
        (pa.int64(), "-0", 0),
        (pa.float64(), "1.5", 1.5),
        (pa.float64(), "7", 7.0),
        (pa.float64(), "-1E-7", -1e-7),
        (pa.float64(), "123456789012345678901234567890", 123456789012345678901234567890.0),
        (pa.float64(), "2.2250738585072011e-308", 2.2250738585072011e-308),
        (pa.float64(), "1e-999", 0.0),
        (pa.float64(), '"Infinity"', math.inf),
        (pa.float64(), '"-Infinity"', -math.inf),
        (pa.float32(), "0.25", 0.25),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal128(10, 2), "12.5", Decimal("12.50")),
        (pa.decimal128(10, 2), "-12.500", Decimal("-12.50")),
        (pa.decimal128(10, 2), '"0.01"', Decimal("0.01")),
        (pa.decimal128(10, 2), "1.5e3", Decimal("1500.00")),
        (pa.decimal128(5, 5), "0.00001", Decimal("0.00001")),
        (pa.string(), '""', ""),
        (pa.string(), '"a\\"b\\\\c\\/\\b\\f\\n\\r\\t"', 'a"b\\c/\b\f\n\r\t'),
        (pa.string(), '"\\u00e9\\u20ac\\ud83d\\ude00é€😀"', "é€😀é€😀"),
        (pa.binary(), '"AP8Q"', b"\x00\xff\x10"),
        (pa.binary(), '"aGk="', b"hi"),
        (pa.binary(), '"aA=="', b"h"),
        (pa.binary(), '""', b""),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (pa.date32(), '"0001-01-01"', date(1, 1, 1)),
        (pa.list_(pa.int32()), "[1, null, 3]", [1, None, 3]),
        (pa.list_(pa.list_(pa.string())), '[[], ["a"], null]', [[], ["a"], None]),
        (pa.map_(pa.string(), pa.int32()), '{"a": 1, "\\u0062": null}', [("a", 1), ("b", None)]),
        (pa.struct([("a", pa.int32())]), '{"a": 1}', {"a": 1}),
        (pa.struct([("a", pa.int32())]), "{}", {"a": None}),
    ],
)
def test_value_is_read_as_its_type(kind: Any, text: str, expected: Any) -> None:
    assert read_one(kind, value(text)) == expected
    assert read_one(kind, value("null")) is None


def test_value_nan_is_read_as_spark_writes_it() -> None:
    assert math.isnan(read_one(pa.float64(), value('"NaN"')))
    assert math.isnan(read_one(pa.float32(), value('"NaN"')))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-14T08:30:00Z", datetime(2026, 11, 14, 8, 30, tzinfo=UTC)),
        ("2026-11-14T08:30:00.5+02:00", datetime(2026, 11, 14, 6, 30, 0, 500000, tzinfo=UTC)),
        ("2026-11-14 08:30:00.123456789-0330", datetime(2026, 11, 14, 12, 0, 0, 123456, UTC)),
        ("2026-11-14T08:30+01", datetime(2026, 11, 14, 7, 30, tzinfo=UTC)),
        ("2026-11-14T08:30:00", datetime(2026, 11, 14, 8, 30, tzinfo=UTC)),
        ("2026-11-14", datetime(2026, 11, 14, tzinfo=UTC)),
        ("1969-12-31T23:59:59.999999z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    ],
)
def test_timestamp_has_its_offset_and_is_utc_without(text: str, expected: datetime) -> None:
    assert read_one(TIMESTAMP, value(f'"{text}"')) == expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("epoch_millis", "1772366400123", datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)),
        ("epoch_millis", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("epoch_seconds", "0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("epoch_micros", "1772366400000001", datetime(2026, 3, 1, 12, microsecond=1, tzinfo=UTC)),
        ("epoch_seconds", "253402300799", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("epoch_millis", '"2026-03-01T12:00:00Z"', datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ],
)
def test_number_is_a_timestamp_where_its_unit_is_named(
    form: str, text: str, expected: datetime
) -> None:
    (row,) = read(schema_of(v=TIMESTAMP), value(text), timestampFormat=form)
    assert row == {"v": expected}


def test_number_that_is_no_timestamp_of_its_unit_is_a_failure() -> None:
    for text, expected in (("1.5", "no whole number"), ("253402300800", "too large")):
        found = complaint(schema_of(v=TIMESTAMP), value(text), timestampFormat="epoch_seconds")
        assert expected in found
    assert "timestampFormat, like epoch_millis" in complaint(schema_of(v=TIMESTAMP), value("17"))
    assert "is a number, not date" in complaint(
        schema_of(v=pa.date32()), value("17"), timestampFormat="epoch_millis"
    )


def test_timestamp_ntz_is_read_as_the_clock_on_the_wall() -> None:
    expected = datetime(2026, 11, 14, 8, 30, 0, 250000)
    assert read_one(TIMESTAMP_NTZ, value('"2026-11-14T08:30:00.25"')) == expected


@settings(deadline=None)
@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_timestamps_of_all_years_are_those_of_python(moment: datetime) -> None:
    text = moment.isoformat()
    assert read_one(TIMESTAMP_NTZ, value(f'"{text}"')) == moment
    assert read_one(pa.date32(), value(f'"{text[:10]}"')) == moment.date()


# What does not fit


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int64(), '"7"', "field v is a string, not long"),
        (pa.int64(), "1.5", "field v is no whole number, and long takes no other"),
        (pa.int64(), "1.0", "field v is no whole number"),
        (pa.int64(), "1e3", "field v is no whole number"),
        (pa.int64(), "9223372036854775808", "field v is too large for long"),
        (pa.int64(), "-9223372036854775809", "field v is too large for long"),
        (pa.int64(), "1" + 30 * "0", "field v is too large for long"),
        (pa.int8(), "128", "field v is too large for byte"),
        (pa.int8(), "-129", "field v is too large for byte"),
        (pa.int16(), "32768", "field v is too large for short"),
        (pa.int32(), "2147483648", "field v is too large for int"),
        (pa.int32(), "true", "field v is true, not int"),
        (pa.float64(), "1e999", "field v is too large for double"),
        (pa.float32(), "1e39", "field v is too large for float"),
        (pa.float64(), '"1.5"', "field v is a string, not double"),
        (pa.bool_(), "1", "field v is a number, not boolean"),
        (pa.bool_(), '"true"', "field v is a string, not boolean"),
        (pa.string(), "1", "field v is a number, not string"),
        (pa.string(), '{"a": 1}', "field v is an object, not string"),
        (pa.decimal128(4, 2), "1.234", "field v does not fit decimal(4,2) exactly"),
        (pa.decimal128(4, 2), "100", "field v does not fit decimal(4,2) exactly"),
        (pa.decimal128(38, 0), "1" + "0" * 38, "field v does not fit decimal(38,0) exactly"),
        (pa.decimal128(38, 0), "1e400", "field v does not fit decimal(38,0) exactly"),
        (pa.decimal128(4, 2), '"1,5"', "field v is a string, not decimal(4,2)"),
        (pa.binary(), '"a"', "field v is not base64"),
        (pa.binary(), '"a=bc"', "field v is not base64"),
        (pa.date32(), '"2023-02-29"', "field v is no date; write 2026-11-30"),
        (pa.date32(), '"2023-1-1"', "field v is no date"),
        (pa.date32(), "19000", "field v is a number, not date; for a timestamp"),
        (
            TIMESTAMP,
            "1700000000000",
            "field v is a number, not timestamp; for a timestamp",
        ),
        (TIMESTAMP, '"yesterday"', "field v is no timestamp; write 2026-11-30T12:00:00.123Z"),
        (TIMESTAMP, '"2026-11-14T24:00:00Z"', "field v is no timestamp"),
        (TIMESTAMP, '"2026-11-14T08:30:00 Europe/Berlin"', "field v is no timestamp"),
        (TIMESTAMP, '"2026-11-14T08:30:00+02:60"', "field v is no timestamp"),
        (TIMESTAMP_NTZ, '"2026-11-14T08:30:00Z"', "field v has an offset from UTC, which"),
        (pa.list_(pa.int32()), '{"a": 1}', "field v is an object, not array"),
        (pa.list_(pa.int32()), '[1, "2"]', "field v[] is a string, not int"),
        (pa.map_(pa.string(), pa.int32()), "[1]", "field v is an array, not map"),
        (pa.map_(pa.string(), pa.int32()), '{"a": "b"}', "field v[] is a string, not int"),
        (pa.struct([("a", pa.int32())]), '{"a": "b"}', "field v.a is a string, not int"),
        (pa.struct([("a", pa.int32())]), "7", "field v is a number, not struct"),
    ],
)
def test_value_of_another_type_is_a_failure_and_never_coerced(
    kind: Any, text: str, expected: str
) -> None:
    assert complaint(schema_of(v=kind), value(text)).startswith(f"wrong type: {expected}")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"", "the value is empty"),
        (b" \n", "the value is empty"),
        (b"{}{}", "more follows after its end, at byte 2"),
        (b'{"id": 1} x', "more follows after its end, at byte 10"),
        (b'{"id": 1', "it ends too early, after 8 bytes"),
        (b'{"id": 1,}', "unexpected '}' at byte 9"),
        (b'{"id" 1}', "unexpected '1' at byte 6"),
        (b"{id: 1}", "unexpected 'i' at byte 1"),
        (b"{'id': 1}", 'unexpected "\'" at byte 1'),
        (b'{"id": NaN}', "unexpected 'N' at byte 7"),
        (b'{"other": Infinity}', "unexpected 'I' at byte 10"),
        (b'{"id": 01}', "unexpected '0' at byte 7"),
        (b'{"id": 1.}', "unexpected '1' at byte 7"),
        (b'{"id": +1}', "unexpected '+' at byte 7"),
        (b'{"id": nul}', "unexpected '}' at byte 10"),
        (b'{"name": "a\nb"}', "control character '\\n' in a string, at byte 11"),
        (b'{"name": "\\x"}', "bad escape in a string, at byte 10"),
        (b'{"name": "\\u12g4"}', "bad escape in a string, at byte 10"),
        (b'{"name": "\\ud800"}', "half of a surrogate pair in a string, at byte 10"),
        (b'{"name": "\xff"}', "not UTF-8 at byte 10"),
        (b'{"name": "\xed\xa0\x80"}', "not UTF-8 at byte 10"),
        (b'{"other": "\xc0\x80"}', "not UTF-8 at byte 11"),
        (b'{"name": "a', "it ends too early, after 11 bytes"),
        (b"\xef\xbb\xbf{}", "unexpected 0xef at byte 0"),
        (b'{"id": 1, "id": 2}', "field id is there twice"),
        (b'{"other": ' + b"[" * 600, "nested deeper than 512 levels, at byte 521"),
        (b'{"id": "7", "name": }', "unexpected '}' at byte 20"),  # and not of a wrong type
    ],
)
def test_value_that_is_no_json_object_is_malformed(record: bytes, expected: str) -> None:
    assert complaint(ID_AND_NAME, record) == f"malformed: {expected}"


@pytest.mark.parametrize(
    ("record", "found"), [(b"[1]", "an array"), (b"null", "null"), (b' "{}"', "a string")]
)
def test_value_that_is_another_json_is_of_a_wrong_type(record: bytes, found: str) -> None:
    assert complaint(ID_AND_NAME, record) == f"wrong type: the value is {found}, not an object"


def test_map_with_a_key_twice_is_malformed_however_large() -> None:
    schema = schema_of(m=pa.map_(pa.string(), pa.int32()))
    assert complaint(schema, b'{"m": {"a": 1, "a": 2}}') == "malformed: field m has a key twice"
    many = ", ".join(f'"{it}": {it}' for it in range(100))
    assert len(read(schema, f'{{"m": {{{many}}}}}'.encode())[0]["m"]) == 100
    assert "twice" in complaint(schema, f'{{"m": {{{many}, "7": 7}}}}'.encode())


# Fields


def test_fields_come_in_any_order_and_others_are_ignored() -> None:
    rows = read(
        ID_AND_NAME,
        b'{"name": "a", "id": 1}',
        b'{"x": [1, {"id": "no"}], "id": 2, "y": null, "name": "b", "z": "\\"}"}',
        b'\t{ "id" :\r\n3 , "name" : "c" } ',
        b'{"\\u0069d": 4}',
        b'{"ID": 5}',
    )
    assert rows == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": "c"},
        {"id": 4, "name": None},
        {"id": None, "name": None},
    ]


def test_fields_with_odd_names_are_found_by_their_meaning() -> None:
    schema = schema_of(**{'a"b': pa.int32(), "c\\d": pa.int32(), "é": pa.int32(), "": pa.int32()})
    record = json.dumps({'a"b': 1, "c\\d": 2, "é": 3, "": 4}).encode()
    assert read(schema, record, record) == 2 * [{'a"b': 1, "c\\d": 2, "é": 3, "": 4}]
    # As it stands between the quotes it would be the name, and means another one.
    assert read(schema, b'{"c\\d": 1}'.replace(b"d", b"n")) == [
        {'a"b': None, "c\\d": None, "é": None, "": None}
    ]


def test_field_that_must_be_there_is_missed() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("inner", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        ]
    )
    assert read(schema, b'{"id": 1}')[0]["id"] == 1
    assert complaint(schema, b"{}") == "missing field: field id is missing, and may not be null"
    assert complaint(schema, b'{"id": null}') == "missing field: field id is null, and may not be"
    assert "field inner.a is missing" in complaint(schema, b'{"id": 1, "inner": {}}')
    assert "field tags[] is null" in complaint(schema, b'{"id": 1, "tags": [null]}')
    assert "the record has no value, and field id" in complaint(schema, None)


def test_record_without_a_value_is_a_row_of_nulls() -> None:
    schema = schema_of(id=pa.int64(), s=pa.struct([("a", pa.list_(pa.string()))]))
    assert read(schema, None, b'{"id": 1}', None) == [
        {"id": None, "s": None},
        {"id": 1, "s": None},
        {"id": None, "s": None},
    ]


def test_schema_without_columns_checks_the_values_all_the_same() -> None:
    decoded = decode(schema_of(), b"{}", b"x", b'{"a": 1}')
    assert decoded.rows.to_pylist() == [0, 2]
    assert [it.row for it in decoded.failures] == [1]


# Python's own writer and reader


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), json_values, st.booleans())
def test_what_python_writes_is_read(text: str, number: float, other: Any, ascii_only: bool) -> None:
    schema = schema_of(text=pa.string(), number=pa.float64(), numbers=pa.list_(pa.float64()))
    record = {"other": other, "text": text, "number": number, "numbers": [number, None]}
    try:
        encoded = json.dumps(record, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return
    if "\\ud" in encoded.decode().lower() and not _encodes(record):
        return
    assert read(schema, encoded) == [{"text": text, "number": number, "numbers": [number, None]}]


def _encodes(record: Any) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_mutilated_json_is_judged_as_python_does() -> None:
    """Strict Python: no NaN, no key twice, no half surrogates, valid UTF-8."""
    chance = random.Random(7)
    schema = schema_of(unused=pa.list_(pa.struct([("a", pa.int64())])))
    original = json.dumps(
        {"a": [1, -2.5e3, {"b": "c\\d\u00e9\n", "e": None}], "f": {"g": [True, False, []]}}
    ).encode()
    noise = b'{}[]",:\\0123456789ntfe.-u \xff'
    records = []
    for _ in range(20_000):
        record = bytearray(original[: chance.randint(0, len(original))] or original)
        for _ in range(chance.randint(0, 2)):
            record[chance.randrange(len(record))] = chance.choice(noise)
        records.append(bytes(record))
    bad = {it.row for it in decode(schema, *records).failures}
    for number, record in enumerate(records):
        assert (number in bad) == (not _is_strict_object(record)), record


def _is_strict_object(record: bytes) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        found = json.loads(record.decode(), parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)
