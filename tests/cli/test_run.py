"""`millstream run`: its plan, its refusals, and a whole run with a broker of its own."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.cli.run import StatusLines, status_line, status_table
from millstream.pipelines.running.status import Status
from tests.cli.conftest import Run
from tests.peers.servers import free_port

SHOP = """
from millstream.pipelines import pipeline, table, topic

orders = topic("orders", schema="id long, amount double")

@pipeline(reads=orders, writes=table("sales", key="id"), version=2)
def sales(orders):
    return orders

@pipeline(reads=orders, writes=topic("large", key="id"), group="watchers")
def large(orders):
    return orders.where("amount > 10")
"""
PATIENCE_S = 480


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return path


def test_dry_run_shows_what_would_run_and_starts_nothing(run: Run, shop: Path) -> None:
    outcome = run("run", "shop.py", "--dry-run", "--store", "postgresql://db/shop")
    assert outcome.exit_code == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    for expected in (
        "broker embedded, data in .millstream/broker",
        "store postgresql://db/shop",
        "checkpoints .millstream/checkpoints",
        "sales",
        "reads topic orders (json), from earliest",
        "bad records to topic dlq.orders",
        "writes table sales (upsert by id)",
        "version 2",
        "large",
        "writes topic large by id",
        "group watchers",
    ):
        assert expected in lines
    assert not (shop.parent / ".millstream").exists()


def test_dry_run_of_one_pipeline_shows_only_that(run: Run, shop: Path) -> None:
    outcome = run("run", "shop.py:large", "--dry-run", "-b", "host:1")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "writes topic large by id" in lines
    assert "broker host:1" in lines
    assert "table sales" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["missing.py"], 1, "missing.py: there is no such file"),
        (["shop.py:saels"], 1, "has no pipeline saels; did you mean sales?"),
        (["shop.py:sales", "shop.py"], 2, "sales is there twice"),
        (["shop.py", "--onec"], 2, "No such option: --onec"),
    ],
)
def test_wrong_command_line_is_refused_in_one_line(
    run: Run, shop: Path, arguments: list[str], exit_code: int, words: str
) -> None:
    outcome = run("run", *arguments)
    assert outcome.exit_code == exit_code
    assert words in outcome.err


def test_broker_that_does_not_answer_has_its_own_exit_code(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.running.topics.CONNECT_SECONDS", 0.1)
    outcome = run("run", "shop.py", "-b", f"127.0.0.1:{free_port()}")
    assert outcome.exit_code == 3
    assert "no broker answers at 127.0.0.1" in outcome.err


def test_missing_java_is_named_before_anything_starts(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    outcome = run("run", "shop.py")
    assert outcome.exit_code == 1
    assert "apt install openjdk-17-jre-headless" in outcome.err
    assert not (shop.parent / ".millstream").exists()


def test_lines_are_printed_only_when_they_say_something_new(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, status = StatusLines(), Status("sales", "working", batches=2, rows=1500, lag=3, failed=1)
    lines.print([status])
    lines.print([status])
    assert capsys.readouterr().out == status_line(status) + "\n"
    assert status_line(status) == ("sales: working, 1,500 rows in 2 batches, lag 3, bad records 1")
    assert status_table([status]).row_count == 1


@pytest.fixture
def running(shop: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {it: value for it, value in os.environ.items() if "MILLSTREAM" not in it}
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream.cli.entry", "run", "shop.py", "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=shop.parent,
    )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def sales_in(store: Path) -> int:
    if not store.exists():
        return 0
    try:
        with sqlite3.connect(store) as connection:
            return int(connection.execute("select count(*) from sales").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # there is no table yet


@pytest.mark.timeout(2 * PATIENCE_S)
def test_run_with_a_broker_of_its_own_until_interrupted(
    running: subprocess.Popen[str], shop: Path
) -> None:
    assert running.stderr is not None
    first_line = running.stderr.readline()
    address = re.search(r"broker (\S+:\d+), embedded", first_line)
    assert address is not None, first_line + running.stderr.read()
    producer = Producer({"bootstrap.servers": address[1]})
    for number in range(20):
        producer.produce("orders", f'{{"id": {number}, "amount": {number}}}')
    assert producer.flush(60) == 0
    deadline = time.monotonic() + PATIENCE_S
    while sales_in(shop.parent / ".millstream" / "store.db") < 20:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, err
    assert re.search(r"sales: stopped, 20 rows in \d+ batches, lag 0, bad records 0\n", out)


@pytest.fixture
def late_python(tmp_path: Path) -> Path:
    """A Python that takes longer to start than Spark waits, the first time it reads a stream."""
    path = tmp_path / "late-python"
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in *python_streaming_source_runner*)\n'
        f"  if mkdir {tmp_path}/was-late 2>/dev/null; then sleep 11; fi;;\n"
        "esac\n"
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_run_starts_again_what_a_busy_machine_kept_from_starting(
    shop: Path, late_python: Path
) -> None:
    environment = {it: value for it, value in os.environ.items() if "MILLSTREAM" not in it}
    done = subprocess.run(
        [sys.executable, "-m", "millstream.cli.entry", "run", "shop.py:sales", "--once"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment | {"PYSPARK_PYTHON": str(late_python)},
        cwd=shop.parent,
    )
    assert done.returncode == 0, done.stderr
    assert (shop.parent / "was-late").exists()
    assert "sales: done, 0 rows" in done.stdout
