"""A runner in a process of its own that ends by SIGKILL before its n-th step.

    python -m tests.connect.sinks.crashing CONFIG.json N

Steps are the calls that reach the broker or the target: fetches, writes of a sink, statements and
commits of the databases, requests by HTTP. It exits with 0 if it is done before.

Changes of files are no steps here: libraries make them without Python. `killing.c` counts them.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import psycopg
import redis

from millstream.connect.sinks import SinkRunner, parse_config, runner
from millstream.connect.sinks.http import JsonServer
from millstream.connect.sinks.opening import open_sink

_steps = 0


def counting(call: Callable[..., Any], fatal: int) -> Callable[..., Any]:
    """Ends the process before or after the call, when the count is reached."""

    def step() -> None:
        global _steps
        _steps += 1
        if _steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*arguments: Any, **options: Any) -> Any:
        step()
        result = call(*arguments, **options)
        step()
        return result

    return counted


class CountingDuckdb:
    """A connection of DuckDB, whose class cannot be extended."""

    fatal = 0

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.execute = counting(connection.execute, self.fatal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def main(path: str, fatal: int) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        config = parse_config(json.load(file))

    class CountingConnection(sqlite3.Connection):
        execute = counting(sqlite3.Connection.execute, fatal)
        executemany = counting(sqlite3.Connection.executemany, fatal)

    connect = sqlite3.connect
    sqlite3.connect = lambda *arguments, **options: connect(  # type: ignore[assignment]
        *arguments, factory=CountingConnection, **options
    )
    psycopg.Connection.execute = counting(psycopg.Connection.execute, fatal)  # type: ignore[method-assign]
    psycopg.Transaction.__exit__ = counting(psycopg.Transaction.__exit__, fatal)  # type: ignore[method-assign]
    redis.Redis.execute_command = counting(redis.Redis.execute_command, fatal)  # type: ignore[method-assign]
    CountingDuckdb.fatal, connect_duckdb = fatal, duckdb.connect
    duckdb.connect = lambda path: CountingDuckdb(connect_duckdb(path))  # type: ignore[assignment]
    JsonServer.ask = counting(JsonServer.ask, fatal)  # type: ignore[method-assign]
    runner.fetch = counting(runner.fetch, fatal)
    kind = type(open_sink(config))
    kind.apply = counting(kind.apply, fatal)  # type: ignore[method-assign]
    SinkRunner(config).run(once=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
