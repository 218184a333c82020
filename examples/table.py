"""A compacted topic is a table: read it from the beginning and keep the latest value of each key.

A record with a null value (a tombstone) deletes its key. The broker removes overwritten records
later; readers get the same table at any time.
"""

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker


def load_table(bootstrap_servers: str) -> dict[str, str]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "loader"})
    place = TopicPartition("prices", 0, 0)
    _, end = consumer.get_watermark_offsets(place)
    consumer.assign([place])
    table: dict[str, str] = {}
    position = 0
    while position < end:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        key, value = message.key().decode(), message.value()
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value.decode()
        position = message.offset() + 1
    consumer.close()
    return table


def build_table(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    prices = NewTopic("prices", 1, config={"cleanup.policy": "compact"})
    admin.create_topics([prices])["prices"].result()
    producer = Producer({"bootstrap.servers": servers})
    for key, value in [("tea", "3"), ("milk", "1"), ("tea", "4"), ("milk", None)]:
        producer.produce("prices", key=key, value=value)
    producer.flush()
    table = load_table(servers)
    print(table)
    assert table == {"tea": "4"}


def main() -> None:
    with Broker.start() as broker:
        build_table(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
