"""A database, a broker and a capture between them; writers, readers, and what must hold.

The tables of the tests have a column `version`. Each change of a key raises it by one, a delete
too, whether it comes from one writer or another. So the records of a topic can be checked one by
one: each change once, in order, none missing; rows of snapshots repeat the last version.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream.connect.capture.capture import Capture
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.transactional import wait_for_markers

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, version int NOT NULL, note text)"
ROOT = Path(__file__).resolve().parents[3]


class Change(NamedTuple):
    """A record of a topic, read with read_committed."""

    offset: int
    key: Any
    value: dict[str, Any] | None

    @property
    def op(self) -> str:
        return "tombstone" if self.value is None else str(self.value["op"])

    @property
    def snapshot(self) -> str:
        return "" if self.value is None else str(self.value["source"]["snapshot"])


def wait_until(
    condition: Callable[[], object], what: str = "it", capture: Capture | None = None
) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        assert capture is None or capture.is_alive(), "the capture has ended"  # type: ignore[attr-defined]
        time.sleep(0.01)


def read_topic(bootstrap: str, topic: str, partition: int = 0) -> list[Change]:
    """All committed records of a partition; none if there is no topic."""
    wait_for_markers(bootstrap)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[Change] = []
    try:
        if topic not in consumer.list_topics(timeout=PATIENCE_SECONDS).topics:
            return found
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            key, value = message.key(), message.value()
            found.append(
                Change(
                    message.offset(),
                    None if key is None else json.loads(key),
                    None if value is None else json.loads(value),
                )
            )
    finally:
        consumer.close()


def final_rows(changes: list[Change]) -> dict[Any, dict[str, Any]]:
    """The table that a reader of the topic has in the end, by key."""
    rows: dict[Any, dict[str, Any]] = {}
    for change in changes:
        key = json.dumps(change.key)
        if change.op == "t":
            rows.clear()
        elif change.op in ("d", "tombstone"):
            rows.pop(key, None)
        elif change.value is not None:
            rows[key] = change.value["after"]
    return rows


def check_versions(changes: list[Change]) -> None:
    """Each change once, in order, none missing."""
    last: dict[Any, int] = {}
    deleted: set[Any] = set()
    for change in changes:
        if change.op in ("tombstone", "m"):
            continue
        if change.op == "t":
            deleted.clear()
            last.clear()
            continue
        assert change.value is not None
        key = change.key["id"]
        if change.op == "d":
            last[key] = last.get(key, -1) + 1 if key in last else -1
            deleted.add(key)
            if last[key] == -1:
                del last[key]
            continue
        version = change.value["after"]["version"]
        if change.op == "r":
            assert key not in deleted, f"{change} after its delete"
            assert last.get(key, version) == version, f"{change} after version {last[key]}"
        elif key in last:
            assert version == last[key] + 1, f"{change} after version {last[key]}"
        last[key] = version
        deleted.discard(key)


@dataclass
class Writer:
    """A client of the database: random transactions on its own keys, of one or several tables."""

    url: str
    tables: list[str]
    keys: range
    seed: int
    transactions: int = 0
    versions: dict[tuple[str, int], int] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        assert self._thread is not None
        self._thread.join(PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        rng = random.Random(self.seed)
        try:
            with psycopg.connect(self.url) as connection:
                there = set()
                for table in self.tables:
                    rows = connection.execute(f"SELECT id, version FROM {table}").fetchall()  # type: ignore[arg-type]
                    found = {(table, key): version for key, version in rows if key in self.keys}
                    self.versions |= found
                    there |= set(found)
                connection.commit()
                while not self._stopping.is_set():
                    self._transaction(connection, rng, there)
        except BaseException as error:  # noqa: BLE001 - it is raised in `stop`
            self._error = error

    def _transaction(self, connection: Any, rng: random.Random, there: set[Any]) -> None:
        for _ in range(rng.choice([1, 1, 1, 2, 5, 30])):
            table, key = rng.choice(self.tables), rng.choice(self.keys)
            place = (table, key)
            version = self.versions[place] = self.versions.get(place, -1) + 1
            note = "x" * rng.choice([0, 3, 40])
            if place not in there:
                connection.execute(
                    f"INSERT INTO {table} (id, version, note) VALUES (%s, %s, %s)",
                    (key, version, note),
                )
                there.add(place)
            elif rng.random() < 0.2:
                connection.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
                there.remove(place)
            else:
                connection.execute(
                    f"UPDATE {table} SET version = %s, note = %s WHERE id = %s",
                    (version, note, key),
                )
        connection.commit()
        self.transactions += 1


class Setup:
    """A new database and the settings of its capture."""

    def __init__(self, url: str, bootstrap: str, name: str) -> None:
        self.url, self.bootstrap, self.name = url, bootstrap, name
        self.connect()
        self.settings: dict[str, Any] = {
            "name": name,
            "database": url,
            "tables": ["public.*"],
            "broker": bootstrap,
            "heartbeat_seconds": 0.5,
        }

    def connect(self) -> None:
        self.sql = psycopg.connect(self.url, autocommit=True)

    def close(self) -> None:
        """A slot that nobody reads would keep the server's log."""
        self.execute(
            "SELECT pg_terminate_backend(active_pid, %s) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active",
            int(PATIENCE_SECONDS * 1000),
            self.slot,
        )
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            self.slot,
        )
        self.sql.close()

    def execute(self, statement: str, *parameters: Any) -> Any:
        return self.sql.execute(statement, parameters or None)  # type: ignore[arg-type]

    def wait_until_slot_is_free(self) -> None:
        """The server may take a moment to notice that the capture is gone."""
        free = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: self.sql.execute(free, (self.slot,)).fetchone() == (True,))

    def drop_slot(self) -> None:
        self.wait_until_slot_is_free()
        self.execute("SELECT pg_drop_replication_slot(%s)", self.slot)

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        cursor = self.execute(f"SELECT * FROM {table}")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {json.dumps({"id": row["id"]}): row for row in rows}

    def read(self, table: str) -> list[Change]:
        return read_topic(self.bootstrap, f"{self.name}.public.{table}")

    @property
    def slot(self) -> str:
        return f"millstream_{self.name}".replace("-", "_")

    @contextlib.contextmanager
    def running(self, **changes: Any) -> Iterator[Capture]:
        """A capture in a thread, stopped at the end; its error is raised."""
        capture = Capture(**self.settings | changes)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                capture.run()
            except BaseException as error:  # noqa: BLE001 - it is raised below
                errors.append(error)
                capture.error = error  # type: ignore[attr-defined]

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        capture.is_alive = thread.is_alive  # type: ignore[attr-defined]
        try:
            yield capture
        finally:
            capture.stop()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            if errors:
                raise errors[0]

    def failure(self, **changes: Any) -> str:
        """The message with which a capture ends by itself."""
        capture = Capture(**self.settings | changes)
        timer = threading.Timer(PATIENCE_SECONDS, capture.stop)
        timer.start()
        try:
            capture.run()
        except Exception as error:  # noqa: BLE001 - any is wanted
            return str(error)
        finally:
            timer.cancel()
        raise AssertionError("the capture did not fail")

    def caught_up(self, capture: Capture) -> None:
        """Wait until everything that is committed now is in the topics."""
        (text,) = self.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        high, low = text.split("/")
        lsn = int(high, 16) << 32 | int(low, 16)
        self.execute("SELECT pg_logical_emit_message(true, 'mark', '')")
        alive: Callable[[], bool] = capture.is_alive  # type: ignore[attr-defined]

        def is_done() -> bool:
            state = capture.progress.state
            is_copied = state is not None and not state.unfinished
            return not alive() or (capture.progress.lsn >= lsn and is_copied)

        wait_until(is_done, f"catching up to {text}")

    def spawn(self, *kills: str, **changes: Any) -> subprocess.Popen[bytes]:
        """A capture in a process; see driver.py for the places where it can be killed."""
        settings = json.dumps(self.settings | changes)
        command = [sys.executable, "-m", "tests.connect.capture.driver", settings, *kills]
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def check(self, *tables: str) -> None:
        """The topics contain every change once, and end as the tables are."""
        for table in tables:
            changes = self.read(table)
            check_versions(changes)
            assert final_rows(changes) == self.rows(table)


def end(process: subprocess.Popen[bytes]) -> None:
    """kill -9, if it still runs."""
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_SECONDS)
