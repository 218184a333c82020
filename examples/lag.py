"""The lag of a group in Python: end offset minus committed offset, per partition.

`millstream group describe` shows the same, and warns before retention deletes unread records.
"""

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millstream import Broker


def lag(bootstrap_servers: str, group: str) -> dict[str, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    request = [ConsumerGroupTopicPartitions(group)]
    committed = admin.list_consumer_group_offsets(request)[group].result().topic_partitions
    ends = admin.list_offsets(
        {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in committed}
    )
    end = {(p.topic, p.partition): future.result().offset for p, future in ends.items()}
    return {f"{p.topic}[{p.partition}]": end[p.topic, p.partition] - p.offset for p in committed}


def measure(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce("jobs", value=str(number))
    producer.flush()

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "workers"})
    consumer.commit(offsets=[TopicPartition("jobs", 0, 4)], asynchronous=False)
    consumer.close()

    behind = lag(servers, "workers")
    print(behind)
    assert behind == {"jobs[0]": 6}


def main() -> None:
    with Broker.start() as broker:
        measure(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
