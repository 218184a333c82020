"""Acknowledged means durable: the broker is killed with SIGKILL and restarted on its data.

`in_process=False` runs it in a child process, which can be killed separately.
"""

from confluent_kafka import Consumer, Producer, TopicPartition

from millstream import Broker


def main() -> None:
    with Broker.start(in_process=False) as broker:
        acknowledged: list[int] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,  # it would log the lost connection
            }
        )
        for number in range(1000):
            producer.produce(
                "ledger",
                value=str(number),
                on_delivery=lambda error, message: acknowledged.append(int(message.value())),
            )
        producer.flush()

        broker.kill()
        broker.restart()

        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "audit"})
        consumer.assign([TopicPartition("ledger", 0, 0)])
        found: list[int] = []
        while len(found) < len(acknowledged):
            messages = consumer.consume(500, timeout=1.0)
            found += [int(m.value()) for m in messages if m.error() is None]
        consumer.close()
        print(f"{len(acknowledged)} acknowledged, {len(found)} found after kill -9")
        assert found == acknowledged == list(range(1000))


if __name__ == "__main__":
    main()
