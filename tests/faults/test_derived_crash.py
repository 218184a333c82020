"""Pipelines on Spark into DuckDB, a search index, Redis and Delta, killed at named points.

As `test_exactly_once_crash.py` does for topics, SQLite and PostgreSQL. These stores keep one row of
each key: a repeated batch would show as an old value, or as a row of Delta that is there twice.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from millstream.connect.sinks.duckdb import connect
from tests.faults.kill_points import TABLE_POINTS
from tests.faults.test_exactly_once_crash import Rig
from tests.peers.redis import RedisServer
from tests.peers.servers import Server

COLUMNS = {"sums": ("user", "total", "records"), "rows": ("id", "user", "amount")}
# After the store has decided: its decision is copied to the topic, and transactions are ended.
FAN_POINTS = ("merging", "stored", "decision sent", "decided", "half ended")
POINTS = {
    "duckdb": TABLE_POINTS,
    "search": TABLE_POINTS,
    "redis": TABLE_POINTS,
    "delta": TABLE_POINTS,
    "lakefan": FAN_POINTS,
}


class DerivedRig(Rig):
    """Reads the stores that the others do not know."""

    def _rows_of(self, pipeline: str, table: str) -> list[list[Any]]:
        scheme, _, path = self.settings.stores[pipeline].partition(":///")
        columns = COLUMNS[table.partition("_")[0]]
        statement = f"SELECT {', '.join(columns)} FROM {table}"
        match scheme:
            case "duckdb":
                with connect(Path(path)) as connection:
                    return [list(it) for it in connection.execute(statement).fetchall()]
            case "fts5":
                with closing(sqlite3.connect(path)) as index:
                    return [list(it) for it in index.execute(statement)]
            case "delta":
                from deltalake import DeltaTable

                rows = DeltaTable(f"{path}/{table}").to_pyarrow_table().to_pylist()
            case _:
                rows = documents(self.settings.stores[pipeline], table)
        return [[row[name] for name in columns] for row in rows]


def documents(url: str, table: str) -> list[Any]:
    client: Any = redis_client.Redis.from_url(url, decode_responses=True)
    with client:
        return [json.loads(client.get(key)) for key in client.keys(f"{table}:*")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_into_derived_stores_are_exact_when_killed_at_every_point(
    server: Server, redis: RedisServer, tmp_path: Path
) -> None:
    with redis_client.Redis.from_url(redis.url) as client:
        client.flushall()  # what other tests have left
    made = DerivedRig.make(server, tmp_path, list(POINTS))
    stores = {
        "duckdb": f"duckdb:///{tmp_path}/warehouse.db",
        "search": f"fts5:///{tmp_path}/search.db",
        "redis": redis.url,
        "delta": f"delta:///{tmp_path}/lake",
        "lakefan": f"delta:///{tmp_path}/lake-of-fan",
    }
    rig = replace(made, settings=replace(made.settings, stores=stores))
    with rig.load.going_on():
        for life in range(max(len(it) for it in POINTS.values())):
            here = {name: its[life % len(its)] for name, its in POINTS.items()}
            rig.run_to(here, tasks=(None, 1, 5)[life % 3])
    rig.run_to_the_end()
    rig.check()
    rig.forget_last_commits()
    rig.load.send(100)
    rig.run_to_the_end(tasks=3)
    rig.check()
