"""What tests of sinks share: a broker, topics with changes, and one target of every kind."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
import redis as redis_client
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from millstream.connect.sinks import SinkConfig, parse_config
from millstream.connect.sinks.duckdb import connect
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.opensearch import OpenSearchServer
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, program, serve_postgres
from tests.peers.redis import RedisServer

COLUMNS = "id long, name string"
PARTITION_UA = -1  # librdkafka's name for any partition
# As the guide has it: the last change of each key since the last truncation.
TABLE_OF_CHANGES = """
    WITH changes AS (FROM read_parquet('{}/*/*.parquet', hive_partitioning = false))
    SELECT id, name FROM (
        FROM changes
        WHERE __offset > (SELECT coalesce(max(__offset), -1) FROM changes WHERE __op = 't')
        QUALIFY row_number() OVER (PARTITION BY id ORDER BY __offset DESC) = 1
    ) WHERE __op = 'u'
"""


class Log:
    """A topic of one test, and its producer."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.create(partitions)

    def create(self, partitions: int = 1, **settings: str) -> None:
        new = NewTopic(self.topic, partitions, 1, config=settings)
        self.admin.create_topics([new])[self.topic].result(60)

    def set(self, name: str, value: str) -> None:
        """A setting of the topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        resource.add_incremental_config(entry)
        self.admin.incremental_alter_configs([resource])[resource].result(60)

    def delete_before(self, offset: int) -> None:
        """Records of partition 0, as retention does it."""
        place = TopicPartition(self.topic, 0, offset)
        self.admin.delete_records([place])[place].result(60)

    def recreate(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(60)
        self.create()

    def send(self, *records: tuple[Any, Any], partition: int = PARTITION_UA) -> None:
        """Keys and values, as JSON; bytes as they are. By default to the partition of the key."""
        for key, value in records:
            self._producer.produce(self.topic, _encoded(value), _encoded(key), partition)
        self._producer.flush(60)

    def put(self, *rows: tuple[int, str]) -> None:
        """Envelopes that set rows."""
        self.send(*(set_row(id, name) for id, name in rows))


def _encoded(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def set_row(id: int, name: str) -> tuple[Any, Any]:
    return {"id": id}, {"op": "c", "before": None, "after": {"id": id, "name": name}}


def delete_row(id: int) -> tuple[Any, Any]:
    return {"id": id}, {"op": "d", "before": {"id": id, "name": None}, "after": None}


TRUNCATE: tuple[Any, Any] = (None, {"op": "t", "before": None, "after": None})


@pytest.fixture
def log(millstream: SharedBroker) -> Log:
    return Log(millstream.bootstrap_servers, millstream.unique_topic("shop.items"))


class Derived(ABC):
    """A target: how it is declared, what is in it, and what can happen to it."""

    to: str
    topic_options: dict[str, Any]

    def config(self, log: Log, **given: Any) -> SinkConfig:
        given = {"pause_seconds": 0, **given}
        topic = {"table": "items", "key": "id", **self.topic_options, **given.pop("topic", {})}
        base = {"name": "shop", "broker": log.bootstrap, "to": self.to}
        return parse_config({**base, **given, "topics": {log.topic: topic}})

    @abstractmethod
    def rows(self) -> dict[int, str]:
        """As another process sees them."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the target, but not the positions that are kept beside it."""

    def recreate(self) -> None:
        """Drop the target, and create it again as it was, without rows."""
        pytest.skip("is created by the sink only")

    def insert(self, id: int, name: str) -> None:
        """A row, without the sink."""
        raise NotImplementedError

    def back_up(self) -> None:
        pytest.skip("has no backup of its own")

    def restore(self) -> None:
        """Bring back the state at the backup."""
        raise NotImplementedError


class SqliteTables(Derived):
    def __init__(self, directory: Path) -> None:
        self.path = directory / "derived.db"
        self.to = f"sqlite:///{self.path}"
        self.topic_options = {"columns": COLUMNS}

    def query(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found
        finally:
            connection.close()

    def rows(self) -> dict[int, str]:
        return dict(self.query("SELECT id, name FROM items"))

    def drop(self) -> None:
        self.query("DROP TABLE items")

    def recreate(self) -> None:
        ((statement,),) = self.query("SELECT sql FROM sqlite_master WHERE name = 'items'")
        self.drop()
        self.query(statement)

    def insert(self, id: int, name: str) -> None:
        self.query(f"INSERT INTO items (id, name) VALUES ({id}, '{name}')")

    def back_up(self) -> None:
        here, there = (closing(sqlite3.connect(f"{self.path}{it}")) for it in ("", ".copy"))
        with here as source, there as copy:
            source.backup(copy)

    def restore(self) -> None:
        for file in self.path.parent.glob(f"{self.path.name}-*"):
            file.unlink()
        shutil.copy(f"{self.path}.copy", f"{self.path}.new")
        Path(f"{self.path}.new").rename(self.path)  # another file, as from a backup


class SearchIndex(SqliteTables):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.to = f"fts5:///{self.path}"
        self.topic_options = {"fields": ["name"], "stored": ["id"]}

    def rows(self) -> dict[int, str]:
        stored = dict(self.query("SELECT id, name FROM items"))
        for id, name in stored.items():  # the index agrees with what is stored
            matches = self.query(f"SELECT id FROM items WHERE items MATCH '\"{name}\"'")
            assert (id,) in matches
        return stored


class PostgresTables(Derived):
    def __init__(self, server: PostgresServer) -> None:
        self.to = server.new_database()
        self.topic_options = {"columns": COLUMNS}
        self._dump = b""

    def rows(self) -> dict[int, str]:
        with psycopg.connect(self.to) as connection:
            return dict(connection.execute("SELECT id, name FROM items").fetchall())

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.to) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[arg-type]

    def drop(self) -> None:
        self.run("DROP TABLE items")

    def recreate(self) -> None:
        self.drop()
        self.run("CREATE TABLE items (id bigint PRIMARY KEY, name text)")

    def insert(self, id: int, name: str) -> None:
        self.run(f"INSERT INTO items VALUES ({id}, '{name}')")

    def back_up(self, *options: str) -> None:
        dump = [program("pg_dump"), "--clean", "--if-exists", *options, self.to]
        self._dump = subprocess.run(dump, stdout=subprocess.PIPE, check=True).stdout

    def restore(self) -> None:
        load = [program("psql"), "--quiet", "--set=ON_ERROR_STOP=1", self.to]
        subprocess.run(load, input=self._dump, stdout=subprocess.DEVNULL, check=True)


class Warehouse(Derived):
    def __init__(self, directory: Path) -> None:
        self.path = directory / "warehouse.duckdb"
        self.to = f"duckdb:///{self.path}"
        self.topic_options = {"columns": COLUMNS}

    def query(self, statement: str) -> list[Any]:
        """Waits while the sink, or another process, has the file."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with connect(self.path) as connection:
                    return connection.execute(statement).fetchall()
            except (duckdb.IOException, duckdb.TransactionException):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def rows(self) -> dict[int, str]:
        return dict(self.query("SELECT id, name FROM items"))

    def drop(self) -> None:
        self.query("DROP TABLE items")

    def recreate(self) -> None:
        self.drop()
        self.query("CREATE TABLE items (id BIGINT, name VARCHAR)")

    def insert(self, id: int, name: str) -> None:
        self.query(f"INSERT INTO items VALUES ({id}, '{name}')")

    def back_up(self) -> None:
        shutil.copy(self.path, f"{self.path}.copy")

    def restore(self) -> None:
        Path(f"{self.path}.wal").unlink(missing_ok=True)
        shutil.copy(f"{self.path}.copy", self.path)

    @contextmanager
    def held_by_another_process(self) -> Iterator[Callable[[], None]]:
        code = (
            f"import duckdb; c = duckdb.connect({str(self.path)!r}); print(1, flush=True); input()"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload]
        try:
            process.stdout.readline()
            yield process.stdin.close
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class Cache(Derived):
    def __init__(self, server: RedisServer) -> None:
        self.to = f"{server.url}?rebuild=1"
        self.topic_options = {}
        self.client: Any = redis_client.Redis.from_url(server.url, decode_responses=True)
        self._copies = redis_client.Redis(port=server.port, db=5)
        self.client.flushall()

    def rows(self) -> dict[int, str]:
        found = [json.loads(self.client.get(key)) for key in self.client.keys("items:*")]
        return {row["id"]: row["name"] for row in found}

    def drop(self) -> None:
        self.client.flushdb()

    def back_up(self) -> None:
        for key in self.client.keys("*"):
            self.client.copy(key, key, destination_db=5)

    def restore(self) -> None:
        self.client.flushdb()
        for key in self._copies.keys("*"):
            self._copies.copy(key, key, destination_db=0)


class DeltaTables(Derived):
    def __init__(self, directory: Path) -> None:
        self.path = directory / "lake"
        self.to = f"delta:///{self.path}"
        self.topic_options = {"columns": COLUMNS}

    def rows(self) -> dict[int, str]:
        from deltalake import DeltaTable  # only the tests of this kind need it

        found = DeltaTable(str(self.path / "items")).to_pyarrow_table().to_pylist()
        assert len({it["id"] for it in found}) == len(found)
        return {it["id"]: it["name"] for it in found}

    def drop(self) -> None:
        shutil.rmtree(self.path / "items")

    def back_up(self) -> None:
        shutil.copytree(self.path, f"{self.path}.copy", symlinks=True)

    def restore(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(f"{self.path}.copy", self.path, symlinks=True)


class ParquetFiles(DeltaTables):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.to = f"parquet:///{self.path}"

    def rows(self) -> dict[int, str]:
        assert (self.path / "items").exists()
        return dict(duckdb.sql(TABLE_OF_CHANGES.format(f"{self.path}/items")).fetchall())

    def drop(self) -> None:
        home = (self.path / "items").resolve()
        (self.path / "items").unlink()
        shutil.rmtree(home)


class SearchServer(Derived):
    def __init__(self, server: OpenSearchServer) -> None:
        self.server, self.to = server, server.url
        self.topic_options = {}
        for name in self.ask("GET", "/items*"):
            self.ask("DELETE", f"/{name}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.server.ask(method, path, body)
        assert status < 300, answer
        return answer

    def hits(self, where: str = "items") -> list[Any]:
        self.ask("POST", f"/{where}/_refresh")
        found: list[Any] = self.ask("GET", f"/{where}/_search?size=10000&version=true")["hits"][
            "hits"
        ]
        return found

    def rows(self) -> dict[int, str]:
        found = [it["_source"] for it in self.hits()]
        return {row["id"]: row["name"] for row in found}

    def drop(self) -> None:
        for name in self.ask("GET", "/items"):
            self.ask("DELETE", f"/{name}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    yield from serve_postgres("fsync=off")


KINDS: Sequence[str] = (
    "sqlite",
    "fts5",
    "postgresql",
    "redis",
    "duckdb",
    "delta",
    "parquet",
    "opensearch",
)
SLOW_KINDS = ("opensearch",)


def marked(kind: str) -> Any:
    marks = [pytest.mark.slow, pytest.mark.java]
    return pytest.param(kind, marks=marks) if kind in SLOW_KINDS else kind


@pytest.fixture(params=[marked(it) for it in KINDS])
def derived(request: pytest.FixtureRequest, tmp_path: Path) -> Derived:
    return make_derived(request.param, request, tmp_path)


def make_derived(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Derived:
    match kind:
        case "sqlite":
            return SqliteTables(tmp_path)
        case "fts5":
            return SearchIndex(tmp_path)
        case "postgresql":
            return PostgresTables(request.getfixturevalue("postgres"))
        case "duckdb":
            return Warehouse(tmp_path)
        case "delta":
            return DeltaTables(tmp_path)
        case "parquet":
            return ParquetFiles(tmp_path)
        case "redis":
            return Cache(request.getfixturevalue("redis"))
        case "opensearch":
            return SearchServer(request.getfixturevalue("opensearch"))
    raise AssertionError(kind)


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.05)
