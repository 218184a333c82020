"""A server that goes away; that tables follow topics is tested with the runner."""

from __future__ import annotations

import threading

import psycopg
import pytest

from millstream.connect.sinks import OutOfStep, SinkRunner
from millstream.connect.sinks.opening import open_sink
from millstream.errors import SchemaMismatch
from tests.connect.sinks.conftest import Log, PostgresTables, delete_row, wait_for
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer


def test_connections_that_are_cut_are_opened_again(postgres: PostgresServer, log: Log) -> None:
    tables = PostgresTables(postgres)
    stop = threading.Event()
    runner = threading.Thread(target=lambda: SinkRunner(tables.config(log), stop=stop).run())
    log.put((1, "one"))
    runner.start()
    try:
        for number in range(2, 5):
            wait_for(lambda number=number: _count(tables) == number - 1)
            tables.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            log.put((number, "more"))
        wait_for(lambda: _count(tables) == 4)
    finally:
        stop.set()
        runner.join(PATIENCE_SECONDS)


def _count(tables: PostgresTables) -> int:
    try:
        return len(tables.rows())
    except psycopg.Error:
        return 0


def test_view_of_the_table_survives_a_rebuild(postgres: PostgresServer, log: Log) -> None:
    tables = PostgresTables(postgres)
    log.put((1, "one"))
    run_once(tables.config(log))
    tables.run("CREATE VIEW names AS SELECT name FROM items")
    SinkRunner(tables.config(log)).rebuild()
    with psycopg.connect(tables.to) as connection:
        assert connection.execute("SELECT name FROM names").fetchall() == [("one",)]


def test_times_are_read_in_utc_whatever_the_zone_of_the_database(
    postgres: PostgresServer, log: Log
) -> None:
    tables = PostgresTables(postgres)
    tables.run(f"ALTER DATABASE {tables.to.rpartition('/')[2]} SET TimeZone = 'Asia/Kolkata'")
    config = tables.config(log, format="json", topic={"columns": "id long, at timestamp"})
    log.send((b"1", {"id": 1, "at": "2026-01-31T10:00:00Z"}))
    run_once(config)
    with open_sink(config) as sink:
        sink.open()
        row = {"id": 1, "at": "2026-01-31T10:00:00+00:00"}
        assert list(sink.rows(sink.targets[0])) == [("1", row)]
        assert sink.stored_rows(sink.targets[0], [(1,)]) == {(1,): row}


def test_table_that_is_restored_without_its_positions_is_refused(
    postgres: PostgresServer, log: Log
) -> None:
    """It has its id from the backup, but may be older than the positions."""
    tables = PostgresTables(postgres)
    log.put((1, "one"), (2, "two"))
    run_once(tables.config(log))
    tables.back_up("--table=items")
    log.send(delete_row(2))
    run_once(tables.config(log))
    tables.restore()
    with pytest.raises(OutOfStep, match=r"'items'.*--rebuild"):
        run_once(tables.config(log))
    SinkRunner(tables.config(log)).rebuild()
    assert tables.rows() == {1: "one"}


def test_comment_of_a_user_is_kept(postgres: PostgresServer, log: Log) -> None:
    tables = PostgresTables(postgres)
    tables.run(
        "CREATE TABLE items (id bigint PRIMARY KEY, name text)",
        "COMMENT ON TABLE items IS 'what we sell'",
    )
    run_once(tables.config(log))
    with psycopg.connect(tables.to) as connection:
        (comment,) = connection.execute("SELECT obj_description('items'::regclass)").fetchone()
    assert comment.startswith("what we sell [millstream ")


def test_positions_of_an_earlier_version_continue(postgres: PostgresServer, log: Log) -> None:
    """They have neither the record before the offset nor an id of the table."""
    tables = PostgresTables(postgres)
    log.put((1, "one"))
    run_once(tables.config(log))
    tables.run(
        "COMMENT ON TABLE items IS NULL",
        "UPDATE millstream_positions SET target = 'items'::regclass::oid::text",
        "ALTER TABLE millstream_positions DROP COLUMN leader_epoch, DROP COLUMN record_timestamp",
    )
    log.put((2, "two"))
    assert run_once(tables.config(log)).progress.records == 1
    tables.back_up()
    tables.restore()
    assert run_once(tables.config(log)).progress.records == 0
    assert tables.rows() == {1: "one", 2: "two"}


def test_table_that_does_not_fit_is_refused(postgres: PostgresServer, log: Log) -> None:
    tables = PostgresTables(postgres)
    tables.run("CREATE TABLE items (id bigint PRIMARY KEY)")
    with open_sink(tables.config(log)) as sink, pytest.raises(SchemaMismatch, match="no column"):
        sink.open()
