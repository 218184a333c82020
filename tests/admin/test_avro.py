"""Values for people, compared with those that fastavro reads."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from millstream.admin.avro import decode_avro
from millstream.client.avro_schema import parse_schema

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "ok", "type": "boolean"},
        {"name": "ratio", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
    ],
}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def decoded(schema: Any, data: bytes) -> Any:
    return decode_avro(data, parse_schema(json.dumps(schema)))


def test_avro_reads_what_fastavro_writes() -> None:
    value = {
        "id": -(2**63),
        "note": "ü",
        "ok": True,
        "ratio": 0.1,
        "tags": ["a", ""],
        "counts": {"x": 1, "y": -2},
        "state": "DONE",
    }
    assert decoded(ORDER, encoded(ORDER, value)) == value


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ({"type": "int", "logicalType": "date"}, date(2026, 11, 17), "2026-11-17"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 11, 17, 1, 2, 3, 456000, UTC),
            "2026-11-17T01:02:03.456Z",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-12.30"),
            "-12.30",
        ),
        ("bytes", b"\x00\xff", "00ff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "6162"),
    ],
)
def test_avro_shows_logical_types_as_text(schema: Any, value: Any, shown: str) -> None:
    assert decoded(schema, encoded(schema, value)) == shown


@pytest.mark.parametrize("size", range(12))
def test_avro_refuses_cut_values(size: int) -> None:
    value: dict[str, Any] = {
        "id": 1,
        "note": None,
        "ok": False,
        "ratio": 1.0,
        "tags": [],
        "counts": {},
    }
    data = encoded(ORDER, value | {"state": "NEW"})
    with pytest.raises(ValueError):
        decoded(ORDER, data[:size])


def test_avro_refuses_what_follows_a_value() -> None:
    with pytest.raises(ValueError, match="1 bytes are left"):
        decoded("int", b"\x02\x00")


def test_avro_refuses_claims_that_would_not_end() -> None:
    nulls = {"type": "array", "items": "null"}
    with pytest.raises(ValueError, match="items"):
        decoded(nulls, encoded("long", 2**60) + b"\x00")
    nodes = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    with pytest.raises(ValueError, match="levels"):
        decoded(nodes, b"\x02" * 100_000 + b"\x00")
    with pytest.raises(ValueError, match="claims"):
        decoded("string", encoded("long", 2**50))
    with pytest.raises(ValueError, match="too many bytes"):
        decoded("long", b"\xff" * 50)
    with pytest.raises(ValueError):
        decoded({"type": "int", "logicalType": "date"}, encoded("int", 2**31 - 1))
