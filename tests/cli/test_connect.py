"""`millstream connect` as a process: to the end, until a signal, and with mistakes in its file."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.cli.connect import Lines, describe
from millstream.connect.sinks import Progress
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.patience import PATIENCE_SECONDS

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def write_file(directory: Path, millstream: SharedBroker, **changes: str) -> tuple[Path, str]:
    topic = millstream.unique_topic("orders")
    path = directory / "sink.toml"
    given = {
        "name": "shop",
        "broker": millstream.bootstrap_servers,
        "to": f"sqlite:///{directory}/shop.db",
        "format": "json",
        **changes,
    }
    lines = [f'{name} = "{value}"' for name, value in given.items()]
    lines += [f'[topics."{topic}"]', 'table = "orders"', 'key = "id"', 'columns = "id long"']
    path.write_text("\n".join(lines))
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers})
    for number in range(5):
        producer.produce(topic, json.dumps({"id": number}).encode(), str(number).encode())
    producer.flush(PATIENCE_SECONDS)
    return path, topic


def count(directory: Path) -> int:
    connection = sqlite3.connect(directory / "shop.db")
    try:
        return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
    finally:
        connection.close()


def test_once_applies_what_is_there_and_prints_a_summary(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    path, _ = write_file(tmp_path, millstream)
    done = subprocess.run(
        [MILLSTREAM, "connect", path, "--once", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["records"] == 5
    assert count(tmp_path) == 5
    subprocess.run([MILLSTREAM, "connect", path, "--rebuild"], check=True, capture_output=True)
    assert count(tmp_path) == 5


def test_shortened_topic_needs_permission(millstream: SharedBroker, tmp_path: Path) -> None:
    path, topic = write_file(tmp_path, millstream)
    place = TopicPartition(topic, 0, 2)
    admin = AdminClient({"bootstrap.servers": millstream.bootstrap_servers})
    admin.delete_records([place])[place].result(60)
    command = [MILLSTREAM, "connect", path, "--once"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "begins at offset 2" in done.stderr
    subprocess.run([*command, "--allow-partial"], check=True)
    assert count(tmp_path) == 3


def test_signal_ends_it_in_order(millstream: SharedBroker, tmp_path: Path) -> None:
    path, topic = write_file(tmp_path, millstream)
    process = subprocess.Popen([MILLSTREAM, "connect", path], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert f"shop: {topic} to sqlite:///" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "records applied" in errors


def test_mistake_in_the_file_is_one_line(millstream: SharedBroker, tmp_path: Path) -> None:
    path, _ = write_file(tmp_path, millstream, bad_record="fail")
    done = subprocess.run([MILLSTREAM, "connect", path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "unknown name 'bad_record'; did you mean 'bad_records'?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_progress_is_described() -> None:
    progress = Progress(records=1235, lag=5, bad=1, conflicts=2)
    assert describe(Progress(records=1, conflicts=1)) == (
        "1 record applied, lag 0, 1 conflict with another writer"
    )
    text = "1,234 records applied, lag 5, 1 bad, 2 conflicts with another writer"
    assert describe(progress) == text
    Lines("shop")(progress)  # too early for a line
