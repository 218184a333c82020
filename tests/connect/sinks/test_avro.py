"""Avro by the schemas of a registry, beside JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from millstream.client.schema_registry import RegistrySettings, registry_for
from millstream.connect.sinks.avro import AvroReader
from millstream.connect.sinks.changes import BadRecord
from tests.connect.sinks.conftest import Log, SqliteTables
from tests.connect.sinks.test_runner import run_once
from tests.peers.schema_registry import SchemaRegistry, running_registry

SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
ROW: dict[str, Any] = {
    "id": 1,
    "name": None,
    "raw": b"\0\1",
    "price": Decimal("1.50"),
    "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
    "tags": ["a"],
    "uuid": "6b0d1c7e-7a9e-4c64-8c1e-111111111111",
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as running:
        yield running


def encoded(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_values_are_those_of_json(registry: SchemaRegistry) -> None:
    number = registry.add("rows-value", SCHEMA)
    read = AvroReader(registry_for(RegistrySettings((registry.url,))))
    content = encoded(number, SCHEMA, ROW)
    assert read(content) == ROW | {
        "raw": "AAE=",
        "price": "1.50",
        "at": "2026-01-31T10:00:00+00:00",
    }
    assert read(b'{"id": 1}') == {"id": 1}
    assert json.dumps(read(content))
    for wrong in (b"\0", b"\0\0\0\0\x63", content[:-3], content + b"x"):
        with pytest.raises(BadRecord):
            read(wrong)


def test_flat_rows_and_avro_keys_are_applied(
    registry: SchemaRegistry, log: Log, tmp_path: Path
) -> None:
    key_schema = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "int"}]}
    key_number = registry.add("items-key", key_schema)
    number = registry.add("items-value", SCHEMA)
    for id in (1, 2):
        row = ROW | {"id": id, "name": f"v{id}"}
        log.send((encoded(key_number, key_schema, {"id": id}), encoded(number, SCHEMA, row)))
    log.send((encoded(key_number, key_schema, {"id": 2}), None), (b"3", b"\0broken"))
    tables = SqliteTables(tmp_path)
    columns = "id long, name string, price decimal(9,2), at timestamp, raw binary, tags json"
    given = {"format": "json", "registry": registry.url, "topic": {"columns": columns}}
    runner = run_once(tables.config(log, **given))
    assert tables.query("SELECT * FROM items") == [
        (1, "v1", "1.50", "2026-01-31 10:00:00.000000", b"\0\1", '["a"]')
    ]
    assert runner.progress.bad == 1
