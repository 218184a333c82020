"""The compiled encoder against PostgreSQL: each type's values, from the stream and from COPY."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.connect.capture._encoder import AvroEnvelope, JsonEnvelope
from millstream.connect.capture.encoding import (
    ChangeBuffer,
    StreamContext,
    TableEncoder,
    value_types,
)
from millstream.connect.capture.tables import CaptureError, Column, Table
from millstream.connect.capture.types import PostgresType, TypeCatalogue
from tests.connect.capture.source import SETTINGS, Source, taken
from tests.drawing import draws

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


# Generated rows

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
EPOCH = datetime(1970, 1, 1)
# Type, values, and the value in JSON.
GENERATED: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "int8": (st.integers(-(2**63), 2**63 - 1), lambda it: it),
    "text": (TEXTS, lambda it: it),
    "bytea": (st.binary(max_size=40), lambda it: base64.b64encode(it).decode()),
    "bool": (st.booleans(), lambda it: it),
    "float8": (st.floats(allow_nan=False, allow_infinity=False), lambda it: it),
    "numeric": (st.decimals(allow_nan=False, allow_infinity=False, places=5), lambda it: f"{it:f}"),
    "date": (st.dates(), lambda it: (it - EPOCH.date()).days),
    "timestamp": (st.datetimes(), lambda it: (it - EPOCH) // timedelta(microseconds=1)),
    "timestamptz": (
        st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),
        lambda it: it.isoformat(timespec="microseconds") + "Z",
    ),
    "text[]": (st.lists(TEXTS | st.none(), max_size=5), lambda it: it),
    "int4[]": (
        st.lists(st.lists(st.integers(-5, 5), min_size=2, max_size=2), max_size=3),
        lambda it: it,
    ),
    "hstore": (
        st.dictionaries(TEXTS, TEXTS | st.none(), max_size=4),
        lambda it: it,
    ),
    "pair": (st.tuples(st.integers(-9, 9) | st.none(), TEXTS | st.none()), lambda it: it),
}
ROWS = st.lists(
    st.tuples(*(values | st.none() for values, _ in GENERATED.values())), min_size=1, max_size=20
)


@settings(
    max_examples=draws(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS)
def test_generated_rows_are_equal_in_the_stream_and_in_copies(
    source: Source, rows: list[tuple[Any, ...]]
) -> None:
    if not source.tables:
        declare_types(source)
        declared = ", ".join(f"c{number} {kind}" for number, kind in enumerate(GENERATED))
        source.execute(f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    casts = {
        "hstore": "hstore(%s::text[], %s::text[])",
        "pair": "CASE WHEN %s THEN NULL ELSE ROW(%s::int, %s::text)::pair END",
        "timestamptz": "%s::timestamp AT TIME ZONE 'UTC'",
    }
    made = ", ".join(casts.get(kind, f"%s::{kind}") for kind in GENERATED)
    with source.connection.transaction():
        source.execute("DELETE FROM t")
        for number, row in enumerate(rows):
            source.execute(f"INSERT INTO t VALUES ({number}, {made})", arguments_of(row))
    streamed = [json.loads(it.value)["after"] for it in source.changes() if it.value is not None]
    streamed = [it for it in streamed if it is not None]
    expected = [
        {"id": number}
        | {
            f"c{at}": None if value is None else to_json(value)
            for at, (value, (_, to_json)) in enumerate(zip(row, GENERATED.values(), strict=True))
        }
        for number, row in enumerate(rows)
    ]
    for row in streamed:
        restore(row)
    for row in expected:
        pair = row[f"c{len(GENERATED) - 1}"]
        row[f"c{len(GENERATED) - 1}"] = None if pair is None else {"a": pair[0], "b": pair[1]}
    assert streamed == expected
    copied = [json.loads(it.value or b"")["after"] for it in source.copy(source.tables["t"])]
    for row in copied:
        restore(row)
    assert sorted(copied, key=lambda row: row["id"]) == expected


def arguments_of(row: tuple[Any, ...]) -> list[Any]:
    given: list[Any] = []
    for kind, value in zip(GENERATED, row, strict=True):
        if kind == "hstore":
            given += [None, None] if value is None else [list(value), list(value.values())]
        elif kind == "pair":
            given += [value is None, *(value or (None, None))]
        else:
            given.append(value)
    return given


def restore(row: dict[str, Any]) -> None:
    """hstore is JSON in JSON."""
    name = f"c{list(GENERATED).index('hstore')}"
    if row[name] is not None:
        row[name] = json.loads(row[name])


# Malformed input

FUZZED = {
    20: b"-12", 701: b"-1.5e+20", 16: b"t", 17: b"\\x00ff", 600: b"(1.5,-2)", 790: b"-$1,234.56",
    1082: b"0044-03-15 BC", 1083: b"01:02:03.456", 1114: b"2026-01-02 03:04:05.678",
    1184: b"2026-01-02 03:04:05.678+05:30", 1266: b"01:02:03+02", 1560: b"1011",
    1007: b"[0:1][1:2]={{1,NULL},{3,4}}", 1009: b'{a,"b\\"c",NULL}', 70001: b'(1,"{""(1,x)""}")',
    70002: b'"a"=>"1", "b\\"c"=>NULL', 1700: b"-12.50", 25: "é\U0001f600\n".encode(),
}  # fmt: skip
FUZZED_TYPES = TypeCatalogue.of(
    [
        PostgresType(70001, "s", "c", "c", attributes=(("a", 23, -1), ("b", 70003, -1))),
        PostgresType(70002, "s", "hstore", "b"),
        PostgresType(70003, "s", "_d", "b", element_oid=70004),
        PostgresType(70004, "s", "d", "c", attributes=(("x", 23, -1), ("y", 25, -1))),
    ]
)


def fuzzed_encoders() -> list[tuple[TableEncoder, StreamContext, ChangeBuffer]]:
    """JSON and Avro, with settings that reach all kinds of values."""
    table = Table(
        5, "s", "t", tuple(Column(f"c{oid}", oid, 4 if oid == 1560 else -1) for oid in FUZZED)
    )
    made = []
    for is_avro in (False, True):
        chosen = replace(SETTINGS, decimals="precise", hstores="map" if is_avro else "json")
        context, buffer = StreamContext(), ChangeBuffer()
        types = value_types(table, chosen, FUZZED_TYPES)
        envelope = (
            AvroEnvelope(table, chosen, types, "v", "c", lambda *which: sum(which))
            if is_avro
            else JsonEnvelope(table, chosen, types, [b"null"] * len(types), "v", "c")
        )
        made.append((TableEncoder(table, chosen, envelope, context, buffer), context, buffer))
    return made


def insert_message(values: list[bytes]) -> bytes:
    body = b"I" + struct.pack(">I", 5) + b"N" + struct.pack(">H", len(values))
    for value in values:
        body += b"t" + struct.pack(">I", len(value)) + value
    return b"w" + bytes(24) + body


def mutated(draw: st.DataObject, content: bytes) -> bytes:
    """Some bytes replaced, removed or doubled."""
    changed = bytearray(content)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, max(len(changed) - 1, 0)))
        match draw.draw(st.integers(0, 2)):
            case 0:
                del changed[at : at + 1]
            case 1:
                changed[at : at + 1] = draw.draw(
                    st.sampled_from([b"{", b"}", b'"', b"\\", b",", b"(", b")", b"\xff", b"0", b""])
                )
            case _:
                changed[at:at] = changed[at : at + draw.draw(st.integers(1, 9))]
    return bytes(changed)


def test_values_to_be_fuzzed_are_well_formed() -> None:
    for encoder, context, buffer in fuzzed_encoders():
        context.begin(xid=1, commit_lsn=1, commit_time_us=1, now_us=1)
        encoder.change(insert_message(list(FUZZED.values())))
        assert len(buffer) == 1


@settings(max_examples=draws(150), deadline=None)
@given(data=st.data())
def test_malformed_values_are_refused_or_written_whole(data: st.DataObject) -> None:
    oid = data.draw(st.sampled_from(list(FUZZED)))
    values = [mutated(data, it) if of == oid else it for of, it in FUZZED.items()]
    for encoder, context, buffer in fuzzed_encoders():
        context.begin(xid=1, commit_lsn=1, commit_time_us=1, now_us=1)
        try:
            encoder.change(insert_message(values))
        except CaptureError:
            assert len(buffer) == 0
        else:
            (change,) = taken(buffer)
            if isinstance(change.value, bytes) and change.value[:1] == b"{":
                json.loads(change.value)


@settings(max_examples=draws(150), deadline=None)
@given(data=st.data())
def test_malformed_messages_and_lines_are_refused_or_written_whole(data: st.DataObject) -> None:
    message = mutated(data, insert_message(list(FUZZED.values()))[25:])
    escaped = [it.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") for it in FUZZED.values()]
    lines = mutated(data, b"\t".join(escaped) + b"\n")
    for encoder, context, buffer in fuzzed_encoders():
        context.begin(xid=1, commit_lsn=1, commit_time_us=1, now_us=1)
        try:
            encoder.change(b"w" + bytes(24) + message)
        except CaptureError:
            assert len(buffer) == 0
        buffer.clear()
        try:
            encoder.copy(lines, flag="true", lsn=1, xid=1, snapshot_time_us=1, now_us=1)
        except CaptureError:
            assert len(buffer) == 0
