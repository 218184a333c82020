"""`millstream capture` as a process, between a real database and a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millstream.cli.capture import describe, size
from millstream.connect.capture.progress import Progress
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, start_postgres

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = start_postgres("fsync=off", "wal_level=logical")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLSTREAM, "capture", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def file(postgres: PostgresServer, millstream: SharedBroker, tmp_path: Path) -> Path:
    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, product text)")
        connection.execute("INSERT INTO orders VALUES (1, 'tea'), (2, 'mug')")
    path = tmp_path / "capture.toml"
    path.write_text(
        f'name = "{millstream.unique_topic("shop")}"\ndatabase = "{url}"\n'
        f'tables = ["public.*"]\nbroker = "{millstream.bootstrap_servers}"\n'
    )
    return path


def test_capture_runs_until_a_signal(file: Path) -> None:
    process = subprocess.Popen(
        [MILLSTREAM, "capture", "run", str(file)], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = command("status", file, "--json")
            status = json.loads(answer.stdout)
            if status["phase"] == "streaming" and status["is_running"]:
                break
            assert time.monotonic() < deadline
        assert status["tables"]["public.orders"]["rows"] == 2
        requested = command("resnapshot", file, "public.orders")
        assert requested.stdout == "requested: public.orders\n"
    finally:
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "rows copied" in shown
    shown = command("status", file).stdout
    assert "public.orders" in shown
    assert "streaming" in shown
    started_over = command("resnapshot", file, "--new-slot")
    assert "starts over" in started_over.stdout
    assert command("resnapshot", file, "--new-slot", "public.orders").returncode == 1
    removed = command("remove", file, "--yes")
    assert "dropped publication millstream_" in removed.stdout
    assert "topics are kept; `millstream topic delete" in removed.stderr


def test_status_names_tables_with_problems(file: Path) -> None:
    database = next(it for it in file.read_text().splitlines() if it.startswith("database"))
    with psycopg.connect(database.split('"')[1], autocommit=True) as connection:
        connection.execute("CREATE TABLE scratch (x int)")
    answer = command("status", file, "--json")
    assert answer.returncode == 1
    assert list(json.loads(answer.stdout)["table_problems"]) == ["public.scratch"]
    assert "public.scratch: left out: it has no replica identity" in answer.stderr


def test_mistakes_are_one_line(file: Path) -> None:
    file.write_text(file.read_text().replace("public.*", "sales.*"))
    answer = command("run", file)
    assert answer.returncode == 1
    assert "no table matches sales.*" in answer.stderr
    assert "Traceback" not in answer.stderr
    file.write_text(file.read_text().replace("127.0.0.1", "127.0.0.9"))
    answer = command("status", file)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr


def test_progress_is_described() -> None:
    progress = Progress()
    assert describe(progress) == "connecting"
    progress.waiting = "for open transactions: pid 1"
    assert describe(progress) == "waiting for open transactions: pid 1"
    progress.retrying(OSError("gone"))
    assert describe(progress) == "retrying: gone"
    progress.phase, progress.rows_copied, progress.records = "streaming", 1200, 3
    assert describe(progress) == "1,200 rows copied, 3 changes"
    progress.table_problems = {"public.a": "left out"}
    assert describe(progress) == "1,200 rows copied, 3 changes, problems with public.a"


def test_sizes_have_units() -> None:
    assert [size(it) for it in (None, 5, 2048, 3 * 2**20, 5 * 2**30)] == [
        "-",
        "5 bytes",
        "2.0 KB",
        "3.0 MB",
        "5.0 GB",
    ]
