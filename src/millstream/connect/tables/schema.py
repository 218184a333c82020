"""Columns as a store sees them: a kind per column, from Spark's schema or from Arrow's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connect.tables.spec import TableSpec, check_name
from millstream.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Spark's names. Arrays, structs and maps are kept as JSON.
KINDS = (
    "boolean", "byte", "short", "int", "long", "float", "double", "decimal",
    "string", "binary", "date", "timestamp", "timestamp_ntz", "json",
)  # fmt: skip
_NO_KEYS = ("float", "double", "json")
WEIGHT = "_weight"  # of changes: see spec.py
OPERATION = "_op"  # the sign of the weight, as a word


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    precision: int = 0  # of decimals
    scale: int = 0

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return "array, struct or map" if self.kind == "json" else self.kind


@dataclass(frozen=True)
class Layout:
    """The columns that go into a table, its key, and which column of the batch marks deletes."""

    table: TableSpec
    columns: tuple[Column, ...]
    deletes_by_weight: bool = False  # the delete column holds weights
    # Whether keys that differ here may be equal in the database; it is known when the table is.
    stays_in_order: bool = field(default=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[Column, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.table.key)

    @property
    def values(self) -> tuple[Column, ...]:
        """What is not of the key."""
        return tuple(column for column in self.columns if column.name not in self.table.key)


def layout_of(schema: StructType | pa.Schema, table: TableSpec) -> Layout:
    """How rows of this schema lie in the table; refuses what cannot be stored."""
    fields: dict[str, Any] = {}
    for it in schema if isinstance(schema, pa.Schema) else arrow_schema(schema):
        check_name(f"a column for table {table.name!r}", it.name)
        if it.name.lower() in {name.lower() for name in fields}:
            raise SchemaMismatch(
                f"table {table.name!r}: two columns are named {it.name!r} but for case; "
                "rename one of them"
            )
        fields[it.name] = it.type
    _check_delete_column(fields, table)
    by_weight = table.delete is not None and _is_weight(fields[table.delete])
    unstored = {table.delete, OPERATION if by_weight else None}
    columns = tuple(
        _column(name, kind, table) for name, kind in fields.items() if name not in unstored
    )
    layout = Layout(table, columns, by_weight)
    missing = [name for name in table.key if name not in layout.names]
    if missing:
        raise SchemaMismatch(
            f"table {table.name!r}: its key names {missing}, which the rows do not have; "
            f"they have {list(layout.names)}"
        )
    for column in layout.key:
        if column.kind in _NO_KEYS and table.mode != "append":
            raise SchemaMismatch(
                f"table {table.name!r}: key column {column.name!r} is of type {column}, which "
                "compares unreliably; cast it to a decimal, an integer or a string"
            )
    return layout


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's schema in Arrow's terms, as `toArrow` and `mapInArrow` give it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    def translated(given: Any) -> pa.Field:
        try:
            kind = to_arrow_type(given.dataType, timezone="UTC")
        except PySparkException:
            kind = pa.null()  # refused below, with the column's name
        return pa.field(given.name, kind)

    return pa.schema([translated(it) for it in schema])


def _check_delete_column(fields: dict[str, Any], table: TableSpec) -> None:
    if table.mode == "upsert" and WEIGHT in fields and table.delete != WEIGHT:
        raise SchemaMismatch(
            f"table {table.name!r}: the rows are changes with {WEIGHT}, and rows of one key have "
            f'no order among them; write them with delete="{WEIGHT}", or drop the column'
        )
    if table.delete is None:
        return
    kind = fields.get(table.delete)
    if kind is None:
        raise SchemaMismatch(
            f"table {table.name!r}: delete {table.delete!r} is not in the rows; "
            f"they have {list(fields)}"
        )
    if not (pa.types.is_boolean(kind) or is_text(kind) or _is_weight(kind)):
        raise SchemaMismatch(
            f"table {table.name!r}: delete {table.delete!r} is of type {kind}; make "
            "it a boolean, a string with 'd' or 'delete' for rows to delete, or an integer weight"
        )
    if _is_weight(kind) and table.mode != "upsert":
        raise SchemaMismatch(
            f"table {table.name!r}: delete {table.delete!r} holds weights, which "
            f"mode {table.mode!r} cannot apply; choose 'upsert', or make it a boolean"
        )


def _is_weight(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind))


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(name: str, kind: Any, table: TableSpec) -> Column:
    types = pa.types
    if types.is_decimal(kind):
        return Column(name, "decimal", kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return Column(name, "timestamp" if kind.tz else "timestamp_ntz")
    for matches, found in (
        (types.is_boolean, "boolean"),
        (types.is_int8, "byte"),
        (types.is_int16, "short"),
        (types.is_int32, "int"),
        (types.is_int64, "long"),
        (types.is_float32, "float"),
        (types.is_float64, "double"),
        (is_text, "string"),
        (types.is_binary, "binary"),
        (types.is_large_binary, "binary"),
        (types.is_date32, "date"),
        (types.is_list, "json"),
        (types.is_large_list, "json"),
        (types.is_struct, "json"),
        (types.is_map, "json"),
    ):
        if matches(kind):
            for inner, member in _members(name, kind):
                if not types.is_null(member):  # of an empty array: nothing is in it
                    _column(inner, member, table)
            return Column(name, found)
    raise SchemaMismatch(
        f"table {table.name!r}: column {name!r} is of a type that stores do not keep "
        f"({'void, interval or variant' if types.is_null(kind) else kind}); cast it to a number, "
        "a string or a timestamp"
    )


def _members(name: str, kind: Any) -> list[tuple[str, Any]]:
    """What a nested type is made of."""
    if pa.types.is_struct(kind):
        return [(f"{name}.{it.name}", it.type) for it in kind]
    if pa.types.is_map(kind):
        return [(f"{name}.key", kind.key_type), (f"{name}.value", kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [(f"{name}.element", kind.value_type)]
    return []


def quote(name: str) -> str:
    """An SQL identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def quoted(columns: Iterable[Column]) -> str:
    return ", ".join(quote(column.name) for column in columns)


def on_conflict(layout: Layout) -> str:
    """Understood by SQLite and PostgreSQL alike."""
    changes = ", ".join(
        f"{quote(column.name)} = excluded.{quote(column.name)}" for column in layout.values
    )
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    return f" ON CONFLICT ({quoted(layout.key)}) DO {action}"
