"""Replay: a second consumer reads the last hour again, without affecting the first.

It has its own group, whose offsets are set by timestamp before it starts.
"""

import time

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream import Broker

HOUR_MS = 3_600_000


def read(bootstrap_servers: str, group: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["events"])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


def replay(servers: str) -> None:
    now_ms = round(time.time() * 1000)
    producer = Producer({"bootstrap.servers": servers})
    for hours_ago in (5, 4, 3, 2, 1, 0):
        timestamp_ms = now_ms - hours_ago * HOUR_MS
        producer.produce("events", value=f"{hours_ago} h ago", timestamp=timestamp_ms)
    producer.flush()
    print("billing     ", read(servers, "billing", 6))

    probe = Consumer({"bootstrap.servers": servers, "group.id": "billing-copy"})
    [place] = probe.offsets_for_times([TopicPartition("events", 0, now_ms - 2 * HOUR_MS)])
    probe.close()
    admin = AdminClient({"bootstrap.servers": servers})
    request = [ConsumerGroupTopicPartitions("billing-copy", [place])]
    admin.alter_consumer_group_offsets(request)["billing-copy"].result()

    again = read(servers, "billing-copy", 3)
    print("billing-copy", again)
    assert again == ["2 h ago", "1 h ago", "0 h ago"]


def main() -> None:
    with Broker.start() as broker:
        replay(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
