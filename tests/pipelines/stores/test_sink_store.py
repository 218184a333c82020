"""Targets of `millstream connect` as stores of pipelines: each batch once, old runs fenced."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
import redis as redis_client

from millstream.connect.sinks.opensearch import OpenSearchSink
from millstream.errors import ConfigError, StoreError, WriterFenced
from millstream.pipelines.stores import Store, TableSpec, open_store, sink_store
from tests.peers.opensearch import OpenSearchServer
from tests.peers.redis import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = TableSpec("counts", ("id",), delete="gone")
NAMES = TableSpec("names", ("id",))
JAVA = [pytest.mark.slow, pytest.mark.java]


class Target:
    """An address, and the rows of a table there: ids and names, or numbers."""

    def __init__(self, url: str, rows: Callable[[str, str], list[tuple[Any, ...]]]) -> None:
        self.url, self._rows = url, rows

    def open(self) -> Store:
        return open_store(self.url)

    def rows(self, table: str, column: str) -> dict[Any, Any]:
        return dict(self._rows(table, column))


@pytest.fixture(params=["duckdb", "fts5", "delta", "redis", pytest.param("opensearch", marks=JAVA)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    match request.param:
        case "duckdb":
            return Target(f"duckdb:///{tmp_path}/w.db", lambda *it: of_duckdb(tmp_path, *it))
        case "fts5":
            return Target(f"fts5:///{tmp_path}/s.db", lambda *it: of_sqlite(tmp_path, *it))
        case "delta":
            return Target(f"delta:///{tmp_path}/lake", lambda *it: of_delta(tmp_path, *it))
        case "redis":
            server: RedisServer = request.getfixturevalue("redis")
            client: Any = redis_client.Redis.from_url(server.url, decode_responses=True)
            client.flushall()
            return Target(server.url, lambda *it: of_redis(client, *it))
    search: OpenSearchServer = request.getfixturevalue("opensearch")
    for name in search.ask("GET", "/counts*,names*")[1]:
        search.ask("DELETE", f"/{name}")
    return Target(search.url, lambda *it: of_opensearch(search, *it))


def of_duckdb(directory: Path, table: str, column: str) -> list[Any]:
    with duckdb.connect(f"{directory}/w.db", read_only=True) as connection:
        return connection.execute(f"SELECT id, {column} FROM {table}").fetchall()


def of_sqlite(directory: Path, table: str, column: str) -> list[Any]:
    connection = sqlite3.connect(directory / "s.db")
    try:
        return connection.execute(f"SELECT id, {column} FROM {table}").fetchall()
    finally:
        connection.close()


def of_delta(directory: Path, table: str, column: str) -> list[Any]:
    from deltalake import DeltaTable

    found = DeltaTable(f"{directory}/lake/{table}").to_pyarrow_table().to_pylist()
    return [(it["id"], it[column]) for it in found]


def of_redis(client: Any, table: str, column: str) -> list[Any]:
    found = [json.loads(client.get(key)) for key in client.keys(f"{table}:*")]
    return [(it["id"], it[column]) for it in found]


def of_opensearch(server: OpenSearchServer, table: str, column: str) -> list[Any]:
    server.ask("POST", f"/{table}/_refresh")
    found = server.ask("GET", f"/{table}/_search?size=1000")[1]["hits"]["hits"]
    return [(it["_source"]["id"], it["_source"][column]) for it in found]


def counts(**by_id: int) -> pa.Table:
    """Numbers of ids; -1: deleted."""
    return pa.table(
        {
            "id": pa.array(list(by_id), pa.string()),
            "n": pa.array(list(by_id.values()), pa.int64()),
            "gone": pa.array([it < 0 for it in by_id.values()], pa.bool_()),
        }
    )


def test_batches_are_applied_once_and_deletes_delete(target: Target) -> None:
    with target.open() as store:
        assert store.write_arrow([(counts(a=1, b=2), COUNTS)], 0, "q", "{}")
        assert store.write_arrow([(counts(a=3, b=-1, c=4), COUNTS)], 1, "q", "{}")
        assert not store.write_arrow([(counts(a=9), COUNTS)], 1, "q", "{}")
    with target.open() as store:
        store.prepare(counts().schema, COUNTS)
        assert store.last_batch("q") == 1
        assert not store.write_arrow([(counts(a=9), COUNTS)], 1, "q", "{}")
        assert store.write_arrow([(counts(b=5), COUNTS)], 2, "q", "{}", decision="kept")
        progress = store.progress("q")
        assert progress is not None
        assert (progress.batch_id, progress.decision) == (2, "kept")
    assert target.rows("counts", "n") == {"a": 3, "b": 5, "c": 4}


def test_older_run_is_fenced(target: Target) -> None:
    with target.open() as old, target.open() as new:
        old.write_arrow([(counts(a=1), COUNTS)], 0, "q")
        new.prepare(counts().schema, COUNTS)
        assert new.claim("q") == 2
        with pytest.raises(WriterFenced):
            old.write_arrow([(counts(a=2), COUNTS)], 1, "q")
        assert new.write_arrow([(counts(a=3), COUNTS)], 1, "q")
    assert target.rows("counts", "n") == {"a": 3}


def test_forgotten_query_writes_batches_with_smaller_numbers(target: Target) -> None:
    with target.open() as store:
        for batch_id in range(3):
            store.write_arrow([(counts(a=batch_id, b=1), COUNTS)], batch_id, "q")
        store.forget("q")
    with target.open() as store:
        assert store.write_arrow([(counts(a=10), COUNTS)], 0, "q")
        assert store.last_batch("q") == 0
    assert target.rows("counts", "n") == {"a": 10, "b": 1}


def test_several_tables_all_have_a_batch_after_a_failure(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pa.table({"id": ["a"], "name": ["first"]})
    with target.open() as store:
        assert store.write_arrow([(counts(a=1), COUNTS), (names, NAMES)], 0, "q")
    names = pa.table({"id": ["a"], "name": ["second"]})
    outputs = [(counts(a=2), COUNTS), (names, NAMES)]
    if target.url.startswith("opensearch"):
        stored = OpenSearchSink._store

        def fail(sink: Any, table: Any, *rest: Any) -> None:
            if table.table == "names":
                raise StoreError("the process ends here")
            stored(sink, table, *rest)

        with target.open() as store, monkeypatch.context() as patched:
            for rows, table in outputs:
                store.prepare(rows.schema, table)
            store.claim("q")
            patched.setattr(OpenSearchSink, "_store", fail)
            with pytest.raises(StoreError, match="ends here"):
                store.write_arrow(outputs, 1, "q")
    with target.open() as store:
        assert store.write_arrow(outputs, 1, "q")
        assert not store.write_arrow(outputs, 1, "q")
    assert target.rows("counts", "n") == {"a": 2}
    assert target.rows("names", "name") == {"a": "second"}


def test_what_the_target_cannot_do_is_refused(target: Target) -> None:
    with target.open() as store:
        with pytest.raises(ConfigError, match="cannot apply mode 'append'"):
            store.prepare(counts().schema, TableSpec("log", mode="append"))
        store.write_arrow([(counts(a=1), COUNTS)], 0, "q")
        with pytest.raises(ConfigError, match="open another one for 'other'"):
            store.write_arrow([(counts(a=1), COUNTS)], 0, "other")


def test_frames_of_spark_are_written(spark: SparkSession, target: Target) -> None:
    table = TableSpec("names", ("id",))
    for batch_id in range(2):
        frame = spark.range(0, 100).selectExpr(
            "id",
            f"concat('user ', id + {batch_id}) AS name",
            "timestamp_millis(id * 1000) AS at",
            "CAST(id AS decimal(20, 3)) AS price",
            "named_struct('n', id) AS nested",
        )
        with target.open() as store:
            assert store.write(frame, batch_id, "q", table, "{}")
            assert not store.write(frame, batch_id, "q", table, "{}")
    assert target.rows("names", "name") == {id: f"user {id + 1}" for id in range(100)}


def test_text_of_a_search_index_is_searched(tmp_path: Path) -> None:
    with open_store(f"fts5:///{tmp_path}/s.db") as store:
        rows = pa.table({"id": [1, 2], "name": ["Red shoes", "Blue hat"], "price": [90, 50]})
        store.write_arrow([(rows, NAMES)], 0, "q")
    connection = sqlite3.connect(tmp_path / "s.db")
    found = connection.execute("SELECT id, price FROM names WHERE names MATCH 'shoes'").fetchall()
    connection.close()
    assert found == [(1, 90)]


def test_restored_delta_table_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    monkeypatch.setattr(sink_store, "_PAUSE_SECONDS", 1e9)  # nothing waits
    url = f"delta:///{tmp_path}/lake"
    with open_store(url) as store:
        for batch_id in range(3):
            store.write_arrow([(counts(a=batch_id), COUNTS)], batch_id, "q")
        table = DeltaTable(f"{tmp_path}/lake/counts")
        last = table.version()
        table.restore(last - 1)
        with pytest.raises(StoreError, match=r"'counts' .* restored to an older version"):
            store.write_arrow([(counts(a=3), COUNTS)], 3, "q")
    with open_store(url) as store:
        store.prepare(counts().schema, COUNTS)
        with pytest.raises(StoreError, match="Restore it to the last version"):
            store.progress("q")
        DeltaTable(f"{tmp_path}/lake/counts").restore(last)
        assert store.write_arrow([(counts(a=3), COUNTS)], 3, "q")
    assert of_delta(tmp_path, "counts", "n") == [("a", 3)]


def test_target_that_was_deleted_under_the_query_is_reported(tmp_path: Path) -> None:
    with open_store(f"duckdb:///{tmp_path}/w.db") as store:
        store.write_arrow([(counts(a=1), COUNTS)], 0, "q")
        with duckdb.connect(f"{tmp_path}/w.db") as connection:
            connection.execute("DROP TABLE counts")
        with pytest.raises(StoreError, match="'counts' was deleted since query 'q' has started"):
            store.write_arrow([(counts(a=1), COUNTS)], 1, "q")


def test_table_that_was_created_again_with_rows_is_reported(tmp_path: Path) -> None:
    """With what a pipeline can do: it has no `--rebuild`."""
    url = f"duckdb:///{tmp_path}/w.db"
    with open_store(url) as store:
        store.write_arrow([(counts(a=1), COUNTS)], 0, "q")
    with duckdb.connect(f"{tmp_path}/w.db") as connection:
        connection.execute("CREATE TABLE copied AS FROM counts")
        connection.execute("DROP TABLE counts")
        connection.execute("ALTER TABLE copied RENAME TO counts")
    with (
        open_store(url) as store,
        pytest.raises(StoreError, match=r"\['counts'\].*since query 'q'.*give the query another"),
    ):
        store.write_arrow([(counts(a=2), COUNTS)], 1, "q")
