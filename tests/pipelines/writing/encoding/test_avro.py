"""Rows as Avro: what fastavro reads of it, and what cannot be written."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.avro.options import AvroOptions
from millstream.pipelines.avro.types import derive_schema
from millstream.pipelines.writing.encoding.avro import AvroEncoder
from tests.drawing import draws
from tests.pipelines.reading.decoding.avro_values import (
    ROWS,
    Kind,
    avro,
    logical,
    plain,
    record,
    rows_of,
)
from tests.pipelines.reading.decoding.values import columns_of, decoder_for

TIMESTAMP = pa.timestamp("us", tz="UTC")


def encode(batch: pa.RecordBatch, schema: Any = None) -> list[bytes]:
    options = AvroOptions(schema=None if schema is None else json.dumps(schema))
    values = AvroEncoder(options, batch.schema, "t").encode(batch)
    values.validate(full=True)
    found: list[bytes] = values.to_pylist()
    return found


def by_fastavro(schema: Any, value: bytes) -> Any:
    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert stream.read() == b""
    return found


def one(kind: Any, value: Any, avro_type: Any) -> Any:
    """The one column `v`, as fastavro reads it back."""
    schema = record(v=avro_type)
    batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["v"])
    return by_fastavro(schema, encode(batch, schema)[0])["v"]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=draws(100))
@given(st.data(), ROWS)
def test_encoder_writes_what_fastavro_writes(data: st.DataObject, row: Kind) -> None:
    """Of what the decoder has read; which a test of its own holds beside fastavro."""
    written = [avro(plain(row.avro), data.draw(row.values)) for _ in range(3)]
    schema = pa.schema(list(row.arrow))
    decoder = decoder_for(schema, "avro", avroSchema=json.dumps(row.avro))
    batch = decoder.decode(columns_of(written)).batch
    values = encode_if_it_fits(batch, row.avro)
    for place, value in enumerate(values):
        assert row.as_row(by_fastavro(plain(row.avro), value)) == rows_of(batch)[place]


def encode_if_it_fits(batch: pa.RecordBatch, schema: Any) -> list[bytes]:
    """A column may be wider than the type from which it was read: then it is refused."""
    try:
        return encode(batch, schema)
    except ConfigError as error:
        if "cast it" in str(error) or "does not fit the type" in str(error):
            return []
        raise


def test_encoder_derives_a_schema_from_the_columns() -> None:
    address = pa.struct([("city", pa.string()), ("zip", pa.int16())])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("paid", pa.bool_()),
            pa.field("amount", pa.decimal128(10, 2)),
            pa.field("at", TIMESTAMP),
            pa.field("day", pa.date32()),
            pa.field("clock", pa.time64("ns")),
            pa.field("raw", pa.binary()),
            pa.field("score", pa.float32()),
            pa.field("home", address),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("counts", pa.map_(pa.string(), pa.int32())),
        ]
    )
    row = {
        "id": -1,
        "paid": True,
        "amount": Decimal("-12.34"),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "day": date(2026, 11, 30),
        "clock": time(12, 30, 0, 5),
        "raw": b"\0\xff",
        "score": 1.5,
        "home": {"city": "Köln", "zip": None},
        "tags": ["a", None, ""],
        "counts": [("x", 1), ("y", None)],
    }
    empty = dict.fromkeys(row) | {"id": 2**63 - 1}
    batch = pa.RecordBatch.from_pylist([row, empty], schema)
    avro_schema = json.loads(derive_schema(schema))
    values = encode(batch)
    assert by_fastavro(avro_schema, values[0]) == row | {"counts": {"x": 1, "y": None}}
    assert by_fastavro(avro_schema, values[1]) == empty
    assert {it["name"]: it.get("default", "none") for it in avro_schema["fields"]}["id"] == "none"


def test_encoder_takes_slices_of_batches() -> None:
    kind = pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))])
    rows = [{"v": None if n % 3 == 0 else {"a": [{"b": str(n)}] * n}} for n in range(20)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("v", kind)]))
    schema = json.loads(derive_schema(batch.schema))
    found = [by_fastavro(schema, it) for it in encode(batch.slice(5, 10))]
    assert found == rows[5:15]


@pytest.mark.parametrize(
    ("kind", "value", "avro_type", "expected"),
    [
        (pa.int32(), 5, "long", 5),
        (pa.int64(), 5, "int", 5),
        (pa.int32(), 5, "double", 5.0),
        (pa.float32(), 0.5, "double", 0.5),
        (pa.string(), "b", {"type": "enum", "name": "e", "symbols": ["a", "b"]}, "b"),
        (pa.string(), "x", ["int", "null", "string"], "x"),
        (pa.string(), None, ["int", "null", "string"], None),
        (pa.large_string(), "x", "string", "x"),
        (pa.binary(), b"ab", {"type": "fixed", "name": "f", "size": 2}, b"ab"),
        (
            pa.decimal128(5, 1),
            Decimal("-1.5"),
            logical("bytes", "decimal", precision=9, scale=3),
            Decimal("-1.500"),
        ),
        (
            pa.decimal128(5, 1),
            Decimal("-1.5"),
            {
                "type": "fixed",
                "name": "f",
                "size": 8,
                "logicalType": "decimal",
                "precision": 9,
                "scale": 1,
            },
            Decimal("-1.5"),
        ),
        (
            TIMESTAMP,
            datetime(1969, 12, 31, 23, 59, 59, 999_900, UTC),
            logical("long", "timestamp-millis"),
            datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        ),
        (
            pa.timestamp("us"),
            datetime(2026, 1, 2),
            logical("long", "local-timestamp-micros"),
            datetime(2026, 1, 2),
        ),
        (pa.time64("ns"), time(1, 2, 3), logical("int", "time-millis"), time(1, 2, 3)),
    ],
)
def test_encoder_writes_by_the_schema_given(
    kind: Any, value: Any, avro_type: Any, expected: Any
) -> None:
    assert one(kind, value, avro_type) == expected


def test_uuid_is_written_as_sixteen_bytes() -> None:
    uuid = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
    text = "00112233-4455-6677-8899-aabbccddeeff"
    batch = pa.RecordBatch.from_pydict({"v": pa.array([text])})
    assert encode(batch, record(v=uuid)) == [bytes.fromhex(text.replace("-", ""))]


def test_field_without_a_column_takes_its_default() -> None:
    schema = record(a="int", b={"type": "string", "default": "none"})
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())})
    assert by_fastavro(schema, encode(batch, schema)[0]) == {"a": 1, "b": "none"}


@pytest.mark.parametrize(
    ("kind", "avro_type", "expected"),
    [
        (pa.string(), "int", "column v is string, and the Avro schema says int"),
        (pa.int64(), "double", "column v is int64, and the Avro schema says double"),
        (pa.int64(), logical("long", "timestamp-millis"), "column v is int64"),
        (TIMESTAMP, "long", "column v is timestamp"),
        (TIMESTAMP, logical("long", "local-timestamp-micros"), "column v is timestamp"),
        (pa.map_(pa.int32(), pa.int32()), {"type": "map", "values": "int"}, "column v is map"),
    ],
)
def test_column_of_another_type_is_refused(kind: Any, avro_type: Any, expected: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([], kind)], ["v"])
    with pytest.raises(ConfigError, match=expected):
        encode(batch, record(v=avro_type))


@pytest.mark.parametrize(
    ("kind", "value", "avro_type", "expected"),
    [
        (pa.int64(), 2**31, "int", "column v of a row does not fit"),
        (pa.string(), None, "string", "column v of a row is null"),
        (
            pa.list_(pa.int32()),
            [1, None],
            {"type": "array", "items": "int"},
            r"column v\[\] of a row is null",
        ),
        (pa.binary(), b"abc", {"type": "fixed", "name": "f", "size": 2}, "another number of bytes"),
        (pa.string(), "c", {"type": "enum", "name": "e", "symbols": ["a"]}, "is 'c', no symbol of"),
        (
            pa.decimal128(5, 2),
            Decimal("1.25"),
            logical("bytes", "decimal", precision=9, scale=1),
            "cause data loss",
        ),
        (
            TIMESTAMP,
            datetime(9999, 1, 1, tzinfo=UTC),
            logical("long", "timestamp-nanos"),
            "does not fit",
        ),
    ],
)
def test_value_that_does_not_fit_is_refused(
    kind: Any, value: Any, avro_type: Any, expected: str
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["v"])
    with pytest.raises(ConfigError, match=expected):
        encode(batch, record(v=avro_type))


def test_schema_must_have_all_columns_and_no_other() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())})
    with pytest.raises(ConfigError, match="column a is not in the Avro schema r"):
        encode(batch, record(b="int"))
    with pytest.raises(ConfigError, match="field b without a default"):
        encode(batch, record(a="int", b="int"))
    with pytest.raises(ConfigError, match="written as records"):
        encode(batch, "string")


def test_rows_without_columns_have_defaults_only() -> None:
    schema = record(a={"type": "int", "default": 7})
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1, 2])}).select([])
    assert encode(batch, schema) == [b"\x0e", b"\x0e"]


def test_encode_writes_what_is_not_utf8_as_replacement_characters() -> None:
    words = pa.array([b"ok", b"a\xff", None]).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2], pa.int32()), words.slice(0, 2))
    batch = pa.record_batch({"word": words, "words": lists}).slice(1)
    schema = json.loads(derive_schema(batch.schema))
    assert [by_fastavro(schema, it) for it in encode(batch)] == [
        {"word": "a\ufffd", "words": []},
        {"word": None, "words": ["a\ufffd"]},
    ]
