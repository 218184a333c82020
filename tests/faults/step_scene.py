"""A database, its capture, a broker and sinks, as processes that die according to a plan.

    database ──> capture ──> broker ──┬──> table   PostgreSQL
                                      ├──> file    SQLite
                                      ├──> index   SQLite FTS5
                                      ├──> cache   Redis
                                      ├──> lake    Delta
                                      ├──> files   Parquet
                                      └──> search  OpenSearch

`Scene.run` starts all of them, with a kill for each (`dying.py`), while a client changes the
database. A process that has died is started again, with the next kill of its plan, as a supervisor
would. When all plans are done, the client stops, and the last change of each table is a mark. When
the derived systems have the marks, processes that slept take their last step. Then all derived
systems must be equal to the database. A scene has some of the sinks. DuckDB is not among them: a
process that sleeps has the file open, and locks the others out.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.faults.dying import Kill, steps_of
from tests.faults.step_systems import (
    UNREADABLE,
    Rows,
    clear_search,
    declaration,
    rows_of_cache,
    rows_of_file,
    rows_of_files,
    rows_of_index,
    rows_of_lake,
    rows_of_search,
    rows_of_tables,
)
from tests.peers.opensearch import OpenSearchServer
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.postgres import PostgresServer
from tests.peers.redis import RedisServer
from tests.peers.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
CHANGED = ("orders", "items")
TABLES = (*CHANGED, "receipts")  # a row for each transaction, so that none can be lost unnoticed
SINKS = ("table", "index", "cache")
LAKES = ("lake", "files")
MARK = -1
KEYS = 40  # so few that rows are changed again and again
ROWS = 150  # when the capture begins
FAILED_STARTS_MAX = 30
FIRST_STEPS = ("slot", "state")  # only in the first run of a capture
START_STEPS = ("open", "start")  # once in every run
LOCKING_STEPS = ("rows", "slot", "state")  # a process that sleeps here has locked the others out

Plan = Mapping[str, Sequence[Kill]]


def roles_of(sinks: Sequence[str]) -> Sequence[str]:
    return ("broker", "capture", *sinks)


def random_plan(seed: int, rounds: int, sinks: Sequence[str] = SINKS) -> Plan:
    """For each role, the kills that its processes are started with, one after another."""
    rng = random.Random(seed)
    plan: dict[str, list[Kill]] = {}
    for role in roles_of(sinks):
        plan[role] = [_random_kill(rng, role, sinks, is_first=it == 0) for it in range(rounds)]
    return plan


def _random_kill(rng: random.Random, role: str, sinks: Sequence[str], *, is_first: bool) -> Kill:
    steps = [it for it in steps_of(role) if is_first or it not in FIRST_STEPS]
    victims = ["self", "self", "broker", "database", "zombie"]
    if role == "search" or "cache" in sinks:  # a search server is killed by its sink alone
        victims.insert(4, "search" if role == "search" else "cache")
    victim = "self" if role == "broker" else rng.choice(victims)
    if victim == "zombie":
        steps = [it for it in steps if it not in LOCKING_STEPS]
    step = rng.choice(steps)
    once = step in FIRST_STEPS + START_STEPS
    count = 1 if once else rng.randrange(1, 30 if role == "broker" else 6)
    when = "before" if victim == "zombie" else rng.choice(["before", "after"])
    return Kill(f"{when} {step}", count, victim)


class Client:
    """Changes the database in random transactions, and connects again when it was killed."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._rng = url, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._version = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                # A capture that sleeps in its snapshot keeps TRUNCATE waiting.
                with psycopg.connect(self._url, options="-c lock_timeout=200") as connection:
                    while not self._stopping.wait(0.01):
                        self._transaction(connection)
            except psycopg.OperationalError:
                self._stopping.wait(0.05)
            except BaseException as error:  # noqa: BLE001 - it is raised in `stop`
                self.error = error
                return

    def _transaction(self, connection: psycopg.Connection) -> None:
        for _ in range(self._rng.choice([1, 1, 1, 2, 5, 20])):
            self._change(connection, self._rng.choice(CHANGED))
        receipt = (ROWS + self._version, self._version, "receipt")
        connection.execute("INSERT INTO receipts VALUES (%s, %s, %s)", receipt)
        if self._rng.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()

    def _change(self, connection: Any, table: str) -> None:
        """A row is inserted, updated, deleted or gets another key; rarely, all are deleted."""
        self._version += 1
        key, other = self._rng.randrange(KEYS), self._rng.randrange(KEYS)
        new = (self._version, f"word{self._version} {'x' * self._rng.choice([0, 10, 300])}")
        kind = self._rng.random()
        if kind < 0.002:
            connection.execute(f"TRUNCATE {table}")
        elif kind < 0.2:
            connection.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        elif kind < 0.3:
            connection.execute(
                f"UPDATE {table} SET id = %s WHERE id = %s "
                f"AND NOT EXISTS (SELECT FROM {table} WHERE id = %s)",
                (other, key, other),
            )
        else:
            connection.execute(
                f"INSERT INTO {table} VALUES (%s, %s, %s) "
                "ON CONFLICT (id) DO UPDATE SET version = excluded.version, note = excluded.note",
                (key if kind < 0.8 else ROWS + self._version, *new),
            )


@dataclass
class Scene:
    """See the module."""

    directory: Path
    database: PostgresServer
    cache: RedisServer | None
    plan: Plan
    seed: int = 0
    breaks: Mapping[str, str] = field(default_factory=dict)  # by role: one of dying.BREAKS
    patience_seconds: float = PATIENCE_SECONDS
    sinks: Sequence[str] = SINKS
    search: OpenSearchServer | None = None

    def __post_init__(self) -> None:
        self.source, self.target = self.database.new_database(), self.database.new_database()
        self.name = "shop" + uuid.uuid4().hex[:8]  # of a slot of the server
        if self.cache is not None:
            with redis.Redis(port=self.cache.port) as client:
                client.flushall()
        if self.search is not None:
            clear_search(self.search, TABLES)
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._kills = {role: list(self.plan.get(role, ())) for role in roles_of(self.sinks)}
        self._armed: dict[str, Kill | None] = {}
        self._failed_starts = 0
        self.struck: list[str] = []  # what has happened, for the reader of a failed test
        (self.directory / "pids").mkdir()
        self._write_files()
        with psycopg.connect(self.source) as connection:
            for table in TABLES:
                connection.execute(
                    f"CREATE TABLE {table} (id int PRIMARY KEY, version int, note text)"
                )
                connection.execute(
                    f"INSERT INTO {table} SELECT it, 0, 'old' FROM generate_series(1, {ROWS}) it"
                )

    # The story

    def run(self) -> None:
        client = Client(self.source, self.seed)
        try:
            client.start()
            self._follow(lambda: not any(self._kills.values()) and not any(self._armed.values()))
            client.stop()
            self._change_last()
            self._follow(lambda: all(self.has_marks(it) for it in self.sinks))
            self._wake_zombies()
        finally:
            self._end()

    def _change_last(self) -> None:
        """Change many rows, so that a write of an old row shows; leave many, so that a row that was
        lost stays lost. Then set the marks. The last kill may be that of the database."""
        deadline = time.monotonic() + self.patience_seconds
        while True:
            self._restart_servers()
            try:
                with psycopg.connect(self.source) as connection:
                    self._change(connection)
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, f"no database: {self.struck}"
            time.sleep(0.02)

    def _change(self, connection: psycopg.Connection) -> None:
        """In one transaction; nothing, if it was committed before."""
        if connection.execute(f"SELECT 1 FROM {TABLES[0]} WHERE id = {MARK}").fetchall():
            return
        for table in TABLES:
            connection.execute(f"DELETE FROM {table} WHERE id % 4 = 0")
            connection.execute(f"UPDATE {table} SET version = version + 1 WHERE id % 4 = 1")
            connection.execute(f"INSERT INTO {table} VALUES ({MARK}, 0, 'mark')")

    def _follow(self, is_done: Callable[[], bool]) -> None:
        """Start what is not running, until it is done."""
        deadline = time.monotonic() + self.patience_seconds
        while True:
            self._restart_servers()
            for role in roles_of(self.sinks):
                self._supervise(role)
            if is_done():
                return
            assert time.monotonic() < deadline, f"not done: {self._armed}, {self.struck}"
            time.sleep(0.02)

    def _restart_servers(self) -> None:
        servers = {"database": self.database, "cache": self.cache, "search": self.search}
        for name, server in servers.items():
            if server is None:
                continue
            assert server.process is not None
            if server.process.poll() is not None:
                self.struck.append(f"{name} died")
                server.start()
            self._note_pid(name, server.process.pid)

    def _supervise(self, role: str) -> None:
        """Start the role's process with its next kill, if the last one is done."""
        process = self._processes.get(role)
        if process is None:
            self._start(role, self._next_kill(role))
            return
        has_ended, has_struck = process.poll() is not None, self._report(role).exists()
        if has_ended and not has_struck:
            # The broker was killed by another process, or a capture did not find its database.
            self._failed_starts += 1
            assert self._failed_starts < FAILED_STARTS_MAX, self.output(role)
            self.struck.append(f"{role} ended with {process.returncode}")
            self._start(role, self._armed[role])
        elif has_struck and self._armed[role] is not None:
            self.struck.append(f"{role}: {self._armed[role]}")
            self._replace(role, process)

    def _replace(self, role: str, process: subprocess.Popen[bytes]) -> None:
        kill = self._armed[role]
        assert kill is not None
        if kill.victim == "zombie":
            # Its process group may be continued when the shell that started the tests ends.
            wait_until(
                lambda: process.poll() is not None or is_stopped(process), f"{role} does not stop"
            )
            self._zombies.append(process)
        elif kill.victim == "self":
            process.wait(PATIENCE_SECONDS)
        elif not self._kills[role]:  # it goes on, and kills nobody else
            self._armed[role] = None
            self._report(role).unlink()
            return
        else:
            end(process)
        self._start(role, self._next_kill(role))

    def _next_kill(self, role: str) -> Kill | None:
        return self._kills[role].pop(0) if self._kills[role] else None

    def _wake_zombies(self) -> None:
        """Each takes its last step, long after another process has taken over."""
        for process in self._zombies:
            process.send_signal(signal.SIGCONT)
        for process in self._zombies:
            process.wait(PATIENCE_SECONDS)

    # Processes

    def _start(self, role: str, kill: Kill | None) -> None:
        self._armed[role] = kill
        self._report(role).unlink(missing_ok=True)
        options = [str(self.directory), role, str(kill or ""), self.breaks.get(role, "")]
        with self._log(role).open("ab") as log:
            self._processes[role] = process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.dying", *options, "--", *self._command(role)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        if role == "broker":
            self._note_pid(role, process.pid)

    def _command(self, role: str) -> list[str]:
        file = str(self.directory / f"{role}.toml")
        if role == "broker":
            data = str(self.directory / "broker")
            return ["serve", "--listen", f"127.0.0.1:{self._port}", "--data", data]
        return ["capture", "run", file] if role == "capture" else ["connect", file]

    def _note_pid(self, name: str, pid: int) -> None:
        file = self.directory / "pids" / name
        if not file.exists() or file.read_text() != str(pid):
            new = file.with_suffix(".new")
            new.write_text(str(pid))
            new.rename(file)  # whole, whenever it is read

    def _report(self, role: str) -> Path:
        return self.directory / f"{role}.struck"

    def _log(self, role: str) -> Path:
        return self.directory / f"{role}.log"

    def output(self, role: str) -> str:
        return f"{role}: {self.struck}\n{self._log(role).read_text(errors='replace')[-3000:]}"

    def _end(self) -> None:
        for process in (*self._processes.values(), *self._zombies):
            end(process)
        if self.database.process is not None and self.database.process.poll() is None:
            with psycopg.connect(self.source, autocommit=True) as connection:
                slot = f"FROM pg_replication_slots WHERE slot_name = 'millstream_{self.name}'"
                connection.execute(f"SELECT pg_terminate_backend(active_pid, 5000) {slot}")
                connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slot}")

    def _write_files(self) -> None:
        broker = f'broker = "127.0.0.1:{self._port}"\n'
        (self.directory / "capture.toml").write_text(
            f'name = "{self.name}"\ndatabase = "{self.source}"\ntables = ["public.*"]\n{broker}'
            "chunk_rows = 60\nslice_bytes = 30000\nheartbeat_seconds = 0.3\n"
        )
        for role in self.sinks:
            to, sink_options, options = declaration(
                role, self.directory, self.target, self.cache, self.search
            )
            topics = "".join(
                f'[topics."{self.name}.public.{it}"]\nkey = "id"\n{options}\n' for it in TABLES
            )
            named = f'name = "{role}"\nto = "{to}"\nbad_records = "fail"\n{sink_options}'
            (self.directory / f"{role}.toml").write_text(f"{named}{broker}{topics}")

    # The systems

    def rows(self, system: str) -> Rows:
        """Of the database, or of a derived system, as other processes see it."""
        match system:
            case "cache":
                assert self.cache is not None
                return rows_of_cache(self.cache, TABLES)
            case "index":
                return rows_of_index(self.directory / "index.db", TABLES)
            case "file":
                return rows_of_file(self.directory / "file.db", TABLES)
            case "lake":
                return rows_of_lake(self.directory / "lake", TABLES)
            case "files":
                return rows_of_files(self.directory / "files", TABLES)
            case "search":
                assert self.search is not None
                return rows_of_search(self.search, TABLES)
        return rows_of_tables(self.target if system == "table" else self.source, TABLES)

    def has_marks(self, system: str) -> bool:
        try:
            rows = self.rows(system)
        except UNREADABLE:
            return False
        return all((table, MARK) in rows for table in TABLES)

    def differences(self) -> dict[str, str]:
        """By derived system; empty if all are equal to the database."""
        expected, found = self.rows("database"), {it: self.rows(it) for it in self.sinks}
        assert len(expected) > len(TABLES)
        return {
            system: f"missing: {sorted(expected.keys() - rows.keys())}, "
            f"deleted: {sorted(rows.keys() - expected.keys())}, stale: "
            f"{sorted(it for it in rows.keys() & expected.keys() if rows[it] != expected[it])}"
            for system, rows in found.items()
            if rows != expected
        }


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE_SECONDS)
