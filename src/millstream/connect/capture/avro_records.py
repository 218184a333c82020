"""Records that are not rows, in Avro: transactions, logical messages, heartbeats.

They are rare, so they are made from the JSON of `envelope.py`, by schemas that are Debezium's. The
few types in them are encoded here: a capture in Avro needs no further package, since its rows are
encoded by compiled code (`_avro.pxi`).
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from millstream.client.schema_registry import registry_for
from millstream.connect.capture.avro import (
    CONNECTOR_NAMESPACE,
    record_schema,
    source_schema,
    transaction_schema,
)
from millstream.connect.capture.envelope import EnvelopeSettings, Record

_COMMON = "io.debezium.connector.common"
_VERSION = 1
_MORE_BITS, _LOW_BITS = 0x80, 0x7F


class RecordSchemas(NamedTuple):
    """The schemas of a topic's keys and values."""

    key: dict[str, Any]
    value: dict[str, Any]


def _pair(namespace: str, key: tuple[str, Any], value: tuple[str, Any]) -> RecordSchemas:
    return RecordSchemas(
        record_schema(key[0], namespace, key[1], _VERSION),
        record_schema(value[0], namespace, value[1], _VERSION),
    )


_COLLECTION = record_schema(
    "collection", "event", {"data_collection": "string", "event_count": "long"}, _VERSION
)
TRANSACTIONS = _pair(
    _COMMON,
    ("TransactionMetadataKey", {"id": "string"}),
    (
        "TransactionMetadataValue",
        {
            "status": "string",
            "id": "string",
            "event_count": ["null", "long"],
            "data_collections": ["null", {"type": "array", "items": ["null", _COLLECTION]}],
            "ts_ms": "long",
        },
    ),
)
HEARTBEATS = _pair(
    _COMMON, ("ServerNameKey", {"serverName": "string"}), ("Heartbeat", {"ts_ms": "long"})
)
_MESSAGE = {"prefix": ["null", "string"], "content": ["null", "bytes"]}
MESSAGES = _pair(
    CONNECTOR_NAMESPACE,
    ("MessageKey", {"prefix": ["null", "string"]}),
    (
        "MessageValue",
        {
            "op": "string",
            "ts_ms": ["null", "long"],
            "source": source_schema(),
            "transaction": ["null", transaction_schema()],
            "message": record_schema("Message", CONNECTOR_NAMESPACE, _MESSAGE, _VERSION),
        },
    ),
)


def formatted(
    record: Record, schemas: RecordSchemas, settings: EnvelopeSettings, topic: str
) -> Record:
    """The record in the format of the settings."""
    if settings.registry is None:
        return record
    registry = registry_for(settings.registry)
    contents = []
    for side, schema, content in zip(("key", "value"), schemas, record[:2], strict=True):
        schema_id = registry.register(f"{topic}-{side}", json.dumps(schema))
        out = bytearray(b"\0" + schema_id.to_bytes(4, "big"))
        _write(schema, json.loads(content or b"null"), out)
        contents.append(bytes(out))
    return record._replace(key=contents[0], value=contents[1])


def _write(schema: Any, value: Any, out: bytearray) -> None:
    match schema:
        case "string":
            _write_bytes(value.encode(), out)
        case "bytes":
            _write_bytes(base64.b64decode(value), out)
        case "long":
            _write_long(value, out)
        case [first, second]:
            branch = int((value is None) != (first == "null"))
            _write_long(branch, out)
            if value is not None:
                _write(second if branch else first, value, out)
        case {"type": "record", "fields": fields}:
            for field in fields:
                _write(field["type"], value[field["name"]], out)
        case {"type": "array", "items": items}:
            if value:
                _write_long(len(value), out)
            for item in value:
                _write(items, item, out)
            _write_long(0, out)
        case _:  # with attributes of Kafka Connect
            _write(schema["type"], value, out)


def _write_bytes(content: bytes, out: bytearray) -> None:
    _write_long(len(content), out)
    out += content


def _write_long(value: int, out: bytearray) -> None:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > _LOW_BITS:
        out.append(rest & _LOW_BITS | _MORE_BITS)
        rest >>= 7
    out.append(rest)
