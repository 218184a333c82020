"""Queries over topics: which tables are topics, what they contain now, and DuckDB over them.

    with Query("select count(*) from orders", "localhost:9092") as running:
        table = running.arrow()

A query sees each topic up to the end that it had when the query began, also if it reads the topic
twice. `cancel` and `progress` may be used from other threads while a query runs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from millstream.client.cluster import Cluster, TopicInfo
from millstream.client.offsets import log_bounds
from millstream.client.security import Security, security_settings
from millstream.errors import ConfigError, MillstreamError
from millstream.query.archived import ArchivedReader, archives_of, with_archived
from millstream.query.columns import table_schema
from millstream.query.fetching import QueryFailed, RangeReader, Source
from millstream.query.ranges import ScanRange
from millstream.query.scanning import ClusterPool, Progress
from millstream.query.syntax import identifiers, table_names
from millstream.query.table import TopicTable
from millstream.query.values import (
    ValueColumns,
    given_columns,
    registry_columns,
    sampled_columns,
)

CLIENT_ID = "millstream-query"
MISSING_TOPIC_SECONDS = 1.0
BATCH_ROWS = 100_000
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
# header(_headers, 'trace') is the value of the first header of that name.
_MACROS = (
    "create macro header(headers, name) as list_filter(headers, lambda it: it.key = name)[1].value"
)


def query(
    sql: str,
    bootstrap_servers: str = "localhost:9092",
    *,
    settings: Mapping[str, str] | None = None,
    schema: str | Mapping[str, str] | None = None,
    tables: Mapping[str, Any] | None = None,
    parameters: Sequence[Any] = (),
    read_committed: bool = True,
    archive: str | None = None,
) -> pa.Table:
    """The result of an SQL query over topics as an Arrow table; `.to_pandas()` makes a DataFrame.

    `settings`: those of a Kafka client, for security and the schema registry. `schema`: the columns
    of values, such as "id bigint, name string", or those of each topic by its name. `tables`: other
    tables by name, such as Arrow tables or DataFrames. Files are read with DuckDB's functions.
    `archive`: the path of an archive, from which archived records are read directly.
    """
    with Query(
        sql,
        bootstrap_servers,
        settings=settings,
        schema=schema,
        tables=tables,
        parameters=parameters,
        read_committed=read_committed,
        archive=archive,
    ) as running:
        return running.arrow()


class Query:
    """See the module. One of `arrow`, `reader` and `write` is called, once."""

    def __init__(
        self,
        sql: str,
        bootstrap_servers: str = "localhost:9092",
        *,
        settings: Mapping[str, str] | None = None,
        schema: str | Mapping[str, str] | None = None,
        tables: Mapping[str, Any] | None = None,
        parameters: Sequence[Any] = (),
        read_committed: bool = True,
        archive: str | None = None,
    ) -> None:
        self.sql = sql
        self.progress = Progress()
        self.tables: dict[str, TopicTable] = {}  # the topics that the query reads
        self._settings = dict(settings or {})
        self._schema = schema
        self._others = dict(tables or {})
        self._parameters = list(parameters)
        self._read_committed = read_committed
        self._archive = archive
        self._stop = threading.Event()
        security = Security.from_settings(security_settings(self._settings))
        self._pool = ClusterPool(
            lambda: Cluster(
                bootstrap_servers,
                client_id=CLIENT_ID,
                security=security,
                missing_topic_seconds=MISSING_TOPIC_SECONDS,
            )
        )
        self._connection = duckdb.connect()
        self._connection.execute("set python_enable_replacements = false")
        try:
            self._open_tables()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Results

    def arrow(self) -> pa.Table:
        """The whole result. Raises `QueryFailed`."""
        try:
            return self._relation(self.sql).to_arrow_table()
        except duckdb.Error as error:
            raise self._explained(error) from error

    def reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """The result batch by batch; closing the reader early stops the scans."""
        try:
            return self._relation(self.sql).to_arrow_reader(batch_rows)
        except duckdb.Error as error:
            raise self._explained(error) from error

    def write(self, path: str) -> int:
        """Write the result to a file: Parquet, CSV or lines of JSON, by its ending. Returns the
        number of rows."""
        kind = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json"}.get(
            path.rpartition(".")[2].lower()
        )
        if kind is None:
            raise ConfigError(f"{path}: a result is written as .parquet, .csv, .json or .jsonl")
        target = path.replace("'", "''")
        sql = f"copy (\n{self.sql.rstrip().rstrip(';')}\n) to '{target}' (format {kind})"
        try:
            ((count,),) = self._connection.execute(sql, self._parameters or None).fetchall()
        except duckdb.Error as error:
            raise self._explained(error) from error
        return int(count)

    def cancel(self) -> None:
        """Have the query fail with `QueryFailed`; any thread may call it."""
        self._stop.set()
        self._connection.interrupt()

    @property
    def is_cancelled(self) -> bool:
        return self._stop.is_set()

    @property
    def warnings(self) -> list[str]:
        """What the result does not contain, though it should."""
        return list(self.progress.warnings)

    def close(self) -> None:
        self._stop.set()
        self._connection.close()
        self._pool.close()

    def _relation(self, sql: str) -> Any:
        return self._connection.sql(sql, params=self._parameters or None)

    def _explained(self, error: duckdb.Error) -> MillstreamError:
        """The error of a scan, where DuckDB wraps one, or DuckDB's own."""
        if self._stop.is_set():
            return QueryFailed("the query was cancelled")
        for table in self.tables.values():
            if table.error is not None:
                return table.error
        return QueryFailed(self._with_suggestion(str(error).strip()))

    def _with_suggestion(self, message: str) -> str:
        match = re.search(r"Table with name (\S+) does not exist", message)
        if match is None:
            return message
        with self._pool.lend() as cluster:
            topics = sorted(cluster.retrying(lambda: cluster.refresh(None)))
        near = get_close_matches(match[1], topics, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"there is no topic {match[1]}{hint}"

    # Tables

    def _open_tables(self) -> None:
        """Find out which tables of the query are topics, and register them."""
        names = self._table_names()
        with self._pool.lend() as cluster:
            found = {}
            if names:
                found = cluster.retrying(lambda: cluster.refresh(sorted(names)))
            _check_case(found)
            for topic in found.values():
                self.tables[topic.name] = self._open_table(cluster, topic)
        for name, table in self.tables.items():
            self._connection.register(name, table)
            self._make_qualified(name)
        for name, other in self._others.items():
            self._connection.register(name, other)
        self._connection.execute(_MACROS)

    def _table_names(self) -> set[str]:
        """What the query names as tables, and could be topics."""
        names = table_names(self._connection, self.sql) - self._others.keys()
        return {it for it in names if _TOPIC_NAME.fullmatch(it)}

    def _make_qualified(self, name: str) -> None:
        """Let `shop.orders` be written without quotes."""
        schema, dot, table = name.partition(".")
        if not dot or "." in table or '"' in name or f'"{name}"' in self.sql:
            return
        try:
            self._connection.execute(f'create schema if not exists "{schema}"')
            self._connection.execute(f'create view "{schema}"."{table}" as from "{name}"')
        except duckdb.Error:
            return  # the name is DuckDB's own; it works with quotes

    def _open_table(self, cluster: Cluster, topic: TopicInfo) -> TopicTable:
        source = Source(topic.name, topic.id, self._read_committed)
        places = [(topic.name, it.number) for it in topic.partitions]
        bounds = log_bounds(cluster, places, read_committed=self._read_committed)
        archives = archives_of(self._archive, topic.name, topic.id)
        ranges = with_archived(
            [ScanRange(number, *bounds[topic.name, number]) for _, number in places], archives
        )
        reader = ArchivedReader(RangeReader(cluster, source), source, archives)
        columns = self._value_columns(reader, source, ranges)
        return TopicTable(
            self._pool,
            source,
            ranges,
            table_schema(columns.schema, identifiers(self.sql)),
            progress=self.progress,
            make_decoder=columns.decoder(skips_failures=False),
            stop=self._stop,
            archives=archives,
        )

    def _value_columns(
        self, reader: ArchivedReader, source: Source, ranges: Sequence[ScanRange]
    ) -> ValueColumns:
        given = self._schema
        if isinstance(given, Mapping):
            given = given.get(source.topic)
        if given is not None:
            return given_columns(given)
        registered = registry_columns(source.topic, self._settings)
        return registered or sampled_columns(reader, ranges)


def _check_case(found: Mapping[str, TopicInfo]) -> None:
    names = sorted(found)
    for name in names:
        for other in names:
            if name < other and name.lower() == other.lower():
                raise QueryFailed(
                    f"topics {name} and {other} differ only in case, which SQL does not "
                    "distinguish; query them one by one"
                )
