"""The declaration of a table: its name, its key, and how rows are applied to it.

    upsert    one row per key: inserted, or updated where the key is there; the last row of a batch
              wins (last in its Spark partition; which is in the order of the topic's partition)
    append    every row is a new one
    replace   a key has any number of rows: those of a batch take the place of all it had before

With a column `delete`, rows that are marked in it take their key out of the table, with what the
same batch has of it before them; rows that come after stay. The column itself is not stored. It
holds booleans, or an operation as change streams spell it ("d", "delete"), or weights.

Weights are what `changes` and `table_join` produce: 1 adds a row, -1 takes one away. The rows of a
key may then lie in several Spark partitions, which have no order among them. So weights are summed
by key, whatever the order: a key whose sum is negative is deleted, and otherwise the row that was
added is its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from millstream.errors import ConfigError

Mode = Literal["upsert", "append", "replace"]
"""How rows are applied: by their key, added, or in place of all rows."""

# How the addresses of databases begin.
SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
# Tables that stores and sinks keep for themselves.
PROGRESS_TABLE = "millstream_progress"
POSITIONS_TABLE = "millstream_positions"
IDENTITIES_TABLE = "millstream_tables"
VIEWS_TABLE = "millstream_views"
STAMPS_TABLE = "millstream_stamps"
VERSIONS_TABLE = "millstream_versions"
HALTS_TABLE = "millstream_halts"
RUNS_TABLE = "millstream_runs"
SHOWN_TABLE = "millstream_shown"
RESERVED = (
    PROGRESS_TABLE, POSITIONS_TABLE, IDENTITIES_TABLE, VIEWS_TABLE, STAMPS_TABLE, VERSIONS_TABLE,
    HALTS_TABLE, RUNS_TABLE, SHOWN_TABLE,
)  # fmt: skip
DELETE_WORDS = ("d", "delete")


@dataclass(frozen=True)
class TableSpec:
    """One table that rows are written to; in PostgreSQL the name may be `schema.table`."""

    name: str
    key: tuple[str, ...] = ()
    mode: Mode = "upsert"
    delete: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))
        check_name("table", self.name)
        for column in self.key:
            check_name(f"key column of table {self.name!r}", column)
        if self.name.lower() in RESERVED:
            raise ConfigError(f"the table {self.name!r} is where stores keep progress")
        if self.mode not in get_args(Mode):
            known = ", ".join(get_args(Mode))
            raise ConfigError(f"table {self.name!r}: mode {self.mode!r} is none of {known}")
        if self.mode != "append" and not self.key:
            raise ConfigError(
                f"table {self.name!r}: mode {self.mode!r} needs a key; "
                "name its columns, or choose mode 'append'"
            )
        if len(set(self.key)) != len(self.key):
            raise ConfigError(f"table {self.name!r}: its key names a column twice: {self.key}")
        if self.delete is not None:
            self._check_delete_column()

    def _check_delete_column(self) -> None:
        if self.mode == "append":
            raise ConfigError(
                f"table {self.name!r}: mode 'append' deletes nothing; "
                "leave delete out, or choose 'upsert' or 'replace'"
            )
        if self.delete in self.key:
            raise ConfigError(
                f"table {self.name!r}: {self.delete!r} is of the key and cannot mark deletes"
            )


def check_name(what: str, name: str) -> None:
    if not name or "\0" in name:
        raise ConfigError(f"{what}: {name!r} is no name; it must not be empty nor contain NUL")


def check_tables_differ(tables: Sequence[TableSpec]) -> None:
    """Outputs of one batch are applied one after another; none may undo another."""
    names = [table.name.lower() for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"several outputs of one pipeline write to the same table: {twice}")
