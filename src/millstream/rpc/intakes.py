"""How a server gets requests: as a member of a consumer group, or of a share group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)

POLL_SECONDS = 0.1
BATCH = 100
# Another server takes over sooner than after Kafka's 45 s: callers wait for seconds.
SESSION_TIMEOUT_MS = 10_000


def records_of(messages: Sequence[Message]) -> list[Message]:
    """The records among messages. Raises `KafkaException` if there are none, and an error that does
    not pass by itself, such as a missing right."""
    found = [it for it in messages if it.error() is None]
    for it in messages:
        if not found and not it.error().retriable():
            raise KafkaException(it.error())
    return found


class GroupIntake:
    """Requests as a member of a consumer group. Offsets are stored and committed in the background,
    or by a transaction of the server, then with `transactional`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        transactional: bool,
        on_lost: Callable[[], None],
    ) -> None:
        """`on_lost` is called when partitions are taken away."""
        session = {} if "group.protocol" in settings else {"session.timeout.ms": SESSION_TIMEOUT_MS}
        self._transactional, self._on_lost = transactional, on_lost
        self._assigned: set[int] = set()
        self._unread: set[int] = set()
        self._consumer = Consumer(
            {
                **session,
                "fetch.wait.max.ms": 100,
                **settings,
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
                "enable.auto.commit": not transactional,
            }
        )

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe(
            [topic], on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost
        )

    def poll(self) -> list[Message]:
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        found = records_of([first, *self._consumer.consume(BATCH, 0)])
        # A rebalance may have come between the two: the others' requests are not answered here.
        return [it for it in found if it.partition() in self._assigned]

    def to_learn(self, messages: Sequence[Message]) -> set[int]:
        """The partitions of which it is not known what others have answered."""
        return {it.partition() for it in messages} & self._unread

    def learned(self, partitions: set[int]) -> None:
        self._unread -= partitions

    def accept(self, messages: Sequence[Message]) -> None:
        if self._transactional:
            return  # the transaction has their offsets
        for message in messages:
            self._consumer.store_offsets(message)

    def release(self, messages: Sequence[Message]) -> None:
        """Get these again, here or, if their partition is another's now, there."""
        first: dict[tuple[str, int], int] = {}
        for it in messages:
            first.setdefault((it.topic(), it.partition()), it.offset())
        for (topic, partition), offset in first.items():
            try:
                self._consumer.seek(TopicPartition(topic, partition, offset))
            except KafkaException:
                self._unread.add(partition)  # assigned to another one, or about to be

    def offsets_after(self, messages: Sequence[Message]) -> list[TopicPartition]:
        last = {(it.topic(), it.partition()): it.offset() for it in messages}
        return [TopicPartition(*place, offset + 1) for place, offset in last.items()]

    @property
    def membership(self) -> Any:
        """What fences a server that is no longer in the group."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()

    def _gained(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        gained = {it.partition for it in partitions}
        self._assigned |= gained
        self._unread |= gained

    def _lost(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._assigned -= {it.partition for it in partitions}
        self._on_lost()


class ShareIntake:
    """Requests as a member of a share group."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        return records_of(self._consumer.poll(POLL_SECONDS))

    def to_learn(self, messages: Sequence[Message]) -> set[int]:
        """All: others answer requests of the same partitions meanwhile."""
        return {it.partition() for it in messages}

    def learned(self, partitions: set[int]) -> None:
        pass

    def accept(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._consumer.acknowledge(message)
        self._consumer.commit_async()

    def release(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
        self._consumer.commit_async()

    def close(self) -> None:
        self._consumer.close()
