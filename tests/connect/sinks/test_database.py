"""From a database through a capture, a topic and a sink: in the end the target equals the database.

Random transactions change keys, delete, truncate, and leave large values unchanged, which
PostgreSQL does not send then. The sink is killed again and again meanwhile.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millstream.connect.capture.capture import Capture
from millstream.testing.pytest_plugin import SharedBroker
from tests.connect.capture.conftest import SETTINGS
from tests.connect.sinks.conftest import KINDS, Derived, Log, wait_for
from tests.connect.sinks.test_runner import run_once
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, serve_postgres
from tests.peers.schema_registry import SchemaRegistry, running_registry

KILLS = 3
TRANSACTIONS = 60
SLOW = [pytest.mark.slow, pytest.mark.java]
CHOSEN = [
    ("sqlite", "avro"),
    ("delta", "json"),
    *(
        pytest.param(it, "json", marks=SLOW)
        for it in KINDS
        # Parquet keeps changes: an unchanged value is not in the last one.
        if it not in ("delta", "parquet")
    ),
]


@pytest.fixture(scope="module")
def origin() -> Iterator[PostgresServer]:
    yield from serve_postgres(*SETTINGS)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as running:
        yield running


class Shop:
    """The database: a table with a large column, and random transactions on it."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE items (id int PRIMARY KEY, n int, name text)")
        self._connection.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
        self.unchanged = 0
        for id in range(0, 30, 2):
            self._run("INSERT INTO items VALUES (%s, 0, %s)", id, f"{id} " * 2000)

    def rows(self) -> dict[int, str]:
        return dict(self._connection.execute("SELECT id, name FROM items").fetchall())

    def transact(self) -> None:
        with self._connection.transaction():
            for _ in range(self._random.choice([1, 2, 8])):
                self._change()

    def _change(self) -> None:
        key, other = self._random.sample(range(30), 2)
        name = self._random.choice("abcdef") * self._random.choice([3, 4000])
        match self._random.choices("iunkdt", [30, 20, 30, 10, 9, 1])[0]:
            case "i":
                self._run("INSERT INTO items VALUES (%s, 0, %s) ON CONFLICT DO NOTHING", key, name)
            case "u":
                self._run("UPDATE items SET name = %s WHERE id = %s", name, key)
            case "n":
                large = "id %% 5 = %s AND length(name) > 3000"
                self.unchanged += self._run(f"UPDATE items SET n = n + 1 WHERE {large}", key % 5)
            case "k":
                self._run("DELETE FROM items WHERE id = %s", other)
                self._run("UPDATE items SET id = %s, name = %s WHERE id = %s", other, name, key)
            case "d":
                self._run("DELETE FROM items WHERE id = %s", key)
            case "t":
                self._run("TRUNCATE items")

    def _run(self, statement: str, *values: object) -> int:
        return self._connection.execute(statement, values).rowcount  # type: ignore[arg-type]

    def close(self) -> None:
        self._connection.close()


@pytest.mark.slow_with("delta")
@pytest.mark.parametrize(("derived", "encoding"), CHOSEN, indirect=["derived"])
@pytest.mark.timeout(600)
def test_target_equals_the_database(
    derived: Derived,
    encoding: str,
    origin: PostgresServer,
    registry: SchemaRegistry,
    millstream: SharedBroker,
    tmp_path: Path,
) -> None:
    url, name = origin.new_database(), millstream.unique_topic("shop")
    shop = Shop(url, seed=13)
    shop.transact()
    bootstrap = millstream.bootstrap_servers
    log = Log(bootstrap, f"{name}.public.items")
    encoded = {"format": encoding, "registry": registry.url} if encoding == "avro" else {}
    capture = Capture(name=name, database=url, tables=["public.items"], broker=bootstrap, **encoded)
    captured = threading.Thread(target=capture.run)
    captured.start()
    path = tmp_path / "config.json"
    topic = {"table": "items", "key": "id", **derived.topic_options}
    decoded = {"registry": registry.url} if encoding == "avro" else {}
    given = {"name": "shop", "broker": bootstrap, "to": derived.to, **decoded}
    path.write_text(json.dumps({**given, "topics": {log.topic: topic}}))
    command = [sys.executable, "-m", "tests.connect.sinks.crashing", str(path)]
    dice = random.Random(7)
    try:
        for _ in range(KILLS):
            sink = subprocess.Popen([*command, str(dice.randrange(2, 60))])
            for _ in range(TRANSACTIONS // KILLS):
                shop.transact()
            assert sink.wait(PATIENCE_SECONDS) in (0, -9)
        assert shop.unchanged > 10
        expected = shop.rows()
        config = derived.config(log, **decoded)
        wait_for(lambda: (run_once(config), derived.rows() == expected)[1])
    finally:
        capture.stop()
        captured.join(PATIENCE_SECONDS)
        shop.close()
