"""The dead letters of a topic, as a consumer sees them."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from tests.peers.patience import PATIENCE_SECONDS

Letter = tuple[str, str, str, str, str, bytes | None]


def letters_in(bootstrap: str, topic: str, count: int) -> list[Letter]:
    """Reason, topic, partition, offset, group and value of the first letters."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False}
    consumer = Consumer(settings)
    found: list[Letter] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(found) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            headers = {name: value.decode() for name, value in message.headers() or []}
            names = ("reason", "topic", "partition", "offset", "group")
            parts = [headers[f"__dlq.errors.{name}"] for name in names]
            found.append((*parts, message.value()))  # type: ignore[arg-type]
    finally:
        consumer.close()
    return found
