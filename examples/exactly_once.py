"""Consume, transform, produce: each record exactly once, although a worker dies in the middle.

The records that a worker writes and the offsets it has read are committed in one transaction, both
or neither. A new worker takes over with the same transactional id, which aborts the open
transaction of the dead one and fences it if it comes back.
"""

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream import Broker

ORDERS = 100
AT_ONCE = 10


class Worker:
    """Turns orders into invoices."""

    def __init__(self, servers: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": "invoicing", "log_level": 0}
        )
        self.producer.init_transactions(30)  # fences the previous producer of this id
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "invoicing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,  # the transaction commits them
                "isolation.level": "read_committed",
            }
        )
        self.consumer.subscribe(["orders"])

    def write_invoices(self) -> int:
        """Begin a transaction and write the invoices."""
        orders = [m for m in self.consumer.consume(AT_ONCE, timeout=1.0) if m.error() is None]
        self.producer.begin_transaction()
        for order in orders:
            self.producer.produce("invoices", value=b"invoice for " + order.value())
        return len(orders)

    def commit(self) -> None:
        """Commit the invoices and the offsets of the orders."""
        positions = self.consumer.position(self.consumer.assignment())
        group = self.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(positions, group)
        self.producer.commit_transaction()


def read_invoices(servers: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "audit", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("invoices", 0, 0)])
    found: list[str] = []
    while len(found) < count:
        found += [m.value().decode() for m in consumer.consume(100, 0.5) if m.error() is None]
    assert not consumer.consume(1, 0.5), "one invoice too many"
    consumer.close()
    return found


def write_all_invoices(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(ORDERS):
        producer.produce("orders", value=f"order {number}")
    producer.flush()

    first = Worker(servers)
    done = first.write_invoices()
    first.commit()
    while not first.write_invoices():
        first.producer.abort_transaction()
    first.producer.flush()  # ten invoices are in the log, but not committed
    first.consumer.close()  # and here the worker hangs, or dies

    second = Worker(servers)
    while done < ORDERS:
        done += second.write_invoices()
        second.commit()
    second.consumer.close()

    try:
        first.producer.commit_transaction()
    except KafkaException as error:
        print("the first worker came back and was told:", error.args[0].str())
    else:
        raise AssertionError("two workers speak for one transactional id")
    invoices = read_invoices(servers, ORDERS)
    print(f"{len(invoices)} invoices for {ORDERS} orders")
    assert invoices == [f"invoice for order {number}" for number in range(ORDERS)]


def main() -> None:
    with Broker.start() as broker:
        write_all_invoices(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
