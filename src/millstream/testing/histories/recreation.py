"""A client that deletes and creates a topic again and again.

Each incarnation of the topic gets records of its own, and is read from the beginning before it is
deleted: it must hold what was acknowledged to it, and nothing of its predecessors. Nobody else
uses the topic, so that every record is known to belong to one incarnation.
"""

from __future__ import annotations

import contextlib
import time

from confluent_kafka import KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories.clients import (
    ANSWER_SECONDS_MAX,
    BACK_OFF_S,
    IMPATIENT,
    STEP_SECONDS_MAX,
    Batch,
    Client,
    Scene,
    read_to_end,
)
from millstream.testing.histories.history import Kind, Read, incarnation

REST_SECONDS_MAX = 1.0  # between writing and reading: a fault may come


def recreated_topic(prefix: str, number: int) -> str:
    return f"{prefix}-recreated-{number}"


class Recreator(Client):
    def __init__(self, scene: Scene, number: int) -> None:
        super().__init__(scene, f"recreator-{number}")
        self.topic = recreated_topic(scene.prefix, number)
        self.places = [TopicPartition(self.topic, index) for index in range(scene.partitions)]
        self.incarnation = 0
        self.known_ids: set[str] = set()

    def live(self) -> None:
        admin = AdminClient(IMPATIENT | self.scene.config)
        while not self.stopping.is_set():
            if not self.recreate(admin):
                return
            self.write()
            self.stopping.wait(self.dice.uniform(0, REST_SECONDS_MAX))
            self.delete_records(admin, self.read())

    def recreate(self, admin: AdminClient) -> bool:
        """Delete the topic, if there is one, and create it; returns whether that is done.

        An answer may be lost, so the topic's id decides.
        """
        while not self.stopping.is_set():
            with contextlib.suppress(KafkaException):
                topic_id = self.topic_id(admin)
                if topic_id is None:
                    new = NewTopic(self.topic, self.scene.partitions)
                    admin.create_topics([new])[self.topic].result(ANSWER_SECONDS_MAX)
                elif topic_id in self.known_ids:
                    admin.delete_topics([self.topic])[self.topic].result(ANSWER_SECONDS_MAX)
                else:
                    self.known_ids.add(topic_id)
                    self.incarnation += 1
                    return True
                continue
            self.stopping.wait(BACK_OFF_S)
        return False

    def topic_id(self, admin: AdminClient) -> str | None:
        if self.topic not in admin.list_topics(timeout=STEP_SECONDS_MAX).topics:
            return None
        described = admin.describe_topics(TopicCollection([self.topic]))
        topic_id: Uuid = described[self.topic].result(ANSWER_SECONDS_MAX).topic_id
        return str(topic_id)

    def write(self) -> None:
        producer = self.scene.producer(message_timeout_ms=int(ANSWER_SECONDS_MAX * 1000))
        for _ in range(self.dice.randint(1, 5)):
            batch = Batch(self.scene)
            began_ns = time.monotonic_ns()
            for _ in range(self.dice.randint(1, 20)):
                batch.send(producer, self.topic, self.dice.randrange(self.scene.partitions))
            producer.flush(ANSWER_SECONDS_MAX + 5)
            sends = [send._replace(partition=self.name_of(send.partition)) for send in batch.sends]
            self.record(Kind.SEND, began_ns, outcome=batch.outcome, sends=sends, error=batch.error)
            self.pause()

    def read(self) -> list[Read]:
        """Record all that the topic holds, in one operation: half of it would prove nothing."""
        began_ns = time.monotonic_ns()
        found = [
            read for reads in read_to_end(self.scene, self.name, self.places) for read in reads
        ]
        self.record(
            Kind.POLL,
            began_ns,
            reads=[read._replace(partition=self.name_of(read.partition)) for read in found],
            moved=[self.name_of(f"{self.topic}-{place.partition}") for place in self.places],
            final=True,
        )
        return found

    def delete_records(self, admin: AdminClient, reads: list[Read]) -> None:
        """Move the start of some partitions, which the next incarnation must not inherit."""
        ends = {read.partition: read.offset + 1 for read in reads}
        cuts = [
            TopicPartition(place.topic, place.partition, self.dice.randint(0, end))
            for place in self.places
            if (end := ends.get(f"{place.topic}-{place.partition}")) is not None
        ]
        if cuts and self.dice.random() < 0.5:
            with contextlib.suppress(KafkaException):
                for deleted in admin.delete_records(cuts).values():
                    deleted.result(ANSWER_SECONDS_MAX)

    def name_of(self, partition: str) -> str:
        return incarnation(partition, self.incarnation)
