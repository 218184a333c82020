"""Columns of a table, declared in a sink's file, and rows of JSON as Arrow columns of these types.

    columns = "id long, name string, price decimal(9,2), at timestamp"

    boolean  int  long  float  double  string
    decimal(p,s)    from a string or a number
    date            from ISO 8601, or the days since 1970
    timestamp       from ISO 8601 with its zone, or microseconds since 1970
    timestamp_ntz   the same without a zone
    binary          from base64
    json            text: nested values become JSON

Names and meanings are those of Debezium's JSON and of Spark. A value that its column cannot hold
exactly makes its record a bad one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millstream.connect.sinks.changes import (
    DELETED,
    MISSING_FIELD,
    WRONG_TYPE,
    Change,
    Changes,
    Failure,
    Key,
    Row,
)
from millstream.errors import ConfigError

_KINDS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "json": pa.string(),
}
_SYNONYMS = {"bigint": "long", "integer": "int", "text": "string", "bool": "boolean"}
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_COLUMN = re.compile(r"\s*(`[^`]+`|[^\s,()`]+)\s+([a-z_]+(?:\s*\([^)]*\))?)\s*(?:,|$)", re.I)
_IS_JSON = {b"millstream": b"json"}


def parse_columns(text: str, where: str) -> pa.Schema:
    """`id long, price decimal(9,2)` as a schema; names with spaces stand in backticks."""
    fields, position = [], 0
    while position < len(text):
        found = _COLUMN.match(text, position)
        if found is None:
            raise ConfigError(
                f"{where}: columns: cannot read {text[position : position + 40]!r}; write "
                '"id long, name string, price decimal(9,2)"'
            )
        fields.append(_parse_column(found[1].strip("`"), found[2].lower(), where))
        position = found.end()
    names = [it.name for it in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not fields:
        raise ConfigError(f"{where}: columns: {'named twice: ' if twice else 'none'}{twice or ''}")
    return pa.schema(fields)


def _parse_column(name: str, kind: str, where: str) -> pa.Field:
    if decimal := _DECIMAL.fullmatch(kind):
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if not 1 <= precision <= 38 or scale > precision:
            raise ConfigError(f"{where}: column {name!r}: {kind} must have 1 to 38 digits")
        return pa.field(name, pa.decimal128(precision, scale))
    kind = _SYNONYMS.get(kind, kind)
    if kind not in _KINDS:
        known = ", ".join([*_KINDS, "decimal(p,s)"])
        raise ConfigError(f"{where}: column {name!r}: type {kind!r} is none of {known}")
    return pa.field(name, _KINDS[kind], metadata=_IS_JSON if kind == "json" else None)


def to_arrow(found: Changes, schema: pa.Schema, key: tuple[str, ...]) -> pa.Table:
    """The changes as rows with a last column that marks deleted ones, which have only their key.

    Changes whose values do not fit become failures.
    """
    changes = found.changes
    while True:
        columns, bad = _columns(changes, schema, key)
        if not bad:
            break
        found.failures.extend(bad.values())
        found.failures.sort()
        changes = found.changes = [it for it in changes if it.record not in bad]
    marks = pa.array([it.row is None for it in changes], pa.bool_())
    fields = [pa.field(it.name, it.type) for it in schema]
    return pa.table([*columns, marks], schema=pa.schema([*fields, pa.field(DELETED, pa.bool_())]))


def _columns(
    changes: Sequence[Change], schema: pa.Schema, key: tuple[str, ...]
) -> tuple[list[pa.Array], dict[int, Failure]]:
    columns: list[pa.Array] = []
    bad: dict[int, Failure] = {}
    nothing: Row = {}
    rows = [it.row or nothing for it in changes]
    for column in schema:
        if column.name in key:
            place = key.index(column.name)
            values = [it.key[place] for it in changes]
        else:
            name = column.name
            values = [row.get(name) for row in rows]
        array = _bulk(values, column)
        if array is None:
            array = _one_by_one(values, column, changes, bad)
        columns.append(array)
    return columns, bad


def _bulk(values: list[Any], column: pa.Field) -> pa.Array | None:
    """A whole column at once; None if any value needs a closer look."""
    kind = column.type
    try:
        if column.metadata or pa.types.is_binary(kind):
            return None
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
            if any(type(it) is not str and it is not None for it in values):
                return None
            return pa.array(values, pa.string()).cast(kind)
        if pa.types.is_integer(kind) and any(
            type(it) is not int and it is not None for it in values
        ):
            return None  # Arrow would cut fractions off
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _one_by_one(
    values: list[Any], column: pa.Field, changes: Sequence[Change], bad: dict[int, Failure]
) -> pa.Array:
    convert = converter(column)
    for number, value in enumerate(values):
        if value is None:
            continue
        try:
            values[number] = convert(value)
        except (ValueError, TypeError, ArithmeticError):
            values[number] = None
            shown = json.dumps(value, default=str)[:60]
            record = changes[number].record
            bad[record] = Failure(
                record, WRONG_TYPE, f"column {column.name!r} ({column.type}) cannot hold {shown}"
            )
    return pa.array(values, column.type)


def converter(column: pa.Field) -> Callable[[Any], Any]:
    """From a JSON value to what Arrow takes; raises for what does not fit exactly."""
    kind, types = column.type, pa.types
    if column.metadata:
        return lambda it: it if isinstance(it, str) else json.dumps(it, ensure_ascii=False)
    if types.is_decimal(kind):
        return lambda it: _decimal(it, kind)
    if types.is_timestamp(kind):
        return lambda it: _moment(it, kind)
    if types.is_date(kind):
        return _date
    if types.is_binary(kind):
        return lambda it: base64.b64decode(it, validate=True)
    if types.is_string(kind):
        return _text
    if types.is_integer(kind):
        return lambda it: _integer(it, kind)
    return lambda it: pa.scalar(it, kind).as_py()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    value.encode()  # lone surrogates are not text
    return value


def _integer(value: Any, kind: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise TypeError("not an integer")
    pa.scalar(value, kind)
    return value


def _decimal(value: Any, kind: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("not a number")
    number = Decimal(str(value))
    exact = pa.scalar(number, pa.decimal128(38, kind.scale)).as_py()  # raises if digits were lost
    pa.scalar(exact, kind)
    return number


def _moment(value: Any, kind: Any) -> datetime | int:
    if isinstance(value, bool):
        raise TypeError("not a time")
    if isinstance(value, int):
        return value
    moment = datetime.fromisoformat(value)
    if kind.tz is None:
        if moment.tzinfo is not None:
            raise ValueError("has a zone")
        return moment
    if moment.tzinfo is None:
        raise ValueError("has no zone")
    return moment.astimezone(UTC)


def _date(value: Any) -> date | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError("not a date")
    return value if isinstance(value, int) else date.fromisoformat(value)


def typed_keys(
    keys: Sequence[Key], schema: pa.Schema, names: tuple[str, ...]
) -> dict[tuple[Any, ...], Key]:
    """Keys as the values that a table has, with what they are in JSON; others are left out."""
    changes = Changes(changes=[Change(number, key, None) for number, key in enumerate(keys)])
    rows = to_arrow(changes, pa.schema([schema.field(name) for name in names]), names)
    values = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    return {it: change.key for it, change in zip(values, changes.changes, strict=True)}


def to_json(value: Any) -> Any:
    """A value of a table as JSON has it, times with a zone in UTC: databases give them in that of
    the session."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if isinstance(value, date) else value


def refuse_missing(schema: pa.Schema, key: tuple[str, ...], where: str) -> None:
    missing = [name for name in key if name not in schema.names]
    if missing:
        raise ConfigError(f"{where}: the key names {missing}, which are not in its columns")


__all__ = [
    "MISSING_FIELD",
    "converter",
    "parse_columns",
    "refuse_missing",
    "to_arrow",
    "to_json",
    "typed_keys",
]
