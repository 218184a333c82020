"""A warehouse in a file that one process at a time opens; the rest is tested with the runner."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.connect.sinks import SinkRunner, load_config
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.sink import SinkUnavailable
from millstream.errors import SchemaMismatch
from tests.connect.sinks.conftest import Log, Warehouse
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS


def test_file_that_another_process_has_open_is_waited_for(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    log.put((1, "one"))
    run_once(warehouse.config(log))
    log.put((2, "two"))
    with warehouse.held_by_another_process() as release:
        with pytest.raises(SinkUnavailable, match="cannot be opened"):
            run_once(warehouse.config(log, patience_seconds=0))
        runner = threading.Thread(target=lambda: run_once(warehouse.config(log)))
        runner.start()
        release()
        runner.join(PATIENCE_SECONDS)
    assert warehouse.rows() == {1: "one", 2: "two"}


def test_positions_of_an_earlier_version_continue(tmp_path: Path, log: Log) -> None:
    """They have not the record before the offset."""
    warehouse = Warehouse(tmp_path)
    log.put((1, "one"))
    run_once(warehouse.config(log))
    for statement in (
        "CREATE TABLE earlier AS SELECT * EXCLUDE (leader_epoch, record_timestamp) "
        "FROM millstream_positions",
        "DROP TABLE millstream_positions",
        "CREATE TABLE millstream_positions (sink VARCHAR, topic VARCHAR, partition INTEGER, "
        "topic_id VARCHAR, next_offset BIGINT, target VARCHAR, written_at TIMESTAMPTZ, "
        "PRIMARY KEY (sink, topic, partition))",
        "INSERT INTO millstream_positions FROM earlier",
    ):
        warehouse.query(statement)
    log.put((2, "two"))
    assert run_once(warehouse.config(log)).progress.records == 1
    assert warehouse.rows() == {1: "one", 2: "two"}


def test_types_are_kept(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    columns = "id long, price decimal(9,2), at timestamp, day date, tags json"
    row = {"id": 1, "price": "1.50", "at": "2026-01-31T10:00:00Z", "day": 20_000, "tags": ["a"]}
    log.send((b"1", row))
    run_once(warehouse.config(log, format="json", topic={"columns": columns}))
    found = warehouse.query('SELECT price, day, tags FROM items WHERE "at" < now()')
    assert [tuple(map(str, it)) for it in found] == [("1.50", "2024-10-04", '["a"]')]


# Reads a table, in a process that has no pytz, which DuckDB itself does not require.
READ = """
import sys
sys.modules["pytz"] = None
from pathlib import Path
from millstream.connect.sinks.config import load_config
from millstream.connect.sinks.opening import open_sink
with open_sink(load_config(Path(sys.argv[1]))) as sink:
    sink.open()
    (target,) = sink.targets
    print(list(sink.rows(target)), sink.stored_rows(target, [(1,)]))
"""


def test_times_are_read_in_utc_whatever_the_zone_of_the_process(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    file = tmp_path / "sink.toml"
    file.write_text(
        f'name = "shop"\nbroker = "{log.bootstrap}"\nto = "{warehouse.to}"\nformat = "json"\n'
        f'[topics."{log.topic}"]\ntable = "items"\nkey = "id"\n'
        'columns = "id long, at timestamp"\n'
    )
    log.send((b"1", {"id": 1, "at": "2026-01-31T10:00:00Z"}))
    run_once(load_config(file))
    row = {"id": 1, "at": "2026-01-31T10:00:00+00:00"}
    found = subprocess.run(
        [sys.executable, "-c", READ, str(file)],
        env={**os.environ, "TZ": "Asia/Kolkata"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stdout, found.stderr) == (f"{[('1', row)]} { {(1,): row} }\n", "")


def test_table_that_does_not_fit_is_refused(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    warehouse.query("CREATE TABLE items (id INTEGER, name VARCHAR)")
    sink = open_sink(warehouse.config(log))
    with (
        sink,
        pytest.raises(SchemaMismatch, match="'id' is INTEGER there, and"),
    ):
        sink.open()


def test_rebuild_keeps_views(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    log.put((1, "one"))
    run_once(warehouse.config(log))
    warehouse.query("CREATE VIEW names AS SELECT name FROM items")
    SinkRunner(warehouse.config(log)).rebuild()
    assert warehouse.query("FROM names") == [("one",)]


def test_threads_open_the_file_at_once(tmp_path: Path, log: Log) -> None:
    warehouse = Warehouse(tmp_path)
    log.put((1, "one"))
    run_once(warehouse.config(log))

    def open_and_close() -> None:
        for _ in range(100):
            with open_sink(warehouse.config(log)) as sink:
                sink.open()

    with ThreadPoolExecutor(3) as pool:
        for opened in [pool.submit(open_and_close) for _ in range(3)]:
            opened.result(PATIENCE_SECONDS)
