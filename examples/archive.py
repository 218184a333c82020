"""A topic whose history is in Parquet files: the broker keeps the end of it, consumers read all.

Needs the extras `archive` and `duckdb`.
"""

import tempfile
import time
from pathlib import Path

import duckdb
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker
from millstream.archive.reading import open_archive

RECORDS = 30_000
PATIENCE_SECONDS = 120


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        archive = f"{directory}/archive"
        settings = {
            "millstream.archive.path": archive,
            "remote.log.manager.task.interval.ms": 100,
            "log.retention.check.interval.ms": 100,
        }
        with Broker.start(f"{directory}/data", settings) as broker:
            create_topic(broker)
            produce(broker)
            start = wait_until_archived(broker)
            print(f"the broker's own log starts at offset {start}; the rest is archived")
            values = consume_all(broker)
            assert values == [b"order %d" % number for number in range(RECORDS)]
            print(f"a consumer has read all {len(values)} records, in order")
        # Nothing but the files is needed for this.
        part = open_archive(archive).topic("orders").partitions[0]
        files = [part.path_of(file) for file in part.files]
        query = (
            "select count(*), max(\"offset\") from read_parquet($1) where value = 'order 77'::blob"
        )
        found = duckdb.execute(query, [files]).fetchall()
        assert found == [(1, 77)]
        print(f"SQL over {len(files)} files: order 77 has the offset {found[0][1]}")


def create_topic(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "retention.ms": "-1",  # keep all of it,
        "local.retention.bytes": "1000000",  # but little on the broker
    }
    topic = NewTopic("orders", num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([topic])["orders"].result(PATIENCE_SECONDS)


def produce(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("orders", key=b"k" * 100, value=b"order %d" % number)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def wait_until_archived(broker: Broker) -> int:
    """Until segments are archived, and deleted from the broker. Returns where its log starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        logs = Path(broker.data_dir, "orders-0").glob("*.log")
        start = min(int(path.stem) for path in logs)
        if start > 0:
            return start
        time.sleep(0.1)
    raise TimeoutError("nothing was archived")


def consume_all(broker: Broker) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(values) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


if __name__ == "__main__":
    main()
