"""Positions beside the rows of SQLite; that tables follow topics is tested with the runner."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place
from millstream.errors import SchemaMismatch, StoreError
from tests.connect.sinks.conftest import Log, SearchIndex, SqliteTables, wait_for
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS


def test_sinks_of_one_file_have_positions_of_their_own(tmp_path: Path, log: Log) -> None:
    tables = SqliteTables(tmp_path)
    log.put((1, "one"))
    run_once(tables.config(log))
    run_once(tables.config(log, name="second", topic={"table": "others"}))
    assert (
        tables.query("SELECT * FROM items") == tables.query("SELECT * FROM others") == [(1, "one")]
    )
    found = tables.query("SELECT sink, topic, partition, next_offset FROM millstream_positions")
    assert found == [("second", log.topic, 0, 1), ("shop", log.topic, 0, 1)]


def test_table_that_does_not_fit_is_refused(tmp_path: Path, log: Log) -> None:
    tables = SqliteTables(tmp_path)
    tables.query("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    with open_sink(tables.config(log)) as sink, pytest.raises(SchemaMismatch, match="no column"):
        sink.open()


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path, log: Log) -> None:
    (tmp_path / "derived.db").mkdir()
    sink = open_sink(SqliteTables(tmp_path).config(log))
    with sink, pytest.raises(StoreError, match=r"derived\.db"):
        sink.open()


@pytest.fixture(params=[SqliteTables, SearchIndex])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteTables:
    made: SqliteTables = request.param(tmp_path)
    return made


def test_file_that_is_replaced_under_a_running_sink_is_opened_again(
    tables: SqliteTables, log: Log
) -> None:
    """And filled from where it is; a deleted one is created again."""
    stop = threading.Event()
    config = tables.config(log)
    log.put((1, "one"))
    run_once(config)
    tables.back_up()
    runner = threading.Thread(target=lambda: SinkRunner(config, stop=stop).run())
    runner.start()
    try:
        log.put((2, "two"))
        wait_for(lambda: rows(tables) == {1: "one", 2: "two"})
        tables.restore()
        wait_for(lambda: rows(tables) == {1: "one", 2: "two"})  # without new records
        log.put((3, "three"))
        wait_for(lambda: rows(tables) == {1: "one", 2: "two", 3: "three"})
        tables.path.rename(f"{tables.path}.old")
        wait_for(lambda: rows(tables) == {1: "one", 2: "two", 3: "three"})
    finally:
        stop.set()
        runner.join(PATIENCE_SECONDS)


def rows(tables: SqliteTables) -> dict[int, str] | None:
    """Without creating the file."""
    try:
        return tables.rows() if tables.path.exists() else None
    except sqlite3.OperationalError:
        return None


def test_positions_of_an_earlier_version_continue(tables: SqliteTables, log: Log) -> None:
    """They have not the record before the offset, and identities were kept by name."""
    log.put((1, "one"))
    run_once(tables.config(log))
    ((index,),) = tables.query("SELECT name FROM sqlite_master WHERE name LIKE 'millstream id%'")
    tables.query(f'DROP INDEX "{index}"')
    tables.query("INSERT INTO millstream_tables SELECT 'items', target FROM millstream_positions")
    for column in ("leader_epoch", "record_timestamp"):
        tables.query(f"ALTER TABLE millstream_positions DROP COLUMN {column}")
    log.put((2, "two"))
    assert run_once(tables.config(log)).progress.records == 1
    assert tables.rows() == {1: "one", 2: "two"}
    tables.recreate()
    assert run_once(tables.config(log)).progress.records == 2


def test_rebuild_that_was_not_finished_leaves_the_target_alone(tmp_path: Path, log: Log) -> None:
    tables = SqliteTables(tmp_path)
    log.put((1, "one"))
    run_once(tables.config(log))
    with open_sink(tables.config(log)) as sink:
        sink.open()
        with sink.rebuilt() as beside:
            beside.open()
            assert beside.positions() == {}
        assert sink.positions()[Place(log.topic, 0)].offset == 1
    assert tables.rows() == {1: "one"}
