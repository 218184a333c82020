"""The pytest fixture `millstream`: one real broker for the whole test session.

Run it with `pytest examples/test_orders.py`; the fixture comes with the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer

if TYPE_CHECKING:
    from millstream.testing.pytest_plugin import SharedBroker


def test_an_order_reaches_the_warehouse(millstream: SharedBroker) -> None:
    orders = millstream.unique_topic("orders")
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers, "acks": "all"})
    producer.produce(orders, key="alice", value="two lamps")
    assert producer.flush(30) == 0

    warehouse = Consumer(
        {
            "bootstrap.servers": millstream.bootstrap_servers,
            "group.id": millstream.unique_group("warehouse"),
            "auto.offset.reset": "earliest",
        }
    )
    warehouse.subscribe([orders])
    message = warehouse.poll(30)
    warehouse.close()
    assert message is not None
    assert message.value() == b"two lamps"
