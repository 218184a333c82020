"""`millstream query` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.query import cell, parse_schemas, plain, progress_line
from millstream.query.scanning import Progress
from tests.cli.conftest import NUMBERS, Run
from tests.query.scene import Sent, produce

NOW_MS = round(time.time()) * 1000


@pytest.fixture(scope="module")
def orders(bootstrap_servers: str) -> str:
    name = f"query_orders_{next(NUMBERS)}"
    records = [
        Sent(b'{"id": %d, "who": "%s"}' % (n, b"alice" if n % 2 else b"bob"), timestamp_ms=NOW_MS)
        for n in range(50)
    ]
    produce(bootstrap_servers, name, records)
    return name


def test_query_prints_a_table(run: Run, bootstrap_servers: str, orders: str) -> None:
    outcome = run(
        "query",
        f"select who, count(*) as n from {orders} group by all order by who",
        "-b",
        bootstrap_servers,
    )
    assert outcome.exit_code == 0
    assert [line.split() for line in outcome.out.splitlines()[2:]] == [
        ["alice", "25"],
        ["bob", "25"],
    ]
    assert "2 rows; read 50 records" in outcome.err


def test_query_shows_only_the_first_rows(run: Run, bootstrap_servers: str, orders: str) -> None:
    outcome = run("query", f"select id from {orders}", "-n", "3", "-b", bootstrap_servers)
    assert len(outcome.out.splitlines()) == 5
    assert "the first 3 rows" in outcome.err


def test_query_prints_lines_of_json(run: Run, bootstrap_servers: str, orders: str) -> None:
    sql = f"select id, _timestamp, _headers, _key from {orders} where _offset in (3, 4)"
    outcome = run("query", sql, "--json", "-b", bootstrap_servers)
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [it["id"] for it in rows] == [3, 4]
    assert rows[0]["_headers"] == []
    assert datetime.fromisoformat(rows[0]["_timestamp"]).timestamp() * 1000 == NOW_MS


def test_query_writes_a_parquet_file(
    run: Run, bootstrap_servers: str, orders: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders.parquet"
    sql = f"select id from {orders}"
    outcome = run("query", sql, "-s", "id int", "-o", str(path), "-b", bootstrap_servers)
    assert "50 rows written" in outcome.err
    table = pq.read_table(path)
    assert table.num_rows == 50
    assert str(table.schema.field("id").type) == "int32"


def test_query_names_mistakes(run: Run, bootstrap_servers: str, orders: str) -> None:
    outcome = run("query", f"select nothing from {orders}", "-b", bootstrap_servers)
    assert outcome.exit_code == 1
    assert '"nothing" not found' in outcome.err
    assert outcome.out == ""


def test_query_is_cancelled_by_an_interrupt(bootstrap_servers: str, orders: str) -> None:
    sql = f"select count(*) from range(100000000000000), {orders}"
    command = [sys.executable, "-m", "millstream.cli.entry", "query", sql, "-b", bootstrap_servers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threads = Path(f"/proc/{process.pid}/task")
    deadline = time.monotonic() + 120
    names: set[str] = set()
    while "millstream-quer" not in names and time.monotonic() < deadline:
        names = {(it / "comm").read_text().strip() for it in threads.iterdir()}
        if len(list(threads.iterdir())) > 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130


def test_parse_schemas_takes_one_or_one_for_each_topic() -> None:
    assert parse_schemas([]) is None
    assert parse_schemas(["id int"]) == "id int"
    assert parse_schemas(["a=id int", "b=n.avsc"]) == {"a": "id int", "b": "n.avsc"}
    with pytest.raises(CommandFailed, match="several topics"):
        parse_schemas(["id int", "b=id int"])


def test_cells_are_bounded_text() -> None:
    assert cell(5) == 5
    assert cell(None) is None
    assert cell("x" * 500) == "x" * 199 + "…"
    assert cell([{"a": b"\xff"}]) == '[{"a": "\\\\xff"}]'
    assert plain(b"a\xff") == "a\\xff"


def test_progress_has_rate_and_remaining_time() -> None:
    progress = Progress()
    progress.expect(1000)
    assert progress_line(progress).startswith("0% of 1,000 records")
    progress.add(500, 10, 500)
    assert "50% of 1,000 records" in progress_line(progress)
    assert "left" in progress_line(progress)
