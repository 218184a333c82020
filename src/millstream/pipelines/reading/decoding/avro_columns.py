"""The columns of an Avro schema, for readers who name none: Spark's types, as its `from_avro` has
them. All may be null, since a record may have no value.
"""

from __future__ import annotations

from millstream.errors import ConfigError
from millstream.pipelines.reading.avro_options import AvroOptions
from millstream.pipelines.reading.decoding.avro_schema import AvroType, parse_schema
from millstream.pipelines.reading.registry import registry_for

_SIMPLE_TYPES = {
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
_LOGICAL_TYPES = {
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


def columns_of(options: AvroOptions, topic: str) -> str:
    """The columns as Spark declares them: those of the schema that is given, else of the newest one
    that the registry has for the topic. Raises `ConfigError`."""
    if options.schema is not None:
        root = parse_schema(options.schema)
    elif options.writer_schema is not None:
        root = parse_schema(options.writer_schema)
    elif options.registry is not None and topic and "," not in topic:
        _, found = registry_for(options.registry).latest(f"{topic}-value")
        root = parse_schema(found.text, found.references)
    else:
        raise ConfigError(
            'valueFormat avro needs columns: .schema("id long, name string"), or avroSchema'
        )
    if root.kind != "record":
        return f"value {_type(root, ())}"
    return _fields(root, (), " ")


def _fields(record: AvroType, within: tuple[AvroType, ...], separator: str) -> str:
    if record in within:
        raise ConfigError(
            f"the Avro record {record.name} contains itself, which columns cannot: name those that "
            "are wanted by .schema(...)"
        )
    inner = (*within, record)
    parts = (f"{_quoted(it.name)}{separator}{_type(it.type, inner)}" for it in record.fields)
    return ", ".join(parts)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _type(kind: AvroType, within: tuple[AvroType, ...]) -> str:
    match kind.kind:
        case "record":
            return f"struct<{_fields(kind, within, ': ')}>"
        case "array":
            return f"array<{_type(kind.items[0], within)}>"
        case "map":
            return f"map<string, {_type(kind.items[0], within)}>"
        case "union":
            return _union([it for it in kind.items if it.kind != "null"], within)
    if kind.logical == "decimal" and kind.precision <= _DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision},{kind.scale})"
    return _LOGICAL_TYPES.get(kind.logical) or _SIMPLE_TYPES[kind.kind]


def _union(branches: list[AvroType], within: tuple[AvroType, ...]) -> str:
    if len(branches) == 1:
        return _type(branches[0], within)
    wider = _WIDER.get(frozenset(it.kind for it in branches))
    if wider is not None and not any(it.logical for it in branches):
        return wider
    members = (f"member{at}: {_type(it, within)}" for at, it in enumerate(branches))
    return f"struct<{', '.join(members)}>"
