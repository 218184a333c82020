"""The shop's catalogue: products in PostgreSQL, and a search index and a table that follow them.

    products in PostgreSQL ──> capture ──> shop.public.products ──┬──> search index (SQLite FTS5)
                                                                  └──> table (SQLite)

A buyer changes prices, stock and descriptions, and adds and removes products. `millstream capture`
writes the changes to a topic; two processes of `millstream connect` apply them. In the end both
must be equal to the database, whatever was killed.

It starts in a thread after the pipelines' first batches: these need the processor first.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.cli.shop.audit import Finding, compare, counted
from millstream.cli.shop.database import Database, why_missing
from millstream.cli.shop.pipelines import PRODUCTS

CHANGE_EVERY_S = 0.02
COLOURS = ("red", "green", "blue", "black")
MATERIALS = ("oak", "brass", "wool", "glass", "linen")
SEARCHED = "oak"
FOUND_MAX = 3
LAST = "gift card"  # the product that is added last: a follower that has it has everything
TABLE = """
    CREATE TABLE products
        (id int PRIMARY KEY, name text, description text, price int, stock int)
"""
COLUMNS = "id, name, description, price, stock"
FOLLOWERS = ("index", "table")

# Starts a Python with these arguments, whose output goes to a log of this name.
Spawn = Callable[..., "subprocess.Popen[bytes]"]
Product = tuple[int, str, str, int, int]


@dataclass(frozen=True)
class CatalogueLook:
    """What was seen at one moment."""

    changes: int = 0
    products: Mapping[str, int] | None = None  # in each follower
    found: tuple[str, ...] = ()  # by a search


class Catalogue:
    """See the module."""

    def __init__(self, directory: Path, address: str, seed: int, spawn: Spawn) -> None:
        self.missing = why_missing()
        self._directory, self._address, self._spawn = directory, address, spawn
        self._database = Database()
        self._random = random.Random(seed)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._opened = threading.Event()
        self._failure: Exception | None = None
        self._changes = 0
        self._next_id = 1

    # Its life

    def start(self) -> None:
        """Begin to start everything, and return at once."""
        if self.missing is None:
            self._thread = threading.Thread(target=self._run, name="catalogue", daemon=True)
            self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether the database is filled, and followed; raises if that failed."""
        if self._failure is not None:
            raise self._failure
        return self._opened.is_set()

    def kill(self) -> tuple[str, ...]:
        """kill -9 of the capture and the index, if they run; returns their names."""
        killed = tuple(it for it in ("capture", "index") if it in self._processes)
        for name in killed:
            end(self._processes.pop(name))
        return killed

    def restart(self) -> None:
        """Start again what was killed."""
        for name in ("capture", "index"):
            if name not in self._processes:
                self._start(name)

    def close(self) -> None:
        """The buyer adds a last product, and goes."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        self.close()
        for process in self._processes.values():
            end(process)
        self._database.stop()

    def _run(self) -> None:
        try:
            self._database.start()
            self._write_files()
            self._buy()
        except Exception as error:  # noqa: BLE001 - it is raised in `is_open`
            self._failure = error

    def _start(self, name: str) -> None:
        command = ["capture", "run"] if name == "capture" else ["connect"]
        arguments = ["-m", "millstream.cli.entry", *command, f"{name}.toml"]
        self._processes[name] = self._spawn(name, *arguments)

    def _write_files(self) -> None:
        broker = f'broker = "{self._address}"\n'
        capture = (
            f'name = "shop"\ndatabase = "{self._database.url}"\ntables = ["public.products"]\n'
        )
        (self._directory / "capture.toml").write_text(capture + broker)
        targets = {
            "index": (
                "fts5",
                'fields = ["name", "description"]\nstored = ["id", "price", "stock"]',
            ),
            "table": (
                "sqlite",
                'columns = "id int, name string, description string, price int, stock int"',
            ),
        }
        for name, (scheme, options) in targets.items():
            topic = f'[topics."shop.public.products"]\nkey = "id"\n{options}\n'
            text = f'name = "{name}"\n{broker}to = "{scheme}:///{name}.db"\n{topic}'
            (self._directory / f"{name}.toml").write_text(text)

    # The buyer

    def _buy(self) -> None:
        import psycopg

        with psycopg.connect(self._database.url, autocommit=True) as connection:
            connection.execute(TABLE)
            for name, _, price in PRODUCTS:
                for colour in COLOURS:
                    self._add(connection, f"{name} {colour}", price)
            for name in ("capture", *FOLLOWERS):
                self._start(name)
            self._opened.set()
            while not self._closing.wait(CHANGE_EVERY_S):
                self._change(connection)
            self._add(connection, LAST, 50)

    def _add(self, connection: Any, name: str, price: int) -> None:
        row = (self._next_id, name, self._describe(), price, self._random.randrange(100))
        connection.execute("INSERT INTO products VALUES (%s, %s, %s, %s, %s)", row)
        self._next_id += 1
        self._changes += 1

    def _change(self, connection: Any) -> None:
        """Mostly of one product; sometimes one is added, or removed."""
        choice, one = self._random.random(), self._random.randrange(1, self._next_id)
        if choice < 0.1:
            name, _, price = self._random.choice(PRODUCTS)
            self._add(connection, f"{name} {self._random.choice(COLOURS)}", price)
            return
        if choice < 0.2:
            connection.execute("DELETE FROM products WHERE id = %s", (one,))
        elif choice < 0.4:
            connection.execute(
                "UPDATE products SET description = %s WHERE id = %s", (self._describe(), one)
            )
        else:
            connection.execute(
                "UPDATE products SET price = price + %s, stock = stock - 1 WHERE id = %s",
                (self._random.randrange(-2, 4), one),
            )
        self._changes += 1

    def _describe(self) -> str:
        first, second = self._random.sample(MATERIALS, 2)
        return f"made of {first} and {second}"

    # What is seen of it

    def look(self) -> CatalogueLook:
        counts = {name: len(self._rows(name)) for name in FOLLOWERS}
        return CatalogueLook(self._changes, counts, self._search())

    def _search(self) -> tuple[str, ...]:
        query = "SELECT name FROM products WHERE products MATCH ? ORDER BY rank, id LIMIT ?"
        try:
            with closing(self._open_file("index")) as connection:
                return tuple(name for (name,) in connection.execute(query, (SEARCHED, FOUND_MAX)))
        except sqlite3.OperationalError:
            return ()

    def has_followed(self) -> bool:
        """Whether all followers have the last product."""
        return all(any(LAST in row for row in self._rows(name)) for name in FOLLOWERS)

    def audit(self) -> list[Finding]:
        """The followers against the database, row by row."""
        import psycopg

        with psycopg.connect(self._database.url) as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM products").fetchall()
        return [
            compare(f"products in the {name}", counted(rows), counted(self._rows(name)))
            for name in FOLLOWERS
        ]

    def _rows(self, follower: str) -> list[Product]:
        """As another process sees them; none while there is no table."""
        try:
            with closing(self._open_file(follower)) as connection:
                return connection.execute(f"SELECT {COLUMNS} FROM products").fetchall()
        except sqlite3.OperationalError:
            return []

    def _open_file(self, follower: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._directory / follower}.db?mode=ro", uri=True)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
