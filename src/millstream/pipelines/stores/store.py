"""What all stores have in common: one transaction takes the rows of a batch and its progress.

A run claims its query before it writes, which raises the query's epoch; from then on an older run
(a driver that was thought dead) is refused. Within the transaction the progress row is locked and
compared first: a batch that is in the tables already is not written again. Whatever fails, nothing
of the batch is there, and the same batch may be written again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Self

from millstream.connect.tables.identities import is_same_table
from millstream.connect.tables.rows import Rows, make_ready
from millstream.connect.tables.schema import Layout, layout_of
from millstream.connect.tables.spec import TableSpec, check_tables_differ
from millstream.errors import ConfigError, StoreError
from millstream.pipelines.query_files import QUERY_ID_PROPERTY
from millstream.pipelines.stores.fencing import RESTORE
from millstream.pipelines.stores.spec import FORGOTTEN, BatchMark, Progress, Role

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from millstream.views.generations import Generations

_NO_VIEWS = "views need a store that reads several tables at one moment: SQLite or PostgreSQL"


class Store(ABC):
    """A database that pipelines write to, from any thread, one batch at a time."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._layouts: dict[TableSpec, Layout] = {}  # checked against the tables
        self._epochs: dict[str, int] = {}  # the queries that this run claimed

    def prepare(self, schema: StructType | pa.Schema, table: TableSpec) -> None:
        """Create the table, or check that it fits; raises `SchemaMismatch`."""
        layout = layout_of(schema, table)
        with self._lock:
            if self._layouts.get(table) != layout:
                self._layouts[table] = self._fit(layout)

    def claim(self, query: str) -> int:
        """Make this run the one that writes for the query; returns its epoch.

        The first batch claims it too; claim it earlier to shut out an older run at once.
        """
        with self._lock:
            if query not in self._epochs:
                self._epochs[query] = self._raise_epoch(query)
            return self._epochs[query]

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that is in the store, or None."""
        progress = self.progress(query)
        return None if progress is None or progress.batch_id == FORGOTTEN else progress.batch_id

    @abstractmethod
    def progress(self, query: str) -> Progress | None:
        """How far the query is, as other readers see it too."""

    def writers(self, table: TableSpec) -> list[str]:
        """The queries that have written to a table that exists, and were not forgotten."""
        identity, tables = self._find_writers(table)
        return sorted(
            query
            for query, written in tables
            # Not by its name: SQLite ignores the case of names.
            if any(is_same_table(known, identity) for known in json.loads(written).values())
        )

    def view_writer(self, table: TableSpec) -> str | None:
        """The query that has listed the table as one of its views; None if it is no view."""
        return None

    def refuse_replaced(self, query: str, tables: Sequence[TableSpec]) -> None:
        """Raises `StoreError` if a table that the query has written is gone, or is another one:
        readers would find an empty table in its place as soon as it is created."""
        stored = self.progress(query)
        known = {} if stored is None or stored.tables is None else json.loads(stored.tables)
        for table in tables:
            if table.name in known and query not in self.writers(table):
                raise StoreError(
                    f"table {table.name!r} was dropped, or dropped and created again, since query "
                    f"{query!r} wrote batch {stored and stored.batch_id}: it would lack what came "
                    f"before. {RESTORE}, or give the query another name, with which it builds its "
                    "tables from the beginning"
                )

    @abstractmethod
    def _find_writers(self, table: TableSpec) -> tuple[str | None, list[tuple[str, str]]]:
        """The identity of the table if it exists, and the tables of all queries, as in
        `Progress.tables`."""

    @abstractmethod
    def forget(self, query: str) -> None:
        """Forget how far the query was: its next batch is written, whatever its number, wherever
        it begins, and whichever tables it goes to."""

    def list_views(
        self,
        query: str,
        views: Sequence[tuple[str, TableSpec, int]],
        *,
        writer: str | None = None,
    ) -> None:
        """Declare which tables of a query are views: their names, tables, which `prepare` has
        created, and how many stamps each keeps. From then on every batch is stamped. `writer` is
        the name of the generation that writes them, if it is not the first one."""
        with self._lock:
            found = [(view, self._layouts[it], keeps) for view, it, keeps in views]
            self._list_views(query, found, writer or query)

    def _list_views(
        self, query: str, views: Sequence[tuple[str, Layout, int]], writer: str
    ) -> None:
        raise ConfigError(_NO_VIEWS)

    def generations(self, query: str) -> Generations:
        """Those of the views of a query."""
        raise ConfigError(_NO_VIEWS)

    def retire(self, query: str, writers: Sequence[str] = ()) -> None:
        """Give up generations of a query that are being built. Drop their tables, and those that
        other generations have replaced, unless readers use them: then the next call does."""
        raise ConfigError(_NO_VIEWS)

    def write(
        self,
        batch: DataFrame,
        batch_id: int,
        query: str,
        table: TableSpec,
        offsets: str | None = None,
        *,
        decision: str | None = None,
        begins: str | None = None,
    ) -> bool:
        """Write a micro-batch; False if it is there already (its input is drained all the same)."""
        outputs = [(batch, table)]
        return self.write_many(outputs, batch_id, query, offsets, decision=decision, begins=begins)

    def write_many(
        self,
        outputs: Sequence[tuple[DataFrame, TableSpec]],
        batch_id: int,
        query: str,
        offsets: str | None = None,
        *,
        decision: str | None = None,
        begins: str | None = None,
        topic_ids: str | None = None,
        role: Role | None = None,
    ) -> bool:
        """Several tables in one transaction: all of the batch is there, or nothing.

        The frames are computed one after another; cache what they have in common. `decision` is
        kept with the progress: whatever else is decided with this batch. `begins` is where the
        batch begins in its sources, as `offsets` is where it ends: with it, tables that lack
        batches before this one are noticed. `topic_ids` are those of the sources, as JSON; they
        are part of the stamp of views. With `role`, raises `RoleChanged` if the pipeline was
        switched to another version meanwhile. Without outputs, only the progress is written.
        """
        check_tables_differ([table for _, table in outputs])
        checkpoint = _checkpoint_id(outputs) if outputs else None
        mark = BatchMark(
            query, batch_id, offsets, decision, checkpoint, begins, topic_ids=topic_ids, role=role
        )
        for frame, table in outputs:
            self.prepare(frame.schema, table)
        self.claim(query)
        if not self._is_due(mark):
            for frame, _ in outputs:
                drain(frame)
            return False
        return self._write_frames(outputs, mark)

    def write_arrow(
        self,
        outputs: Sequence[tuple[pa.Table, TableSpec]],
        batch_id: int,
        query: str,
        offsets: str | None = None,
        *,
        decision: str | None = None,
        begins: str | None = None,
        topic_ids: str | None = None,
    ) -> bool:
        """The same with rows that are here already, without Spark."""
        check_tables_differ([table for _, table in outputs])
        mark = BatchMark(query, batch_id, offsets, decision, begins=begins, topic_ids=topic_ids)
        return self._write_tables(outputs, mark)

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the database."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_tables(self, outputs: Sequence[tuple[pa.Table, TableSpec]], mark: BatchMark) -> bool:
        ready: list[tuple[Rows, Layout]] = []
        for rows, table in outputs:
            self.prepare(rows.schema, table)
            layout = self._layouts[table]
            ready.append((make_ready(rows, layout), layout))
        self.claim(mark.query)
        return self._write_ready(ready, mark)

    @abstractmethod
    def _fit(self, layout: Layout) -> Layout:
        """Create the table if there is none, else check it; with what is known of it then."""

    @abstractmethod
    def _raise_epoch(self, query: str) -> int: ...

    @abstractmethod
    def _is_due(self, mark: BatchMark) -> bool:
        """A first look, without a lock: saves work and is not relied on."""

    @abstractmethod
    def _write_frames(
        self, outputs: Sequence[tuple[DataFrame, TableSpec]], mark: BatchMark
    ) -> bool: ...

    @abstractmethod
    def _write_ready(self, outputs: Sequence[tuple[Rows, Layout]], mark: BatchMark) -> bool: ...


def drain(batch: DataFrame) -> None:
    """Compute a batch for nobody: operators with state need every batch to run to its end."""
    batch.write.format("noop").mode("overwrite").save()


def _checkpoint_id(outputs: Sequence[tuple[DataFrame, TableSpec]]) -> str | None:
    """The id in the checkpoint of the streaming query that this thread works for, if it does."""
    from pyspark.errors import PySparkException

    try:
        context = outputs[0][0].sparkSession.sparkContext
    except (PySparkException, AttributeError):
        return None  # Spark Connect has no context here
    found: str | None = context.getLocalProperty(QUERY_ID_PROPERTY)
    return found
