"""A queue does not preserve order, and how to handle that.

Five versions of one price are written in order. Version 3 fails once and is redelivered after
version 4: m1 m2 m4 m3 m5. A reader that keeps the last value it received goes back to an old price
in between. Two solutions: a version number in the record, so that the reader can ignore older ones;
or a consumer group, which reads a partition in order.
"""

import json

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from millstream import Broker


def produce(servers: str, *versions: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for version in versions:
        price = {"item": "tea", "version": version, "price": 100 + version}
        producer.produce("prices", key="tea", value=json.dumps(price))
    producer.flush()


def start_at_the_beginning(servers: str, group: str) -> None:
    change = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result()


def read_as_a_queue(servers: str) -> list[int]:
    """The order in which a share group processes the versions; the first try of 3 fails."""
    start_at_the_beginning(servers, "queue")
    member = ShareConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "queue",
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    member.subscribe(["prices"])
    processed: list[int] = []
    while len(processed) < 5:
        for record in member.poll(1.0):
            version = json.loads(record.value())["version"]
            if version == 3 and record.delivery_count() == 1:
                member.acknowledge(record, AcknowledgeType.RELEASE)
            else:
                member.acknowledge(record, AcknowledgeType.ACCEPT)
                processed.append(version)
        member.commit_sync()
        if processed == [1, 2, 4]:
            produce(servers, 5)
    member.close()
    return processed


def newest(versions: list[int]) -> list[int]:
    """The values over time of a reader that ignores older versions."""
    shown: list[int] = []
    for version in versions:
        shown.append(max([version, *shown[-1:]]))
    return shown


def read_in_order(servers: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "ordered", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["prices"])
    processed: list[int] = []
    while len(processed) < 5:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            processed.append(json.loads(record.value())["version"])
    consumer.close()
    return processed


def main() -> None:
    with Broker.start() as broker:
        servers = broker.bootstrap_servers
        produce(servers, 1, 2, 3, 4)
        as_a_queue = read_as_a_queue(servers)
        in_order = read_in_order(servers)
        print("queue:         ", as_a_queue)
        print("newest wins:   ", newest(as_a_queue))
        print("consumer group:", in_order)
        assert as_a_queue == [1, 2, 4, 3, 5]
        assert newest(as_a_queue) == [1, 2, 4, 4, 5]
        assert in_order == [1, 2, 3, 4, 5]


if __name__ == "__main__":
    main()
