"""Copying tables: queries, keys, and a snapshot that goes on after a kill."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.snapshot import (
    Chunk,
    ChunkReader,
    ExportedCopy,
    copy_query,
    copy_rows,
    key_of,
)
from millstream.connect.capture.source import CopyPlan, Source, connect
from millstream.connect.capture.tables import Column, Table
from tests.connect.capture.harness import TABLE, Setup, wait_until
from tests.peers.patience import PATIENCE_SECONDS

COLUMNS = (Column("a", 25), Column("Odd name", 23), Column("b", 25))
PLAN = CopyPlan(Table(1, "sales", 'or"ders', COLUMNS, ("b", "a")), "r", None)


def text(query: Any) -> str:
    return str(query.as_string(None))


def test_query_reads_behind_a_key() -> None:
    assert text(copy_query(PLAN, ("x'y", "2"), 10)) == (
        'COPY (SELECT "a", "Odd name", "b" FROM ONLY "sales"."or""ders"'
        ' WHERE ("b", "a") > (\'x\'\'y\', \'2\') ORDER BY "b", "a" LIMIT 10) TO STDOUT'
    )


def test_query_of_a_partitioned_table_with_a_filter() -> None:
    plan = CopyPlan(PLAN.table, "p", "(a = 'open'::text)")
    query = text(copy_query(plan))
    assert 'FROM "sales"."or""ders" WHERE (a = \'open\'::text) ORDER BY' in query


def test_key_is_unescaped() -> None:
    assert key_of(PLAN, b"tab\\there\t5\tback\\\\slash\\nline\n") == (
        "back\\slash\nline",
        "tab\there",
    )


def test_copied_rows_are_the_lines_of_the_table(setup: Setup) -> None:
    query = sql.SQL("COPY (SELECT g, 'x' FROM generate_series(1, 5000) g) TO STDOUT").format()
    with connect(setup.url) as connection:
        for _ in range(2):  # the connection can be used again
            assert list(copy_rows(connection, query)) == [b"%d\tx\n" % g for g in range(1, 5001)]


@pytest.mark.parametrize("divisor", ["0", "100 - g"])
def test_copy_that_fails_raises_the_error_of_the_server(setup: Setup, divisor: str) -> None:
    """At once, or after some rows."""
    text = f"COPY (SELECT 1 / ({divisor}) FROM generate_series(1, 200) g) TO STDOUT"
    with connect(setup.url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(copy_rows(connection, sql.SQL(text).format()))
        assert connection.closed


def test_copy_that_is_not_read_to_the_end_closes_its_connection(setup: Setup) -> None:
    query = sql.SQL("COPY (SELECT g FROM generate_series(1, 5000) g) TO STDOUT").format()
    with connect(setup.url) as connection:
        rows = copy_rows(connection, query)
        assert next(rows) == b"1\n"
        rows.close()
        assert connection.closed


def plans(setup: Setup) -> dict[str, CopyPlan]:
    settings = CaptureSettings(name="x", database=setup.url, tables=["public.*"])
    source = Source(settings)
    found = {name: source.copy_plan(table) for name, table in source.tables().items()}
    source.close()
    return found


def test_exported_copy_reads_one_moment(setup: Setup) -> None:
    setup.execute(TABLE.format("a"))
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO a SELECT g, 0 FROM generate_series(1, 25) g")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 25) g")
    with psycopg.connect(setup.url) as exporter:
        exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        copy = ExportedCopy(setup.url, row[0], plans(setup), workers=2, chunk_rows=10)
        setup.execute("DELETE FROM a")
        chunks = list(copy.chunks())
        copy.stop()
    assert [(it.table, len(it.rows), it.is_last) for it in chunks] == [
        (f"public.{table}", rows, rows == 5) for table in ("keyless", "a") for rows in (10, 10, 5)
    ]
    assert [it.after for it in chunks[3:]] == [("10",), ("20",), ("25",)]


def test_exported_copy_raises_what_its_threads_raise(setup: Setup) -> None:
    setup.execute(TABLE.format("a"))
    found = plans(setup)
    setup.execute("ALTER TABLE a DROP COLUMN note")
    with psycopg.connect(setup.url) as exporter:
        exporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        copy = ExportedCopy(setup.url, row[0], found, workers=1, chunk_rows=10)
        with pytest.raises(psycopg.errors.UndefinedColumn):
            list(copy.chunks())
        copy.stop()


def test_chunk_reader_reads_chunk_by_chunk(setup: Setup) -> None:
    setup.execute(TABLE.format("a"))
    setup.execute("INSERT INTO a SELECT g, 0 FROM generate_series(1, 25) g")
    marked = threading.Event()
    reader = ChunkReader(setup.url, lambda connection: marked.set())
    plan = plans(setup)["public.a"]

    def read(after: tuple[str, ...]) -> Chunk:
        reader.request("public.a", plan, after, 10)
        assert reader.is_busy
        found: list[Chunk] = []
        wait_until(lambda: found.extend(it for it in [reader.take()] if it) or found)
        return found[0]

    chunks = [read(())]
    while not chunks[-1].is_last:
        chunks.append(read(chunks[-1].after))
    assert marked.is_set()
    assert [len(it.rows) for it in chunks] == [10, 10, 5]
    assert all(it.snapshot is not None and it.end_lsn > 0 for it in chunks)
    assert not reader.is_busy
    reader.stop()


def test_large_keyless_table_is_refused(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.connect.capture.snapshot.KEYLESS_BYTES_MAX", 10)
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 25) g")
    reader = ChunkReader(setup.url, lambda connection: None)
    reader.request("public.keyless", plans(setup)["public.keyless"], (), 10)
    with pytest.raises(Exception, match="Add a primary key"):
        wait_until(reader.take)
    reader.stop()


def test_connections_have_the_session_options(setup: Setup) -> None:
    with connect(setup.url) as connection:
        assert connection.execute("SHOW intervalstyle").fetchone() == ("iso_8601",)


@pytest.mark.slow_with("9")
@pytest.mark.parametrize("commits", [4, 9])
def test_killed_snapshot_goes_on_with_the_next_chunk(setup: Setup, commits: int) -> None:
    """No row is copied twice, although the exported snapshot is gone."""
    setup.execute(TABLE.format("a"))
    setup.execute(TABLE.format("b"))
    for table in ("a", "b"):
        setup.execute(f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, 300) g")
    process = setup.spawn(f"after commit:{commits}", chunk_rows=50)
    assert process.wait(PATIENCE_SECONDS) == -9
    setup.execute("UPDATE a SET version = 1 WHERE id IN (1, 299)")
    setup.execute("DELETE FROM b WHERE id IN (2, 298)")
    with setup.running(chunk_rows=50) as capture:
        setup.caught_up(capture)
    setup.check("a", "b")
    kinds = set()
    for table in ("a", "b"):
        copied = [it.key["id"] for it in setup.read(table) if it.op == "r"]
        assert len(copied) == len(set(copied)) >= 298
        kinds |= {it.snapshot for it in setup.read(table)}
    assert "incremental" in kinds, "one of the tables was not copied whole"


def test_killed_snapshot_of_a_keyless_table_starts_over(setup: Setup) -> None:
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 100) g")
    process = setup.spawn("after commit:4", chunk_rows=20)
    assert process.wait(PATIENCE_SECONDS) == -9
    setup.execute("INSERT INTO keyless VALUES (101)")
    with setup.running(chunk_rows=20) as capture:
        setup.caught_up(capture)
    changes = setup.read("keyless")
    last_truncate = max(at for at, it in enumerate(changes) if it.op == "t")
    values = [it.value["after"]["n"] for it in changes[last_truncate + 1 :] if it.value]
    assert sorted(values) == list(range(1, 102))
