"""Members of a share group that accept, release and reject records, and come and go.

Each poll is recorded with the acknowledgements of its records, an operation for each partition:
the cluster answers for a partition as a whole. Released records are delivered again after a delay,
if the cluster has delays (`share.retry.backoff.ms`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from millstream.testing.histories.clients import (
    ANSWER_SECONDS_MAX,
    IMPATIENT,
    POLL_S,
    STEP_SECONDS_MAX,
    Client,
    Scene,
    as_read,
)
from millstream.testing.histories.history import Ack, Acknowledgement, Kind, Outcome

GROUP = "sharers"
DELAY_MS = 300
RELEASES_MAX = 3  # deliveries after which a record is not released again: groups have a limit
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.delivery.count.limit": 10,
}
# A constant delay.
DELAYS = {"share.retry.backoff.ms": DELAY_MS, "share.retry.backoff.max.ms": DELAY_MS}

_TYPES = {
    Acknowledgement.ACCEPT: AcknowledgeType.ACCEPT,
    Acknowledgement.RELEASE: AcknowledgeType.RELEASE,
    Acknowledgement.REJECT: AcknowledgeType.REJECT,
}


def configure_share_group(scene: Scene) -> int | None:
    """Returns the delay of released records in ms; None if the cluster has no such share groups.

    Must be done before the topic exists: then all brokers that know the topic know the settings.
    """
    admin = AdminClient(IMPATIENT | scene.config)
    for settings, delay_ms in ((SETTINGS | DELAYS, DELAY_MS), (SETTINGS, 0)):
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        group = ConfigResource(
            ConfigResource.Type.GROUP, f"{scene.prefix}-{GROUP}", incremental_configs=entries
        )
        try:
            admin.incremental_alter_configs([group])[group].result(ANSWER_SECONDS_MAX)
        except KafkaException:
            continue
        return delay_ms
    return None


class Sharer(Client):
    """A member of the share group; usually commits what it acknowledged, and sometimes leaves."""

    delay_ms = 0

    def __init__(self, scene: Scene, number: int) -> None:
        super().__init__(scene, f"sharer-{number}")

    def live(self) -> None:
        settings: dict[str, Any] = {
            "group.id": f"{self.scene.prefix}-{GROUP}",
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 50,
        }
        consumer = ShareConsumer(IMPATIENT | self.scene.config | settings)
        try:
            consumer.subscribe([self.scene.inputs])
            while not self.stopping.is_set() and self.dice.random() > 0.01:
                began_ns = time.monotonic_ns()
                messages = [it for it in consumer.poll(POLL_S) if it.error() is None]
                if messages and not self.settle(consumer, messages, began_ns):
                    return
        finally:
            consumer.close()

    def settle(self, consumer: ShareConsumer, messages: Sequence[Message], began_ns: int) -> bool:
        """Acknowledge the records; returns whether that succeeded."""
        acks: dict[str, list[Ack]] = defaultdict(list)
        for message in messages:
            count = message.delivery_count()
            kind = self.choose(count)
            partition = f"{message.topic()}-{message.partition()}"
            acks[partition].append(Ack(partition, message.offset(), count, kind))
            consumer.acknowledge(message, _TYPES[kind])
        commit_ns, outcomes, error = time.monotonic_ns(), {}, ""
        try:
            outcomes = outcomes_of(consumer.commit_sync(STEP_SECONDS_MAX))
        except KafkaException as refusal:
            error = str(refusal)
        reads = [as_read(message) for message in messages]
        for partition, mine in acks.items():
            self.record(
                Kind.SHARE,
                began_ns,
                commit_ns=commit_ns,
                outcome=outcomes.get(partition, Outcome.INFO),
                reads=[read for read in reads if read.partition == partition],
                acks=mine,
                group=GROUP,
                delay_ms=self.delay_ms,
                error=error,
            )
        return set(outcomes.values()) == {Outcome.OK}

    def choose(self, delivery_count: int) -> Acknowledgement:
        roll = self.dice.random()
        if roll < 0.1 and delivery_count <= RELEASES_MAX:
            return Acknowledgement.RELEASE
        return Acknowledgement.REJECT if roll > 0.97 else Acknowledgement.ACCEPT


def outcomes_of(
    answers: dict[TopicPartition, KafkaException | None],
) -> dict[str, Outcome]:
    """By partition. A failure is not certain: a part may have been done."""
    return {
        f"{place.topic}-{place.partition}": Outcome.OK if error is None else Outcome.INFO
        for place, error in answers.items()
    }
