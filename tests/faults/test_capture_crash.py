"""A capture, its database and its broker, killed at random under writers."""

from __future__ import annotations

import json
import random
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.client.fetching import log_end_offset
from millstream.connect.capture.capture import Capture
from tests.connect.capture.harness import (
    TABLE,
    Setup,
    Writer,
    check_versions,
    end,
    final_rows,
    wait_until,
)
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres

TABLES = ["orders", "items"]
CHANGES = {"chunk_rows": 60, "slice_bytes": 30_000, "heartbeat_seconds": 0.3}
MOVES = ("kill", "away", "twin", "snapshot", "away", "broker", "kill", "database", "copy", "column")
AWAY = ("renamed", "moved", "unpublished", "unlisted")
ROWS = 400
AWAY_KEY = 1_000_000  # of the first row that changes only while its table is away


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    try:
        server = start_postgres("fsync=off", "wal_level=logical", "max_prepared_transactions=5")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


class Scene:
    """The processes, and what is done to them."""

    def __init__(self, database: PostgresServer, broker: Broker, seed: int) -> None:
        self.database, self.broker = database, broker
        self.rng = random.Random(seed)
        name = f"crash{uuid.uuid4().hex[:6]}"
        self.setup = Setup(database.new_database(), broker.bootstrap_servers, name)
        self.process: subprocess.Popen[bytes] | None = None
        self.writers: list[Writer] = []
        self.versions: dict[tuple[str, int], int] = {}  # also of rows that are deleted now
        self.copied = 0
        self.columns = 0
        self.away_key = AWAY_KEY

    def start_writers(self) -> None:
        self.writers = [
            Writer(
                self.setup.url,
                TABLES,
                range(number, ROWS, 2),
                seed=self.rng.randrange(1000),
                versions=dict(self.versions),
            )
            for number in range(2)
        ]
        for writer in self.writers:
            writer.start()

    def stop_writers(self) -> None:
        for number, writer in enumerate(self.writers):
            writer.stop()
            self.versions |= {it: v for it, v in writer.versions.items() if it[1] % 2 == number}
        self.writers = []

    def start_capture(self, **changes: Any) -> None:
        if self.is_dead():
            self.process = self.setup.spawn(**CHANGES | changes)

    def kill(self) -> None:
        """At some moment of the capture's work."""
        written = self.written()
        wait_until(lambda: self.written() > written + self.rng.randrange(3) or self.is_dead())
        self.end_capture()

    def end_capture(self) -> None:
        if self.process is not None:
            end(self.process)

    def is_dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def written(self) -> int:
        """The end of a topic that is being written."""
        with Cluster(self.setup.bootstrap) as cluster:
            return log_end_offset(cluster, f"{self.setup.name}.public.orders", 0)

    def twin(self) -> None:
        """Two processes: the one that becomes the writer last goes on, the other one ends."""
        first, second = self.process, self.setup.spawn(**CHANGES)
        assert first is not None
        wait_until(lambda: first.poll() is not None or second.poll() is not None)
        self.process = second if first.poll() is not None else first

    def snapshot(self) -> None:
        table = self.rng.choice(TABLES)
        content = json.dumps({"resnapshot": [f"public.{table}"]})
        prefix = f"millstream.capture.{self.setup.name}"
        self.setup.execute("SELECT pg_logical_emit_message(true, %s, %s)", prefix, content)

    def broker_restart(self) -> None:
        self.broker.kill()
        self.broker.restart()

    def database_restart(self) -> None:
        self.stop_writers()
        self.rng.choice([self.database.stop, self.database.crash])()
        self.database.start()
        self.setup.connect()
        self.start_writers()

    def copy(self) -> None:
        """Rows of one transaction that share LSNs, larger than a slice."""
        first = ROWS + 2000 * self.copied
        self.copied += 1
        with self.setup.sql.cursor().copy("COPY orders (id, version) FROM STDIN") as copy:
            for key in range(first, first + 2000):
                copy.write_row((key, 0))

    def column(self) -> None:
        self.columns += 1
        table = self.rng.choice(TABLES)
        self.setup.execute(f"ALTER TABLE {table} ADD COLUMN c{self.columns} int")

    def away(self) -> None:
        """A table leaves the capture, changes, and returns; the capture may die before or after."""
        way, table = self.rng.choice(AWAY), self.rng.choice(TABLES)
        publication = f"millstream_{self.setup.name}"
        query = "SELECT 1 FROM pg_publication WHERE pubname = %s"
        wait_until(lambda: self.setup.execute(query, publication).fetchall())
        self.stop_writers()
        if way == "unlisted":
            self.end_capture()
            self.start_capture(tables=["public.*", f"!public.{table}"])
        self.maybe_kill()
        if way == "renamed":
            self.setup.execute(f"ALTER TABLE {table} RENAME TO away")
            self.change("away")
            self.setup.execute(f"ALTER TABLE away RENAME TO {table}")
        elif way == "moved":
            self.setup.execute(f"ALTER TABLE {table} SET SCHEMA away")
            self.change(f"away.{table}")
            self.setup.execute(f"ALTER TABLE away.{table} SET SCHEMA public")
        elif way == "unpublished":
            with self.setup.sql.transaction():  # or the capture would publish it itself
                self.setup.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table}")
                self.change(table)
                self.setup.execute(f"ALTER PUBLICATION {publication} ADD TABLE {table}")
        else:
            self.change(table)
        self.maybe_kill()
        if way == "unlisted":
            self.end_capture()
        self.start_writers()

    def maybe_kill(self) -> None:
        if self.rng.random() < 0.4:
            self.end_capture()

    def change(self, table: str) -> None:
        """Rows that change only while the table is away: not each version of them is captured."""
        first, self.away_key = self.away_key, self.away_key + 10
        own = f"id >= {AWAY_KEY}"
        self.setup.execute(f"UPDATE {table} SET version = version + 1 WHERE {own} AND id % 2 = 0")
        self.setup.execute(f"DELETE FROM {table} WHERE {own} AND id % 3 = 0")
        rows = f"SELECT g, 0 FROM generate_series({first}, {first + 9}) g"
        self.setup.execute(f"INSERT INTO {table} (id, version) {rows}")

    def move(self, name: str) -> None:
        methods = {"broker": self.broker_restart, "database": self.database_restart}
        (methods[name] if name in methods else getattr(self, name))()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_crashes_lose_and_double_nothing(
    database: PostgresServer, tmp_path: Path, seed: int
) -> None:
    with Broker.start(tmp_path, in_process=False) as broker:
        scene = Scene(database, broker, seed)
        setup = scene.setup
        for table in TABLES:
            setup.execute(TABLE.format(table))
            setup.execute(f"INSERT INTO {table} SELECT g, 0, '' FROM generate_series(0, 299) g")
        setup.execute("CREATE SCHEMA away")
        scene.start_writers()
        try:
            moves = list(MOVES) if seed == 1 else scene.rng.choices(MOVES, k=12)
            for name in moves:
                scene.start_capture()
                scene.move(name)
            scene.stop_writers()
        finally:
            if scene.process is not None:
                end(scene.process)
        with setup.running(**CHANGES) as capture:
            setup.caught_up(capture)
            wait_until(lambda: all_copied(capture), "copying what was away", capture=capture)
            setup.caught_up(capture)
        check(setup)


def all_copied(capture: Capture) -> bool:
    state = capture.progress.state
    return state is not None and all(state.tables[f"public.{it}"].is_done for it in TABLES)


def check(setup: Setup) -> None:
    """As `Setup.check`; columns that were added without a change of the row are not streamed."""
    for table in TABLES:
        changes = setup.read(table)
        check_versions([it for it in changes if it.key is None or it.key["id"] < AWAY_KEY])
        ours = {key: row["version"] for key, row in final_rows(changes).items()}
        assert ours == {key: row["version"] for key, row in setup.rows(table).items()}
    with psycopg.connect(setup.url, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (setup.slot,))
