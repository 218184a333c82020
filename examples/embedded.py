"""A broker inside a program: start it, use it with any Kafka client, stop it without leftovers."""

from confluent_kafka import Consumer, Producer

from millstream import Broker


def greet(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for city in ("Ulm", "Graz", "Bern"):
        producer.produce("cities", key=city[0], value=city)
    producer.flush()

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["cities"])
    seen: list[str] = []
    while len(seen) < 3:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            seen.append(message.value().decode())
    consumer.close()
    print(", ".join(seen))
    assert seen == ["Ulm", "Graz", "Bern"]


def main() -> None:
    with Broker.start() as broker:
        greet(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
