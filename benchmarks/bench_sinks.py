"""Rows per CPU second of `millstream connect`, beside a consumer as one would write it by hand.

A topic of change records in Debezium's envelope, of eight columns, half of them updates, is applied
to each kind of target. By hand: `Consumer.consume`, `json.loads`, and one transaction for each
batch with the driver's plainest upsert, and with the offset, so that it is exactly once too. It
handles neither bad records, truncation, recreated topics nor a second process. The CPU time is that
of the client; servers are left out.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.peers.cache import PeerMissing
from tests.peers.postgres import start_postgres
from tests.peers.redis import running_redis

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target
from millstream.connect.sinks import SinkRunner, parse_config

RECORDS = 200_000
BATCH = 10_000
HAND = "by hand"
NAMES = ("id", "n", "name", "text", "price", "at", "ok", "ratio")
COLUMNS = (
    "id long, n int, name string, text string, price decimal(12,2), at timestamp, ok boolean, "
    "ratio double"
)
_SET = ", ".join(f'"{name}" = excluded."{name}"' for name in NAMES[1:])
_LISTED = ", ".join(f'"{name}"' for name in NAMES)
Apply = Callable[[dict[int, Any], int], None]  # the last row of each key, and the offset


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    broker = next(it for it in targets if it.name == "millstream")
    count = scale.of(RECORDS)
    fill(broker.bootstrap, count)
    directory = Path(tempfile.mkdtemp(prefix="millstream-sinks-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        kinds: dict[str, tuple[str, dict[str, Any], Callable[[], Apply]]] = {
            "SQLite": (
                f"sqlite:///{directory}/a.db",
                {"columns": COLUMNS},
                lambda: tables(directory),
            ),
            "search index": (
                f"fts5:///{directory}/b.db",
                {"fields": ["name", "text"]},
                lambda: index(directory),
            ),
            "DuckDB": (
                f"duckdb:///{directory}/c.db",
                {"columns": COLUMNS},
                lambda: duck(directory),
            ),
        }
        try:
            postgres = start_postgres()
            stack.callback(postgres.remove)
            kinds["PostgreSQL"] = (postgres.url, {"columns": COLUMNS}, lambda: server(postgres.url))
            redis = running_redis()
            url = next(redis).url
            stack.callback(redis.close)
            kinds["Redis"] = (url, {}, lambda: cache(url))
        except PeerMissing as missing:
            print(f"left out: {missing}")
        for name, (to, options, hand) in kinds.items():
            measurement = Measurement(f"connect to {name}", "rows per CPU second", peer=HAND)
            for number in range(scale.rounds):
                topic = {"table": f"ours{number}", "key": "id", **options}
                given = {"name": f"bench{number}", "broker": broker.bootstrap, "to": to}
                config = parse_config({**given, "topics": {"changes": topic}})
                ours = cpu_seconds(lambda: SinkRunner(config).run(once=True))  # noqa: B023
                apply = hand()
                theirs = cpu_seconds(lambda: consume(broker.bootstrap, count, apply))  # noqa: B023
                measurement.add("millstream", count / ours)
                measurement.add(HAND, count / theirs)
            yield measurement


def cpu_seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def fill(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(count):
        id = number if number % 2 else number // 4 * 2
        row = {
            "id": id,
            "n": number % 1000,
            "name": f"customer {id % 5000}",
            "text": f"a remark of some length, the {number}th of its kind",
            "price": f"{number % 10_000}.50",
            "at": "2026-03-03T00:00:00.000000Z",
            "ok": number % 3 == 0,
            "ratio": number / 7,
        }
        source = {
            "version": "1",
            "connector": "postgresql",
            "name": "shop",
            "lsn": 140_000 + number,
        }
        value = {"before": None, "after": row, "source": source, "op": "u", "ts_ms": 1_794_790_742}
        key = json.dumps({"id": id}).encode()
        producer.produce("changes", json.dumps(value).encode(), key)
        if number % 10_000 == 0:
            producer.poll(0)
            producer.flush()
    producer.flush()


def consume(bootstrap: str, count: int, apply: Apply) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "hand", "log_level": 0})
    consumer.assign([TopicPartition("changes", 0, 0)])
    reached = 0
    while reached < count:
        rows: dict[int, Any] = {}
        for message in consumer.consume(BATCH, timeout=1.0):
            row = json.loads(message.value())["after"]
            rows[row["id"]] = row
            reached = message.offset() + 1
        if rows:
            apply(rows, reached)
    consumer.close()


def _values(rows: dict[int, Any]) -> list[tuple[Any, ...]]:
    return [tuple([row[name] for name in NAMES]) for row in rows.values()]


def tables(directory: Path) -> Apply:
    (directory / "hand-a.db").unlink(missing_ok=True)
    connection = sqlite3.connect(directory / "hand-a.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"CREATE TABLE t ({_LISTED}, PRIMARY KEY (id))")
    connection.execute("CREATE TABLE progress (name PRIMARY KEY, position)")

    def apply(rows: dict[int, Any], position: int) -> None:
        with connection:
            places = ", ".join("?" * len(NAMES))
            statement = f"INSERT INTO t VALUES ({places}) ON CONFLICT (id) DO UPDATE SET {_SET}"
            connection.executemany(statement, _values(rows))
            connection.execute("REPLACE INTO progress VALUES ('hand', ?)", (position,))

    return apply


def index(directory: Path) -> Apply:
    (directory / "hand-b.db").unlink(missing_ok=True)
    connection = sqlite3.connect(directory / "hand-b.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(name, text)")
    connection.execute("CREATE TABLE progress (name PRIMARY KEY, position)")

    def apply(rows: dict[int, Any], position: int) -> None:
        with connection:
            connection.executemany(
                "INSERT OR REPLACE INTO t (rowid, name, text) VALUES (?, ?, ?)",
                [(id, row["name"], row["text"]) for id, row in rows.items()],
            )
            connection.execute("REPLACE INTO progress VALUES ('hand', ?)", (position,))

    return apply


def duck(directory: Path) -> Apply:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(tempfile.mktemp(dir=directory))
    connection.execute(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n INT, name VARCHAR, text VARCHAR, "
        'price DECIMAL(12,2), "at" TIMESTAMPTZ, ok BOOLEAN, ratio DOUBLE)'
    )
    connection.execute("CREATE TABLE progress (name VARCHAR PRIMARY KEY, position BIGINT)")

    def apply(rows: dict[int, Any], position: int) -> None:
        incoming = pa.Table.from_pylist(list(rows.values()))
        connection.execute("BEGIN")
        connection.register("incoming", incoming)
        connection.execute(f"INSERT OR REPLACE INTO t SELECT {_LISTED} FROM incoming")
        connection.execute("INSERT OR REPLACE INTO progress VALUES ('hand', ?)", [position])
        connection.execute("COMMIT")
        connection.unregister("incoming")

    return apply


def server(url: str) -> Apply:
    import psycopg

    connection = psycopg.connect(url)
    connection.execute(
        "DROP TABLE IF EXISTS t, progress; CREATE TABLE t (id bigint PRIMARY KEY, n int, "
        'name text, text text, price numeric(12,2), "at" timestamptz, ok boolean, ratio float8); '
        "CREATE TABLE progress (name text PRIMARY KEY, position bigint)"
    )
    connection.commit()

    def apply(rows: dict[int, Any], position: int) -> None:
        places = ", ".join(["%s"] * len(NAMES))
        statement = f"INSERT INTO t VALUES ({places}) ON CONFLICT (id) DO UPDATE SET {_SET}"
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(statement, _values(rows))  # type: ignore[arg-type]
            cursor.execute(
                "INSERT INTO progress VALUES ('hand', %s) "
                "ON CONFLICT (name) DO UPDATE SET position = excluded.position",
                (position,),
            )

    return apply


def cache(url: str) -> Apply:
    import redis

    client = redis.Redis.from_url(url)

    def apply(rows: dict[int, Any], position: int) -> None:
        pipeline = client.pipeline(transaction=True)
        for id, row in rows.items():
            pipeline.set(f"hand:{id}", json.dumps(row))
        pipeline.set("hand-position", position)
        pipeline.execute()

    return apply
