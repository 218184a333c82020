"""A process that writes numbered batches into a store, or is killed while it does.

    python -m tests.pipelines.stores.writer URL

reads lines `LAST_BATCH [KILL_AT]` and prints `pid N`, `batch N` when that is written, `end STATUS`.
As Spark after a crash it begins with the last batch that the store has. A batch is a function of
its number: it sets the counts of ten keys, deletes one, and adds a row to a log. With KILL_AT the
process kills itself at that call into the database: one before and one after each statement.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pandas  # noqa: F401  pyarrow would import it in every child
import psycopg
import pyarrow as pa

from millstream.connect.tables import postgres_rows
from millstream.pipelines.stores import TableSpec, open_store, sqlite

QUERY = "crash"
KEYS = 10
COUNTS = TableSpec("counts", ("key",), delete="gone")
LOG = TableSpec("log", mode="append")


def outputs_of(batch_id: int) -> list[tuple[pa.Table, TableSpec]]:
    counts = pa.table(
        {
            "key": list(range(KEYS)),
            "count": [batch_id * key for key in range(KEYS)],
            "gone": [key == batch_id % KEYS for key in range(KEYS)],
        }
    )
    return [(counts, COUNTS), (pa.table({"batch": [batch_id]}), LOG)]


def expected_after(batch_id: int) -> tuple[list[tuple[int, int]], list[tuple[int]]]:
    """What the tables hold when this batch is the last."""
    gone = batch_id % KEYS
    counts = [(key, batch_id * key) for key in range(KEYS) if key != gone]
    return counts, [(number,) for number in range(batch_id + 1)]


def main(url: str) -> None:
    """For every line of the input a process that writes, so that imports are paid for once."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            say("pid", os.getpid())  # the child itself, so that it comes before its batches
            last_batch, *kill_at = map(int, line.split())
            if kill_at:
                kill_at_call(*kill_at)
            write_up_to(url, last_batch)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say("end", os.waitstatus_to_exitcode(status))


def say(word: str, number: int) -> None:
    """In one write: parent and child share the pipe, and an unbuffered `print` writes in parts."""
    os.write(sys.stdout.fileno(), f"{word} {number}\n".encode())


def write_up_to(url: str, last_batch: int) -> None:
    store = open_store(url)
    done = store.last_batch(QUERY)
    for batch_id in range(done or 0, last_batch + 1):
        store.write_arrow(outputs_of(batch_id), batch_id, QUERY, f'{{"end": {batch_id}}}')
        say("batch", batch_id)
    store.close()


def kill_at_call(number: int) -> None:
    """Count calls of both drivers that send a statement, and end at the given one."""
    counted = 0

    def step() -> None:
        nonlocal counted
        counted += 1
        if counted == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted_call(*arguments: Any, **options: Any) -> Any:
            step()
            result = call(*arguments, **options)
            step()
            return result

        return counted_call

    class CountingConnection(sqlite.sqlite3.Connection):
        execute = counting(sqlite.sqlite3.Connection.execute)
        executemany = counting(sqlite.sqlite3.Connection.executemany)

    connect = sqlite.sqlite3.connect
    sqlite.sqlite3.connect = lambda *arguments, **options: connect(  # type: ignore[assignment]
        *arguments, factory=CountingConnection, **options
    )
    psycopg.Connection.execute = counting(psycopg.Connection.execute)  # type: ignore[method-assign]
    psycopg.Transaction.__exit__ = counting(psycopg.Transaction.__exit__)  # type: ignore[method-assign]
    postgres_rows.copy_stream = counting(postgres_rows.copy_stream)  # type: ignore[assignment]


if __name__ == "__main__":
    main(sys.argv[1])
