"""Which Avro type is which type of Spark and Arrow, in both directions.

columns_of      Avro to Spark, as Spark's `from_avro`: the columns of a reader that names none.
                All may be null, since a record may have no value
derive_schema   Arrow to Avro, as Spark's `to_avro`: the schema of rows that bring none. A
                column that may be null is a union of null and its type, with null as its
                default: the next version of the schema may leave it out, and readers of the
                last one get null for a new one
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from millstream.client.avro_schema import AvroType, parse_schema
from millstream.client.schema_registry import registry_for
from millstream.errors import ConfigError
from millstream.pipelines.avro.options import AvroOptions

_SPARK_TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
    "null": "void",
}
_WIDER = {frozenset({"int", "long"}): "bigint", frozenset({"float", "double"}): "double"}
_SPARK_LOGICAL_TYPES = {
    "date": "date",
    "uuid": "string",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "timestamp-nanos": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "local-timestamp-nanos": "timestamp_ntz",
}
_DECIMAL_DIGITS_MAX = 38
ROOT_NAME = "topLevelRecord"  # as Spark calls it
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_TYPES = {
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


# From Avro


def columns_of(options: AvroOptions, topic: str, part: str = "value") -> str:
    """The columns as Spark declares them: those of the schema that is given, else of the newest one
    that the registry has for the values, or another part, of the topic. Raises `ConfigError`."""
    if options.schema is not None:
        root = parse_schema(options.schema)
    elif options.writer_schema is not None:
        root = parse_schema(options.writer_schema)
    elif options.registry is not None and topic and "," not in topic:
        _, found = registry_for(options.registry).latest(f"{topic}-{part}")
        root = parse_schema(found.text, found.references)
    else:
        raise ConfigError(
            'valueFormat avro needs columns: .schema("id long, name string"), or avroSchema'
        )
    if root.kind != "record":
        return f"value {_spark_type(root, ())}"
    return _spark_fields(root, (), " ")


def _spark_fields(record: AvroType, within: tuple[AvroType, ...], separator: str) -> str:
    if record in within:
        raise ConfigError(
            f"the Avro record {record.name} contains itself, which columns cannot: name those that "
            "are wanted by .schema(...)"
        )
    inner = (*within, record)
    parts = (f"{_quoted(it.name)}{separator}{_spark_type(it.type, inner)}" for it in record.fields)
    return ", ".join(parts)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _spark_type(kind: AvroType, within: tuple[AvroType, ...]) -> str:
    match kind.kind:
        case "record":
            return f"struct<{_spark_fields(kind, within, ': ')}>"
        case "array":
            return f"array<{_spark_type(kind.items[0], within)}>"
        case "map":
            return f"map<string, {_spark_type(kind.items[0], within)}>"
        case "union":
            return _spark_union([it for it in kind.items if it.kind != "null"], within)
    if kind.logical == "decimal" and kind.precision <= _DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_LOGICAL_TYPES.get(kind.logical) or _SPARK_TYPES[kind.kind]


def _spark_union(branches: list[AvroType], within: tuple[AvroType, ...]) -> str:
    if len(branches) == 1:
        return _spark_type(branches[0], within)
    wider = _WIDER.get(frozenset(it.kind for it in branches))
    if wider is not None and not any(it.logical for it in branches):
        return wider
    members = (f"member{at}: {_spark_type(it, within)}" for at, it in enumerate(branches))
    return f"struct<{', '.join(members)}>"


# To Avro


def derive_schema(schema: pa.Schema) -> str:
    """As JSON. Raises `ConfigError` for columns that Avro has no type or no name for."""
    return json.dumps(_avro_record(ROOT_NAME, list(schema), ""))


def _avro_record(name: str, fields: list[Any], path: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [_avro_field(name, it, f"{path}.{it.name}".lstrip(".")) for it in fields],
    }


def _avro_field(record: str, field: Any, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ConfigError(
            f"column {path}: Avro's names have letters, digits and _; rename it in the query"
        )
    kind = _nullable(field, f"{record}.{field.name}", path)
    return {"name": field.name, "type": kind} | ({"default": None} if field.nullable else {})


def _nullable(field: Any, name: str, path: str) -> Any:
    kind = _avro_type(field.type, name, path)
    return ["null", kind] if field.nullable else kind


def _avro_type(kind: Any, name: str, path: str) -> Any:
    if kind in _AVRO_TYPES:
        return _AVRO_TYPES[kind]
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
        return _avro_record(name, list(kind), path)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, name, f"{path}[]")}
    if pa.types.is_map(kind) and kind.key_type in (pa.string(), pa.large_string()):
        return {"type": "map", "values": _nullable(kind.item_field, name, f"{path}[]")}
    raise ConfigError(f"column {path} is {kind}, which Avro has no type for; cast it")
