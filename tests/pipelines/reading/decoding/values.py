"""Values of records for tests of decoders: as columns, and as what comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.pipelines.reading.decoding import make_decoder
from millstream.pipelines.reading.decoding.results import Decoded, Decoder
from millstream.pipelines.reading.options import parse_read_options
from millstream.records.columns import Columns, decode_columns
from millstream.records.record import Record, encode_batch

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")


def columns_of(values: Sequence[bytes | None]) -> Columns:
    """As a fetch would give them."""
    records = [Record(offset, 0, None, value) for offset, value in enumerate(values)]
    return decode_columns(encode_batch(records))


def schema_of(required: Sequence[str] = (), **types: Any) -> pa.Schema:
    return pa.schema([pa.field(name, it, name not in required) for name, it in types.items()])


def decoder_for(schema: pa.Schema, value_format: str = "json", **options: str) -> Decoder:
    given = parse_read_options(BASE | {"valueFormat": value_format} | options, streaming=False)
    return make_decoder(given, schema)


def decode(
    schema: pa.Schema, *values: bytes | None, value_format: str = "json", **options: str
) -> Decoded:
    decoded = decoder_for(schema, value_format, **options).decode(columns_of(values))
    decoded.batch.validate(full=True)
    return decoded


def read(schema: pa.Schema, *values: bytes | None, **options: str) -> list[dict[str, Any]]:
    """The rows, all of which must be good."""
    decoded = decode(schema, *values, **options)
    assert decoded.failures == []
    assert decoded.rows is None
    rows: list[dict[str, Any]] = decoded.batch.to_pylist()
    return rows


def read_one(kind: Any, value: bytes, **options: str) -> Any:
    """The one value of the one column `v`."""
    return read(schema_of(v=kind), value, **options)[0]["v"]


def complaint(schema: pa.Schema, value: bytes | None, **options: str) -> str:
    """What is said of a value that must be bad: `reason: message`."""
    decoded = decode(schema, value, **options)
    assert decoded.batch.num_rows == 0
    assert decoded.rows is not None
    [failure] = decoded.failures
    assert failure.row == 0
    return f"{failure.reason}: {failure.message}"
