"""Changes of a PostgreSQL database as records: the rows that are there, then every change.

    DATABASE_URL=postgresql://user@localhost/shop python capture.py

The database needs `wal_level = logical`, and the role needs REPLICATION and a table of its own. The
example creates the table `capture_example`, and removes everything that it has created.
"""

from __future__ import annotations

import json
import os
import threading

import psycopg
from confluent_kafka import Consumer

from millstream.broker.embedded import Broker
from millstream.connect.capture import Capture

NAME = "capture_example"


def read(broker: Broker, count: int) -> list[dict]:
    """The first `count` changes of the table; tombstones are left out."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "example",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([f"{NAME}.public.{NAME}"])
    changes = []
    while len(changes) < count:
        message = consumer.poll(1)
        if message is not None and message.error() is None and message.value() is not None:
            changes.append(json.loads(message.value()))
    consumer.close()
    return changes


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as database, Broker.start() as broker:
        database.execute(f"DROP TABLE IF EXISTS {NAME}")
        database.execute(f"CREATE TABLE {NAME} (id int PRIMARY KEY, product text)")
        database.execute(f"INSERT INTO {NAME} VALUES (1, 'tea'), (2, 'mug')")
        capture = Capture(
            name=NAME,
            database=url,
            tables=[f"public.{NAME}"],
            broker=broker.bootstrap_servers,
        )
        thread = threading.Thread(target=capture.run)
        thread.start()
        try:
            read(broker, 2)  # the snapshot is there: what follows is streamed
            database.execute(f"UPDATE {NAME} SET product = 'green tea' WHERE id = 1")
            database.execute(f"DELETE FROM {NAME} WHERE id = 2")
            for change in read(broker, 4):
                row = change["after"] or change["before"]
                print(change["op"], row["id"], row["product"])
        finally:
            capture.stop()
            thread.join()
            database.execute(f"SELECT pg_drop_replication_slot('{capture.settings.slot}')")
            database.execute(f"DROP PUBLICATION {capture.settings.publication}")
            database.execute(f"DROP TABLE {NAME}")


if __name__ == "__main__":
    if "DATABASE_URL" in os.environ:
        main(os.environ["DATABASE_URL"])
    else:
        print("set DATABASE_URL to the address of a database with wal_level = logical")
