"""Values of views: as readers get them, as the database has them, and as text in an address.

SQLite has no booleans, times and decimals of its own (`connect/tables/sqlite_tables.py`); readers
get the same Python values from both databases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from millstream.connect.tables.schema import Column
from millstream.errors import ViewError

_INTEGERS = ("byte", "short", "int", "long")


def from_sqlite(column: Column, value: Any) -> Any:
    if value is None:
        return None
    match column.kind:
        case "boolean":
            return bool(value)
        case "decimal":
            return Decimal(value)
        case "date":
            return _read(date.fromisoformat, value)
        case "timestamp":
            return _read(lambda it: datetime.fromisoformat(it).replace(tzinfo=UTC), value)
        case "timestamp_ntz":
            return _read(datetime.fromisoformat, value)
        case "json":
            return json.loads(value)
        case _:
            return value


def _read(convert: Any, text: str) -> Any:
    """Years that Python does not know stay text."""
    try:
        return convert(text)
    except ValueError:
        return text


def to_sqlite(column: Column, value: Any) -> Any:
    """A value to compare with."""
    match column.kind:
        case "boolean":
            return int(value)
        case "decimal":
            return f"{Decimal(value).quantize(Decimal(1).scaleb(-column.scale)):f}"
        case "date":
            return value.isoformat()
        case "timestamp":
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        case "timestamp_ntz":
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case _:
            return value


def check_value(column: Column, value: Any) -> Any:
    """The value, if it may be one of the column. Raises `ViewError`."""
    kinds: Mapping[str, tuple[type, ...]] = {
        "boolean": (bool,),
        "decimal": (Decimal, int),
        "date": (date,),
        "timestamp": (datetime,),
        "timestamp_ntz": (datetime,),
        "string": (str,),
        "binary": (bytes,),
    } | dict.fromkeys(_INTEGERS, (int,))
    wanted = kinds.get(column.kind, (object,))
    is_naive = column.kind == "timestamp" and getattr(value, "tzinfo", None) is None
    is_flag = isinstance(value, bool) and column.kind != "boolean"
    if not isinstance(value, wanted) or is_naive or is_flag:
        zone = " with a time zone" if is_naive and isinstance(value, datetime) else ""
        raise ViewError(f"key column {column.name} is {column}{zone}; {value!r} is not")
    return value


def from_text(column: Column, text: str) -> Any:
    """A value of a key from an address or a command line. Raises `ViewError`."""
    try:
        match column.kind:
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "decimal":
                return Decimal(text)
            case "date":
                return date.fromisoformat(text)
            case "timestamp":
                moment = datetime.fromisoformat(text)
                return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            case "timestamp_ntz":
                return datetime.fromisoformat(text)
            case "binary":
                return bytes.fromhex(text)
            case kind if kind in _INTEGERS:
                return int(text)
            case _:
                return text
    except (ValueError, KeyError, InvalidOperation):
        raise ViewError(f"key column {column.name} is {column}; {text!r} is not") from None


def key_values(columns: Sequence[Column], given: Sequence[Any], *, whole: bool) -> list[Any]:
    """The values of a key, or of its first columns. Raises `ViewError` if there are too many, or,
    for a whole key, too few."""
    if len(given) > len(columns) or (whole and len(given) < len(columns)) or not given:
        names = ", ".join(it.name for it in columns)
        raise ViewError(f"the key is ({names}), {len(columns)} values; {len(given)} are given")
    return [check_value(column, value) for column, value in zip(columns, given, strict=False)]
