"""The compiled encoder against PostgreSQL: each type's values, from the stream and from COPY."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.connect.capture.source import Source

# Type, values as SQL, and what they are in JSON.
VALUES: dict[str, list[tuple[str, Any]]] = {
    "bool": [("true", True), ("false", False), ("NULL", None)],
    "int2": [("-32768", -32768)],
    "int4": [("2147483647", 2147483647)],
    "int8": [("-9223372036854775808", -(2**63)), ("9007199254740993", 9007199254740993)],
    "oid": [("4000000000", 4000000000)],
    "float4": [("0.1", 0.1), ("'NaN'", "NaN"), ("1e30", 1e30)],
    "float8": [("1e300", 1e300), ("'-Infinity'", "-Infinity"), ("-0.0", 0.0), ("1e-7", 1e-7)],
    "numeric": [("12.500", "12.500"), ("'NaN'", "NaN"), ("'Infinity'", "Infinity")],
    "numeric(10,2)": [("12.5", "12.50"), ("-0.01", "-0.01")],
    "money": [("'-1234567.89'", "-1234567.89"), ("0", "0.00")],
    "text": [
        ("'plain'", "plain"),
        ("''", ""),
        (r"E'q\"uo\\te\n\t\r\b\f\x01 é 漢 😀'", 'q"uo\\te\n\t\r\b\f\x01 é 漢 😀'),
        (r"'\N'", "\\N"),
        ("repeat('long and \"quoted\"', 1000)", 'long and "quoted"' * 1000),
    ],
    "varchar(5)": [("'abc'", "abc")],
    "char(3)": [("'a'", "a  ")],
    '"char"': [("'x'", "x")],
    "name": [("'n'", "n")],
    "bytea": [(r"'\x'", ""), (r"'\x00'", "AA=="), (r"'\x00ff'", "AP8="), (r"'\x0102ff'", "AQL/")],
    "bit(1)": [("B'1'", True), ("B'0'", False)],
    "bit(12)": [("B'101100000001'", "AQs=")],
    "varbit(10)": [("B'0001'", "0001"), ("B''", "")],
    "date": [
        ("'2026-01-02'", 20455),
        ("'1969-12-31'", -1),
        ("'0044-03-15 BC'", -735160),
        ("'5874897-12-31'", 2145042905),
        ("'infinity'", "infinity"),
        ("'-infinity'", "-infinity"),
    ],
    "time": [("'03:04:05.678901'", 11045678901), ("'24:00:00'", 86400000000)],
    "time(3)": [("'03:04:05.678901'", 11045679)],
    "timetz": [
        ("'03:04:05.67+02'", "03:04:05.67+02:00"),
        ("'03:04:05+05:30'", "03:04:05+05:30"),
        ("'03:04:05+00'", "03:04:05Z"),
    ],
    "timestamp": [
        ("'2026-01-02 03:04:05.678901'", 1767323045678901),
        ("'1969-12-31 23:59:59.5'", -500000),
        ("'infinity'", "infinity"),
        ("'294276-12-31 23:59:59.999999'", "+294276-12-31T23:59:59.999999"),
    ],
    "timestamp(3)": [
        ("'2026-01-02 03:04:05.678901'", 1767323045679),
        ("'1969-12-31 23:59:59.5'", -500),
    ],
    "timestamptz": [
        ("'2026-01-02 03:04:05.67+02'", "2026-01-02T01:04:05.670000Z"),
        ("'0044-03-15 12:00:00+00 BC'", "-0043-03-15T12:00:00.000000Z"),
        ("'0001-03-15 12:00:00+00 BC'", "0000-03-15T12:00:00.000000Z"),
        ("'12026-03-15 12:00:00+00'", "+12026-03-15T12:00:00.000000Z"),
        ("'-infinity'", "-infinity"),
    ],
    "timestamptz(0)": [("'2026-01-02 03:04:05.67+02'", "2026-01-02T01:04:06Z")],
    "interval": [
        ("'1 month 2 days 03:04:05.5'", "P1M2DT3H4M5.5S"),
        ("'-1 month 2 days -03:04:05.5'", "P-1M2DT-3H-4M-5.5S"),
        ("'0'", "PT0S"),
    ],
    "json": [("""'{"a": [1, "x"]}'""", '{"a": [1, "x"]}')],
    "jsonb": [("""'{"a":1}'""", '{"a": 1}')],
    "uuid": [("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")],
    "xml": [("'<a b=\"c\"/>'", '<a b="c"/>')],
    "inet": [("'10.0.0.1/8'", "10.0.0.1/8")],
    "cidr": [("'10.0.0.0/8'", "10.0.0.0/8")],
    "macaddr": [("'08:00:2b:01:02:03'", "08:00:2b:01:02:03")],
    "tsvector": [("'a b'", "'a' 'b'")],
    "pg_lsn": [("'0/1'", "0/1")],
    "int4range": [("'[1,5)'", "[1,5)"), ("'empty'", "empty")],
    "int4multirange": [("'{[1,5)}'", "{[1,5)}")],
    "tstzrange": [("'[2026-01-01 00:00+00,)'", '["2026-01-01 00:00:00+00",)')],
    "point": [
        ("'(1.5,-2)'", {"x": 1.5, "y": -2, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None})
    ],
    "box": [("'(1,2),(3,4)'", "(3,4),(1,2)")],
    "mood": [("'ok'", "ok"), ("'so \"so\"'", 'so "so"')],
    "positive": [("5", 5)],
    "hstore": [
        ("''", "{}"),
        ("'a=>1,b=>NULL'", '{"a":"1","b":null}'),
        (r"""hstore('q"\u', E'x\n"\\')""", '{"q\\"\\\\u":"x\\n\\"\\\\"}'),
    ],
    "pair": [
        ("ROW(1, 'q,\"z')", {"a": 1, "b": 'q,"z'}),
        ("ROW(NULL, NULL)", {"a": None, "b": None}),
        ("ROW(NULL, '')", {"a": None, "b": ""}),
    ],
    "deep": [
        (
            r"ROW(ARRAY[ROW(1, E'{\"\\,')::pair, NULL], ARRAY['x', NULL])",
            {"pairs": [{"a": 1, "b": '{"\\,'}, None], "names": ["x", None]},
        )
    ],
}
ARRAYS: dict[str, list[tuple[str, Any]]] = {
    "int4[]": [
        ("'{}'", []),
        ("'{1,NULL,3}'", [1, None, 3]),
        ("'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
        ("'[0:1]={1,2}'", [1, 2]),
        ("'[-1:0][2:3]={{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    ],
    "text[]": [
        (
            r"""ARRAY['a', 'b,c', NULL, 'NULL', '', 'q"\', '{}']""",
            ["a", "b,c", None, "NULL", "", 'q"\\', "{}"],
        ),
    ],
    "numeric[]": [("'{1.50,NaN}'", ["1.50", "NaN"])],
    "date[]": [("'{2026-01-02,infinity}'", [20455, "infinity"])],
    "timestamptz[]": [("'{2026-01-02 03:04:05+00}'", ["2026-01-02T03:04:05.000000Z"])],
    "bytea[]": [(r"""'{"\\x00ff"}'""", ["AP8="])],
    "bool[]": [("'{t,f}'", [True, False])],
    "jsonb[]": [("""ARRAY['{"a":1}'::jsonb]""", ['{"a": 1}'])],
    "box[]": [("'{(1,2),(3,4);(0,0),(1,1)}'", ["(3,4),(1,2)", "(1,1),(0,0)"])],
    "mood[]": [("'{ok,sad}'", ["ok", "sad"])],
    "positive[]": [("'{1,2}'", [1, 2])],
    "pair[]": [("ARRAY[ROW(1, 'x')::pair]", [{"a": 1, "b": "x"}])],
    "bit(3)[]": [("'{101}'", ["BQ=="])],
    "hstore[]": [("ARRAY['a=>1'::hstore]", ['{"a":"1"}'])],
}


def declare_types(source: Source) -> None:
    source.execute("CREATE EXTENSION hstore")
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'so \"so\"')")
    source.execute("CREATE TYPE pair AS (a int, b text)")
    source.execute("CREATE TYPE deep AS (pairs pair[], names text[])")
    source.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")


@pytest.mark.parametrize("values", [VALUES, ARRAYS], ids=["scalars", "arrays"])
def test_values_of_all_types_are_equal_in_the_stream_and_in_copies(
    source: Source, values: dict[str, list[tuple[str, Any]]]
) -> None:
    declare_types(source)
    columns = [
        (f"c{number}_{at}", kind, *given)
        for number, (kind, examples) in enumerate(values.items())
        for at, given in enumerate(examples)
    ]
    declared = ", ".join(f"{name} {kind}" for name, kind, _, _ in columns)
    source.execute(f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    given = ", ".join(f"({sql})::{kind}" for _, kind, sql, _ in columns)
    source.execute(f"INSERT INTO t VALUES (1, {given})")
    (streamed,) = source.changes()
    after = json.loads(streamed.value or b"")["after"]
    expected = {"id": 1} | {name: value for name, _, _, value in columns}
    assert after == expected
    (copied,) = source.copy(source.tables["t"])
    assert json.loads(copied.value or b"")["after"] == expected
    assert copied.key == streamed.key == b'{"id":1}'
