"""A database and a search index: dual writes let them drift apart, a log keeps them in step.

First two clients write every change to both. Two of them write in opposite order, and one crashes
between its two writes: database and index differ, and nothing will ever correct it.

Then the same clients write to a topic, and two processes of `millstream connect` apply it to the
database and to the index. These processes and the broker are killed at random. Both end up equal.
"""

import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from millstream import Broker
from millstream.connect.sinks import SinkRunner, load_config

ITEMS = 20
CHANGES = 400  # of each client


class Database:
    """A table of items in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, item: int, name: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY, name)")
            connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (item, name))
        connection.close()

    def rows(self) -> dict[int, str]:
        connection = sqlite3.connect(self.path)
        found = dict(connection.execute("SELECT id, name FROM items"))
        connection.close()
        return found


class Index(Database):
    """A search index of the items, in a file."""

    def write(self, item: int, name: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS items USING fts5(id, name)")
            connection.execute(
                "INSERT OR REPLACE INTO items (rowid, id, name) VALUES (?1, ?1, ?2)", (item, name)
            )
        connection.close()


def dual_writes(directory: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Two clients write to both systems; each step waits for the one that it must follow."""
    database, index = Database(directory / "dual.db"), Index(directory / "dual-index.db")
    second_is_done, first_has_begun = threading.Event(), threading.Event()

    def first() -> None:
        database.write(1, "red shoes")
        first_has_begun.set()
        second_is_done.wait()  # a slow network, a pause of the garbage collector
        index.write(1, "red shoes")

    def second() -> None:
        first_has_begun.wait()
        database.write(1, "blue shoes")
        index.write(1, "blue shoes")
        second_is_done.set()
        database.write(2, "green hat")
        # It crashes here: the index never hears of the hat.

    clients = [threading.Thread(target=first), threading.Thread(target=second)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return database.rows(), index.rows()


def write_files(directory: Path, broker: str) -> list[Path]:
    """The two sinks."""
    common = f'broker = "{broker}"\nformat = "json"\n'
    files = {
        "database": f'to = "sqlite:///{directory}/log.db"\n{common}'
        '[topics.items]\nkey = "id"\ncolumns = "id long, name string"\n',
        "index": f'to = "fts5:///{directory}/log-index.db"\n{common}'
        '[topics.items]\nkey = "id"\nfields = ["name"]\nstored = ["id"]\n',
    }
    for name, text in files.items():
        (directory / f"{name}.toml").write_text(f'name = "{name}"\n{text}', encoding="utf-8")
    return [directory / f"{name}.toml" for name in files]


def client(broker: str, number: int, seed: int) -> None:
    """Changes of random items, acknowledged one after another."""
    choose = random.Random(seed + number)
    settings = {"bootstrap.servers": broker, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    for change in range(CHANGES):
        item = choose.randrange(ITEMS)
        name = f'{{"id": {item}, "name": "client {number} change {change}"}}'
        is_deleted = choose.random() < 0.1
        producer.produce("items", None if is_deleted else name.encode(), str(item).encode())
        if change % 20 == 0:
            producer.flush()
    producer.flush()


def start(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millstream.cli.entry", "connect", str(file)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def through_the_log(
    directory: Path, seed: int, kills: int
) -> tuple[dict[int, str], dict[int, str]]:
    """The same through a topic, while processes are killed."""
    choose = random.Random(seed)
    with Broker.start(directory / "broker", in_process=False) as broker:
        address = broker.bootstrap_servers
        client(address, 0, seed)  # creates the topic
        files = write_files(directory, address)
        followers = {file: start(file) for file in files}
        clients = [threading.Thread(target=client, args=(address, it, seed)) for it in (1, 2)]
        for it in clients:
            it.start()
        try:
            for _ in range(kills):
                time.sleep(choose.uniform(0.1, 1.0))
                victim = choose.choice([None, *files])
                if victim is None:
                    broker.kill()
                    broker.restart()
                else:
                    followers[victim].send_signal(signal.SIGKILL)
                    followers[victim].wait()
                    followers[victim] = start(victim)
            for it in clients:
                it.join()
        finally:
            for process in followers.values():
                process.kill()
                process.wait()
        for file in files:  # what remains
            SinkRunner(load_config(file)).run(once=True)
    return Database(directory / "log.db").rows(), Index(directory / "log-index.db").rows()


def main(seed: int = 0, kills: int = 6) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        database, index = dual_writes(directory)
        differ = sorted(it for it in database if database[it] != index.get(it))
        print(f"dual writes: {len(differ)} of {len(database)} items differ, for ever")
        for item in differ:
            print(f"    item {item}: database {database[item]!r}, index {index.get(item)!r}")
        assert differ == [1, 2]
        database, index = through_the_log(directory, seed, kills)
        is_equal = database == index
        print(f"through the log: {len(database)} items, equal after {kills} kills: {is_equal}")
        assert is_equal
        assert database


if __name__ == "__main__":
    main()
