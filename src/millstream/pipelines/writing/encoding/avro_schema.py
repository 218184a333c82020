"""The Avro schema of a DataFrame that brings none: types as Spark's own `to_avro` has them.

A column that may be null is a union of null and its type, with null as its default: so the next
version of the schema may leave it out, and readers of the last one get null for a new one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError

ROOT_NAME = "topLevelRecord"  # as Spark calls it
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("ns"): {"type": "long", "logicalType": "time-micros"},
}


def derive_schema(schema: pa.Schema) -> str:
    """As JSON. Raises `ConfigError` for columns that Avro has no type or no name for."""
    return json.dumps(_record(ROOT_NAME, list(schema), ""))


def _record(name: str, fields: list[Any], path: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [_field(name, it, f"{path}.{it.name}".lstrip(".")) for it in fields],
    }


def _field(record: str, field: Any, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ConfigError(
            f"column {path}: Avro's names have letters, digits and _; rename it in the query"
        )
    kind = _nullable(field, f"{record}.{field.name}", path)
    return {"name": field.name, "type": kind} | ({"default": None} if field.nullable else {})


def _nullable(field: Any, name: str, path: str) -> Any:
    kind = _type(field.type, name, path)
    return ["null", kind] if field.nullable else kind


def _type(kind: Any, name: str, path: str) -> Any:
    if kind in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[kind]
    if pa.types.is_timestamp(kind):
        local = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if pa.types.is_decimal128(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_struct(kind):
        return _record(name, list(kind), path)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, name, f"{path}[]")}
    if pa.types.is_map(kind) and kind.key_type in (pa.string(), pa.large_string()):
        return {"type": "map", "values": _nullable(kind.item_field, name, f"{path}[]")}
    raise ConfigError(f"column {path} is {kind}, which Avro has no type for; cast it")
