"""Avro records in Confluent's wire format, by the schemas of a registry, as values of JSON.

    a zero byte, the id of the schema in four bytes, the record

Decimals become text, bytes base64, times ISO 8601: what JSON records have instead. Contents without
the zero byte are read as JSON, so that a topic may change from one to the other.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from millstream.client.schema_registry import Registry, UnknownSchema
from millstream.connect.sinks.changes import MALFORMED, BadRecord, parse_json
from millstream.errors import ConfigError

_HEADER_BYTES = 5
_PLAIN = (str, int, float, bool, type(None))


class AvroReader:
    """A function from bytes to values of JSON."""

    def __init__(self, registry: Registry) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise ConfigError("Avro needs fastavro: pip install 'millstream[avro]'") from error
        self._registry, self._parse = registry, fastavro.parse_schema
        self._read: Callable[..., Any] = fastavro.schemaless_reader
        self._schemas: dict[bytes, Any] = {}

    def __call__(self, content: bytes) -> Any:
        """Raises `BadRecord`."""
        if content[:1] != b"\0":
            return parse_json(content)
        schema = self._schemas.get(content[:_HEADER_BYTES])
        if schema is None:
            schema = self._schemas[content[:_HEADER_BYTES]] = self._find(content)
        stream = io.BytesIO(content)
        stream.seek(_HEADER_BYTES)
        try:
            found = self._read(stream, schema, None)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, ArithmeticError) as error:
            raise BadRecord(MALFORMED, f"the content is not Avro of its schema: {error}") from error
        if stream.tell() != len(content):
            raise BadRecord(MALFORMED, "the content is longer than its schema says")
        return to_plain(found)

    def _find(self, content: bytes) -> Any:
        if len(content) < _HEADER_BYTES:
            raise BadRecord(MALFORMED, "the content is too short for the id of a schema")
        number = int.from_bytes(content[1:_HEADER_BYTES], "big")
        try:
            registered = self._registry.schema(number)
        except UnknownSchema as error:
            raise BadRecord(MALFORMED, str(error)) from error
        named: dict[str, Any] = {}
        for text in registered.references:
            self._parse(json.loads(text), named_schemas=named)
        return self._parse(json.loads(registered.text), named_schemas=named)


def to_plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {name: to_plain(it) for name, it in value.items()}
    if isinstance(value, list):
        return [to_plain(it) for it in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date | time):  # and datetimes
        return value.isoformat()
    assert isinstance(value, UUID)
    return str(value)
