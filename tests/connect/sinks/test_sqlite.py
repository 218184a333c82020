"""Positions beside the rows of SQLite; that tables follow topics is tested with the runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place
from millstream.errors import SchemaMismatch, StoreError
from tests.connect.sinks.conftest import Log, SqliteTables
from tests.connect.sinks.test_runner import run_once


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
