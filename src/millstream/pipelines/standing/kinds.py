"""Kinds of columns that queries can use, and the literals that fit them.

    kind        types                                   literals
    integer     tinyint, smallint, int, bigint          12, -3; 2.5 with <, <=, > and >=
    float       float, double                           2.5, 3, 1e6
    text        string                                  'bike'
    boolean     boolean                                 TRUE, FALSE
    time        timestamp, timestamp_ntz                '2026-01-31 10:00:00', in UTC without zone
    date        date                                    '2026-01-31'

Values of all kinds but text become numbers: microseconds, days, 0 and 1. In comparisons, NaN is
greater than any other number, as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError

Kind: TypeAlias = Literal["integer", "float", "text", "boolean", "time", "date"]
Value: TypeAlias = int | float | str
Numbers: TypeAlias = npt.NDArray[Any]

_LONG_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DDL: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class LiteralError(Exception):
    """A literal that does not fit its column, and what to write instead."""


def kind_of(found: pa.DataType) -> Kind | None:
    """The kind of a column of this type; None if queries cannot use it."""
    if pa.types.is_boolean(found):
        return "boolean"
    if pa.types.is_signed_integer(found):
        return "integer"
    if pa.types.is_floating(found):
        return "float"
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return "text"
    if pa.types.is_timestamp(found):
        return "time"
    return "date" if pa.types.is_date32(found) else None


def parse_schema(text: str) -> pa.Schema:
    """A schema such as `category string, price double`, of plain columns. Raises `ConfigError`."""
    fields = []
    for part in text.split(","):
        words = part.replace(":", " ").split()
        kind = _DDL.get(words[1].lower()) if len(words) == 2 else None
        if kind is None:
            raise ConfigError(
                f"schema: {part.strip()!r} is no column; write a name and one of "
                f"{', '.join(_DDL)}: category string, price double"
            )
        fields.append(pa.field(words[0].strip("`"), kind))
    return pa.schema(fields)


def value_of(kind: Kind, operator: str, literal: str, literal_kind: str) -> Value:
    """The value of a literal beside a column. `literal_kind` is number, string or keyword.
    Raises `LiteralError`."""
    if kind == "text":
        if literal_kind != "string":
            raise LiteralError(f"the column is text: write '{literal}'")
        return literal
    if kind == "boolean":
        if literal_kind != "keyword":
            raise LiteralError("the column is boolean: write TRUE or FALSE")
        return int(literal == "TRUE")
    if kind in ("time", "date"):
        if literal_kind != "string":
            raise LiteralError(f"the column is a {kind}: write it like '2026-01-31'")
        return _moment(kind, literal)
    if literal_kind != "number":
        raise LiteralError("the column is a number: write the value without quotes")
    return _float(literal) if kind == "float" else _integer(operator, literal)


def _moment(kind: Kind, literal: str) -> int:
    try:
        if kind == "date":
            return (date.fromisoformat(literal) - _EPOCH.date()).days
        moment = datetime.fromisoformat(literal)
    except ValueError:
        example = "2026-01-31" if kind == "date" else "2026-01-31 10:00:00"
        raise LiteralError(f"{literal!r} is no {kind}: write it like '{example}'") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise LiteralError(f"{literal} is beyond the range of a double")
    return value + 0.0  # -0.0 is 0.0: the index keeps equal values together


def _integer(operator: str, literal: str) -> int:
    """A fraction is rounded so that the comparison means the same: x < 2.5 is x < 3."""
    try:
        value: int | float = int(literal)
    except ValueError:
        value = _float(literal)
        if value != math.floor(value):
            if operator in ("=", "<>", "in"):
                raise LiteralError(f"the column has integers: {literal} is never equal") from None
            value = math.ceil(value) if operator in ("<", ">=") else math.floor(value)
        value = int(value)
    if abs(value) > _LONG_MAX:
        raise LiteralError(f"{literal} is beyond the range of 64 bits")
    return int(value)


def numbers_of(column: pa.Array, kind: Kind) -> Numbers:
    """The values of a column as numbers; those of nulls are arbitrary."""
    if kind == "float":
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), np.inf, numbers)
    if kind == "boolean":
        flags: Numbers = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        return flags.astype(np.int64)
    if kind == "time":
        unit = pa.timestamp("us", column.type.tz)
        column = column.cast(unit, safe=False).view(pa.int64())
    elif kind == "date":
        column = column.view(pa.int32())
    column = column.cast(pa.int64())
    found: Numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return found
