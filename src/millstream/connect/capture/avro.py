"""Avro schemas of change records: those that Kafka Connect's converters make of Debezium's.

Every column but those of the key may be null, since PostgreSQL does not send all of them for
deletes. `_avro.pxi` writes by these schemas. The wide schema is for rows that Debezium's cannot
hold: there decimals, arrays and composites have a branch `string`, for NaN, for arrays of several
dimensions (as JSON), and for TOAST values that were not sent.
"""

from __future__ import annotations

import json
import re
from typing import Any

from millstream.connect.capture.envelope import EnvelopeSettings
from millstream.connect.capture.tables import CaptureError, Table
from millstream.connect.capture.types import Kind, ValueType

CONNECTOR_NAMESPACE = "io.debezium.connector.postgresql"
_TIMES = "io.debezium.time"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
# Avro's type, and the name by which Kafka Connect's readers know it.
_SCALARS: dict[Kind, tuple[str, str]] = {
    Kind.TEXT: ("string", ""),
    Kind.BOOLEAN: ("boolean", ""),
    Kind.BYTES: ("bytes", ""),
    Kind.BITS: ("bytes", "io.debezium.data.Bits"),
    Kind.DATE: ("int", f"{_TIMES}.Date"),
    Kind.TIME_MILLIS: ("int", f"{_TIMES}.Time"),
    Kind.TIME_MICROS: ("long", f"{_TIMES}.MicroTime"),
    Kind.TIME_ZONED: ("string", f"{_TIMES}.ZonedTime"),
    Kind.TIMESTAMP_MILLIS: ("long", f"{_TIMES}.Timestamp"),
    Kind.TIMESTAMP_MICROS: ("long", f"{_TIMES}.MicroTimestamp"),
    Kind.TIMESTAMP_ZONED: ("string", f"{_TIMES}.ZonedTimestamp"),
    Kind.MONEY: ("string", ""),
    Kind.HSTORE_JSON: ("string", "io.debezium.data.Json"),
}
_MAY_NOT_FIT = (Kind.ARRAY, Kind.COMPOSITE, Kind.DECIMAL, Kind.VARIABLE_DECIMAL)
_SNAPSHOT = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,"
        "incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
_SOURCE: dict[str, Any] = {
    "version": "string",
    "connector": "string",
    "name": "string",
    "ts_ms": "long",
    "snapshot": [_SNAPSHOT, "null"],
    "db": "string",
    "sequence": ["null", "string"],
    "ts_us": ["null", "long"],
    "ts_ns": ["null", "long"],
    "schema": "string",
    "table": "string",
    "txId": ["null", "long"],
    "lsn": ["null", "long"],
    "xmin": ["null", "long"],
    "origin": ["null", "string"],
    "origin_lsn": ["null", "long"],
}
_NAMED_VERSION = 1  # of Debezium's own records
_ENVELOPE_VERSION = 2
_DOCUMENTED = {
    "io.debezium.data.VariableScaleDecimal": "Variable scaled decimal",
    "io.debezium.data.geometry.Point": "Geometry (POINT)",
}
_TRANSACTION = {"id": "string", "total_order": "long", "data_collection_order": "long"}


def key_schema(
    table: Table, settings: EnvelopeSettings, types: list[ValueType], is_wide: bool = False
) -> str:
    """The schema of keys, as JSON."""
    by_name = dict(zip([it.name for it in table.columns], types, strict=True))
    schemas = _Schemas(settings, table, is_wide)
    fields = {name: schemas.without_null(by_name[name], name) for name in table.key}
    return json.dumps(schemas.record("Key", schemas.namespace, fields))


def value_schema(
    table: Table, settings: EnvelopeSettings, types: list[ValueType], is_wide: bool = False
) -> str:
    """The schema of values, as JSON."""
    schemas = _Schemas(settings, table, is_wide)
    fields: dict[str, Any] = {
        column.name: schemas.without_null(it, column.name)
        if column.name in table.key
        else schemas.nullable(it, column.name)
        for column, it in zip(table.columns, types, strict=True)
    }
    if settings.shape == "flat":
        fields["__deleted"] = ["null", "string"]
        return json.dumps(schemas.record("Value", schemas.namespace, fields))
    row = schemas.record("Value", schemas.namespace, fields)
    envelope = {
        "before": ["null", row],
        "after": ["null", f"{schemas.namespace}.Value"],
        "source": source_schema(),
        "transaction": ["null", transaction_schema()],
        "op": "string",
        "ts_ms": ["null", "long"],
        "ts_us": ["null", "long"],
        "ts_ns": ["null", "long"],
    }
    return json.dumps(schemas.record("Envelope", schemas.namespace, envelope, _ENVELOPE_VERSION))


def record_schema(
    name: str, namespace: str, fields: dict[str, Any], version: int | None = None
) -> dict[str, Any]:
    """A record as Kafka Connect's converter describes it."""
    full = f"{namespace}.{name}"
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [{"name": it, "type": kind} | _default(kind) for it, kind in fields.items()],
        **({"connect.doc": _DOCUMENTED[full]} if full in _DOCUMENTED else {}),
        **({} if version is None else {"connect.version": version}),
        "connect.name": full,
    }


def source_schema() -> dict[str, Any]:
    return record_schema("Source", CONNECTOR_NAMESPACE, _SOURCE, _NAMED_VERSION)


def transaction_schema() -> dict[str, Any]:
    return record_schema("block", "event", _TRANSACTION, _NAMED_VERSION)


class _Schemas:
    """Types of one schema; named ones are defined where they occur first."""

    def __init__(self, settings: EnvelopeSettings, table: Table, is_wide: bool) -> None:
        self._table = table
        self._is_wide = is_wide
        parts = (*settings.server_name.split("."), table.schema, table.name)
        self.namespace = ".".join(_avro_name(it) for it in parts)
        self._defined: set[str] = set()

    def record(
        self, name: str, namespace: str, fields: dict[str, Any], version: int | None = None
    ) -> dict[str, Any]:
        adjusted = {_avro_name(it): it for it in fields}
        if len(adjusted) < len(fields):
            raise CaptureError(
                f"table {self._table.full_name}: two columns have the same name in Avro, where "
                f"names have letters, digits and _: {', '.join(fields)}"
            )
        named = {it: fields[original] for it, original in adjusted.items()}
        return record_schema(name, namespace, named, version)

    def nullable(self, value_type: ValueType, path: str) -> list[Any]:
        branches = ["null", self._plain(value_type, path)]
        return [*branches, "string"] if self._has_text(value_type) else branches

    def without_null(self, value_type: ValueType, path: str) -> Any:
        plain = self._plain(value_type, path)
        return [plain, "string"] if self._has_text(value_type) else plain

    def _has_text(self, value_type: ValueType) -> bool:
        return self._is_wide and value_type.kind in _MAY_NOT_FIT

    def _plain(self, value_type: ValueType, path: str) -> Any:
        match value_type.kind:
            case Kind.INTEGER:
                if value_type.is_short:
                    return {"type": "int", "connect.type": "int16"}
                return "long" if value_type.is_wide else "int"
            case Kind.FLOAT:
                return "double" if value_type.is_wide else "float"
            case Kind.ARRAY:
                return {"type": "array", "items": self.nullable(value_type.items[0], path)}
            case Kind.HSTORE_MAP:
                return {"type": "map", "values": ["null", "string"]}
            case Kind.DECIMAL:
                return _decimal(value_type)
            case Kind.VARIABLE_DECIMAL:
                fields: dict[str, Any] = {"scale": "int", "value": "bytes"}
                return self._named(
                    "VariableScaleDecimal", "io.debezium.data", fields, _NAMED_VERSION
                )
            case Kind.POINT:
                fields = {"x": "double", "y": "double", "wkb": ["null", "bytes"]}
                fields["srid"] = ["null", "int"]
                return self._named("Point", "io.debezium.data.geometry", fields, _NAMED_VERSION)
            case Kind.COMPOSITE:
                name = ".".join(map(_avro_name, (*value_type.name.split("."),)))
                if f"{self.namespace}.{name}" in self._defined:
                    return f"{self.namespace}.{name}"
                namespace, _, short = f"{self.namespace}.{name}".rpartition(".")
                attributes = {
                    it: self.nullable(kind, f"{path}.{it}")
                    for it, kind in zip(value_type.names, value_type.items, strict=True)
                }
                return self._named(short, namespace, attributes)
        return _scalar(value_type)

    def _named(
        self, name: str, namespace: str, fields: dict[str, Any], version: int | None = None
    ) -> Any:
        full = f"{namespace}.{name}"
        if full in self._defined:
            return full
        self._defined.add(full)
        return self.record(name, namespace, fields, version)


def _decimal(value_type: ValueType) -> Any:
    scale, precision = value_type.scale, value_type.precision
    return {
        "type": "bytes",
        "scale": scale,
        "precision": precision,
        "connect.version": 1,
        "connect.parameters": {"scale": str(scale), "connect.decimal.precision": str(precision)},
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "logicalType": "decimal",
    }


def _scalar(value_type: ValueType) -> Any:
    avro, connect_name = _SCALARS[value_type.kind]
    connect_name = value_type.name or connect_name
    if not connect_name:
        return avro
    parameters: dict[str, str] = {}
    if value_type.labels:
        parameters["allowed"] = ",".join(value_type.labels)
    if value_type.length:
        parameters["length"] = str(value_type.length)
    of_connect = {"connect.parameters": parameters} if parameters else {}
    return {"type": avro, "connect.version": 1, **of_connect, "connect.name": connect_name}


def _default(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, list):
        return {}
    if kind[0] == "null":
        return {"default": None}
    return {"default": kind[0]["connect.default"]} if kind[0] is _SNAPSHOT else {}


def _avro_name(name: str) -> str:
    adjusted = _NOT_IN_NAMES.sub("_", name)
    return f"_{adjusted}" if not adjusted or adjusted[0].isdigit() else adjusted
