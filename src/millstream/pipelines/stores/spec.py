"""What a pipeline says about a table, and what a store remembers about a pipeline.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from millstream.errors import ConfigError

Mode = Literal["upsert", "append", "replace"]
PROGRESS_TABLE = "millstream_progress"
FORGOTTEN = -1  # the batch of a query that was forgotten: any batch may be its next
DELETE_WORDS = ("d", "delete")


@dataclass(frozen=True)
class TableSpec:
    """One table that a pipeline writes; in PostgreSQL the name may be `schema.table`."""

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
        if self.name.lower() == PROGRESS_TABLE:
            raise ConfigError(f"the table {PROGRESS_TABLE!r} is where stores keep progress")
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


@dataclass(frozen=True)
class Progress:
    """How far a query is in a store: written in the transaction of the rows."""

    query: str
    epoch: int  # counts the runs that claimed the query; the last one may write
    batch_id: int | None = None  # the last batch that is in the tables
    offsets: str | None = None  # where its sources stood after that batch, as JSON
    decision: str | None = None  # what else was decided with it: open Kafka transactions, as JSON
    checkpoint: str | None = None  # the id of the checkpoint that numbered the batches
    tables: str | None = None  # the identities of its tables, by name, as JSON


@dataclass(frozen=True)
class BatchMark:
    """A batch as its writer presents it."""

    query: str
    batch_id: int
    offsets: str | None = None
    decision: str | None = None
    checkpoint: str | None = None
    begins: str | None = None  # where its sources stood before it, as JSON, if that is known
    # The identities of the tables it goes to, by name: a table that was dropped and created again
    # has another one. None while that is not known.
    tables: Mapping[str, str] | None = None


def check_name(what: str, name: str) -> None:
    if not name or "\0" in name:
        raise ConfigError(f"{what}: {name!r} is no name; it must not be empty nor contain NUL")


def check_tables_differ(tables: Sequence[TableSpec]) -> None:
    """Outputs of one batch are applied one after another; none may undo another."""
    names = [table.name.lower() for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"several outputs of one pipeline write to the same table: {twice}")
