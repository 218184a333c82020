"""What operators do to topics of events."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as AdminTopic

from tests.peers.patience import PATIENCE_SECONDS


class Operator:
    def __init__(self, bootstrap_servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def recreate(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Delete a topic, and create it again with the settings, those of events by default."""
        self._admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        events = {"millstream.conditional.append": "version", "retention.ms": "-1"}
        config = dict(events if settings is None else settings)
        new = AdminTopic(topic, partitions, config=config)
        self._admin.create_topics([new])[topic].result(PATIENCE_SECONDS)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)

    def delete_records(self, topic: str, before: int) -> None:
        """Of partition 0."""
        asked = [TopicPartition(topic, 0, before)]
        for future in self._admin.delete_records(asked).values():
            future.result(PATIENCE_SECONDS)

    def alter(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(PATIENCE_SECONDS)

    def add_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_SECONDS)

    def force_partitions(self, topic: str, count: int) -> None:
        """Where the broker would refuse that, because of conditional append."""
        self.alter(topic, "millstream.conditional.append", "none")
        self.add_partitions(topic, count)
        self.alter(topic, "millstream.conditional.append", "version")
