"""Defaults of schemas as Avro values: what fastavro reads of them."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from millstream.client.avro_schema import BadSchema, parse_schema
from millstream.pipelines.avro.default import encode_default
from tests.pipelines.reading.decoding.avro_values import record

ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "f", "size": 2}


@pytest.mark.parametrize(
    ("schema", "default", "value"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -(2**63), -(2**63)),
        ("float", 1.5, 1.5),
        ("double", 1, 1.0),
        ("string", "Köln", "Köln"),
        ("bytes", "\u00ff\u0000", b"\xff\0"),
        (FIXED, "\u00ffa", b"\xffa"),
        (ENUM, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (["null", "int"], None, None),
        (["null", "string"], "a", "a"),
        (["int", "double"], 1.5, 1.5),
        (["int", "double"], 2, 2),
        (["int", "long"], 2**40, 2**40),
        (["float", "double"], 1e39, 1e39),
        (["long", "boolean"], True, True),
        (["boolean", "int"], 1, 1),
        (["int", "string"], "5", "5"),
        ([{"type": "array", "items": "string"}, "string"], "ab", "ab"),
        (record(a="int", b={"type": "int", "default": 7}), {"a": 1}, {"a": 1, "b": 7}),
    ],
)
def test_default_is_encoded_as_fastavro_reads_it(schema: Any, default: Any, value: Any) -> None:
    encoded = encode_default(parse_schema(json.dumps(schema)), default)
    stream = io.BytesIO(encoded)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert (found, type(found)) == (value, type(value))
    assert stream.read() == b""


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("null", 0),
        ("boolean", "yes"),
        ("int", "many"),
        ("int", "5"),
        ("int", 1.5),
        ("int", True),
        ("int", 2**31),
        ("long", -(2**63) - 1),
        ("boolean", 1),
        ("float", "much"),
        ("float", True),
        ("float", 1e39),
        pytest.param("double", 10**400, id="double-beyond"),
        ({"type": "array", "items": "string"}, "ab"),
        ({"type": "map", "values": "int"}, []),
        (record(), 5),
        ("string", 5),
        (FIXED, "abc"),
        (ENUM, "C"),
        (["null", "int"], "a"),
        (record(a="int"), {}),
    ],
)
def test_default_of_another_type_is_refused(schema: Any, default: Any) -> None:
    with pytest.raises(BadSchema, match="is none of"):
        encode_default(parse_schema(json.dumps(schema)), default)
