"""Tables of PostgreSQL: how they are created, what must fit, and the statements of a merge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.errors import SchemaMismatch
from millstream.pipelines.stores.copy_format import staged_type
from millstream.pipelines.stores.schema import Column, Layout, on_conflict, quote, quoted
from millstream.pipelines.stores.spec import TableSpec

_NAME_BYTES_MAX = 63  # longer names are cut by the server, and may then be another's
# Beside the type that we create, what else takes all values of a kind.
_ALSO_FIT = {
    "byte": {"integer", "bigint", "numeric"},
    "short": {"integer", "bigint", "numeric"},
    "int": {"bigint", "numeric"},
    "long": {"numeric"},
    "float": {"double precision"},
    "string": {"character varying", "character", "uuid", "json", "jsonb"},
    "json": {"json", "text"},
}
_CAST = {"uuid", "json", "jsonb"}  # text is not turned into these unasked
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")

FIND_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod),
           attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = ''
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
FIND_UNIQUE_KEYS = """
    SELECT array_agg(attname::text)
    FROM pg_index JOIN pg_attribute ON attrelid = indrelid
         AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
    WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
          AND indpred IS NULL AND indexprs IS NULL
    GROUP BY indexrelid"""


@dataclass(frozen=True)
class FoundTable:
    """A table as the database describes it."""

    types: dict[str, str]
    required: tuple[str, ...] = ()  # columns that must be given a value
    unique_keys: tuple[frozenset[str], ...] = field(default=())


def table_name(spec: TableSpec) -> str:
    """Quoted; a dot separates schema and table."""
    return ".".join(quote(part) for part in spec.name.split(".", 1))


def column_type(column: Column) -> str:
    if column.kind == "decimal":
        return f"numeric({column.precision},{column.scale})"
    return "jsonb" if column.kind == "json" else staged_type(column)


def check_names(layout: Layout) -> None:
    for name in (*layout.table.name.split(".", 1), *layout.names):
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise SchemaMismatch(
                f"table {layout.table.name!r}: PostgreSQL cuts names after {_NAME_BYTES_MAX} "
                f"bytes; choose a shorter one for {name!r}"
            )


def create_statements(layout: Layout) -> list[str]:
    spec = layout.table
    keys = {column.name for column in layout.key} if spec.mode != "append" else set()
    lines = [
        f"{quote(column.name)} {column_type(column)}{' NOT NULL' if column.name in keys else ''}"
        for column in layout.columns
    ]
    if spec.mode == "upsert":
        lines.append(f"PRIMARY KEY ({quoted(layout.key)})")
    statements = [f"CREATE TABLE {table_name(spec)} ({', '.join(lines)})"]
    if spec.mode == "replace":
        statements.append(f"CREATE INDEX ON {table_name(spec)} ({quoted(layout.key)})")
    return statements


def fits(column: Column, declared: str) -> bool:
    base = declared.partition("(")[0].strip()
    if column.kind == "decimal":
        limits = _NUMERIC.fullmatch(declared)
        if limits is None:
            return declared == "numeric"
        precision, scale = int(limits[1]), int(limits[2])
        return scale >= column.scale and precision - scale >= column.precision - column.scale
    if base == "numeric" and declared != "numeric":
        return False  # with limits that an integer may exceed
    return declared == column_type(column) or base in _ALSO_FIT.get(column.kind, ())


def check_table(layout: Layout, found: FoundTable) -> None:
    """Raise `SchemaMismatch` unless every row fits, with what to do about it."""
    table = layout.table.name
    for column in layout.columns:
        wanted, declared = column_type(column), found.types.get(column.name)
        if declared is None:
            raise SchemaMismatch(
                f"table {table!r} has no column {column.name!r} ({column}); add it: "
                f"ALTER TABLE {table_name(layout.table)} ADD COLUMN {quote(column.name)} {wanted}"
            )
        if not fits(column, declared):
            raise SchemaMismatch(
                f"table {table!r}: column {column.name!r} is {declared} there and {column} in the "
                f"rows, which needs {wanted}; cast it in the pipeline, or ALTER TABLE "
                f"{table_name(layout.table)} ALTER COLUMN {quote(column.name)} TYPE {wanted}"
            )
    for name in found.required:
        if name not in layout.names:
            raise SchemaMismatch(
                f"table {table!r}: its column {name!r} ({found.types[name]}) needs a value, and "
                "the rows have no such column; add it to the rows, or give it a default"
            )
    if layout.table.mode == "upsert" and set(layout.table.key) not in found.unique_keys:
        raise SchemaMismatch(
            f"table {table!r} has no unique key ({', '.join(layout.table.key)}), which upserts go "
            f"by; add it: CREATE UNIQUE INDEX ON {table_name(layout.table)} ({quoted(layout.key)})"
        )


def staging_columns(layout: Layout) -> str:
    """Columns of a staging table: c0, c1, ... and the mark of deleted rows."""
    columns = [f"c{number} {staged_type(it)}" for number, it in enumerate(layout.columns)]
    if layout.table.delete_column is not None:
        columns.append("deleted boolean")
    return ", ".join(columns)


@dataclass(frozen=True)
class Merge:
    """The statements that bring staged rows into their table."""

    layout: Layout
    found: FoundTable

    def statements(self, stages: Sequence[str]) -> list[str]:
        """For stages in their order: rows of later ones win."""
        mode = self.layout.table.mode
        if mode == "replace":  # every old row goes before the first new one comes
            return [*map(self._delete_keys, stages), *map(self._insert, stages)]
        statements = []
        for stage in stages:
            if self.layout.table.delete_column is not None:
                statements.append(self._delete_keys(stage) + " AND s.deleted")
            insert = self._insert(stage)
            if mode == "upsert":
                insert += self._by_key() + on_conflict(self.layout)
            statements.append(insert)
        return statements

    def _by_key(self) -> str:
        """Rows in the order of the index that they go into: a third faster than in any other."""
        numbers = [self.layout.columns.index(it) for it in self.layout.key]
        return " ORDER BY " + ", ".join(f"c{it}" for it in numbers)

    def _delete_keys(self, stage: str) -> str:
        numbers = {column.name: number for number, column in enumerate(self.layout.columns)}
        condition = " AND ".join(
            f"t.{quote(column.name)} = {self._cast(f's.c{numbers[column.name]}', column)}"
            for column in self.layout.key
        )
        table = table_name(self.layout.table)
        return f"DELETE FROM {table} AS t USING {stage} AS s WHERE {condition}"

    def _insert(self, stage: str) -> str:
        values = ", ".join(
            self._cast(f"c{number}", column) for number, column in enumerate(self.layout.columns)
        )
        condition = "" if self.layout.table.delete_column is None else " WHERE NOT deleted"
        return (
            f"INSERT INTO {table_name(self.layout.table)} ({quoted(self.layout.columns)}) "
            f"SELECT {values} FROM {stage}{condition}"
        )

    def _cast(self, value: str, column: Column) -> str:
        """Only where PostgreSQL would not do it unasked: asked, it cuts long strings silently."""
        if column.kind == "decimal":
            return f"{value}::numeric"
        declared = self.found.types[column.name]
        return f"{value}::{declared}" if declared in _CAST else value
