"""Names of columns, and of fields of structs: `address.city`.

A name is its parts with points between. A part that contains a point is quoted, so that the column
`a.b` and the field b of the column a have different names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.standing.kinds import Kind, kind_of

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def name_of(parts: Sequence[str]) -> str:
    """The name of a column, or of a field in structs."""
    return ".".join(it if _is_plain(it) else "`" + it.replace("`", "``") + "`" for it in parts)


def _is_plain(part: str) -> bool:
    return bool(part) and "." not in part and "`" not in part


@lru_cache(maxsize=10_000)
def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name that `name_of` made."""
    return tuple(plain or quoted.replace("``", "`") for quoted, plain in _PART.findall(name))


def kinds_in(schema: pa.Schema) -> dict[str, Kind | None]:
    """The kind of each column and of each field of a struct, by name; None for those that queries
    can only test for null. Raises `ConfigError`."""
    found = [(name_of(parts), kind_of(kind)) for parts, kind in _walk((), schema)]
    kinds = dict(found)
    if len(kinds) != len(found):
        raise ConfigError("two columns of the events have the same name: rename one of them")
    return kinds


def _walk(
    outer: tuple[str, ...], fields: pa.Schema | pa.StructType
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for it in fields:
        yield (*outer, it.name), it.type
        if pa.types.is_struct(it.type):
            yield from _walk((*outer, it.name), it.type)


def column_at(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a field of a struct, which is null where the struct is."""
    parts = parts_of(name)
    column = batch.column(parts[0])
    for part in parts[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(part)])
    return column


def value_at(event: Mapping[str, Any], name: str) -> Any:
    """The value of a column or of a field in one event."""
    value: Any = event
    for part in parts_of(name):
        value = None if value is None else value.get(part)
    return value
