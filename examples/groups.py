"""Load balancing and fan-out together.

Within a group each record goes to one member; every group gets all of them. Two workers of the
group `mailer` share the work here, and `audit` sees everything.
"""

from collections import Counter

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Broker

RECORDS = 100


def join(bootstrap_servers: str, group: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",  # KIP-848: the broker assigns the partitions
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["signups"])
    return consumer


def share_work(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("signups", 4)])["signups"].result()
    members = {
        "mailer-1": join(servers, "mailer"),
        "mailer-2": join(servers, "mailer"),
        "audit": join(servers, "audit"),
    }
    while not all(consumer.assignment() for consumer in members.values()):
        for consumer in members.values():
            consumer.poll(0.1)

    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce("signups", value=f"user-{number}", partition=number % 4)
    producer.flush()

    counts: Counter[str] = Counter()
    while counts.total() < 2 * RECORDS:
        for name, consumer in members.items():
            counts[name] += len([m for m in consumer.consume(100, 0.1) if m.error() is None])
    for consumer in members.values():
        consumer.close()
    print(dict(counts))
    assert counts == {"mailer-1": 50, "mailer-2": 50, "audit": 100}


def main() -> None:
    with Broker.start() as broker:
        share_work(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
