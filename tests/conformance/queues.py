"""Queues for tests: a topic with records in it, and a share group that begins with the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.share_consumers import SHARE_CLIENTS, ShareConsumer
from tests.peers.wire import Wire, batch, produce_fields

# Short times, so that tests are quick.
QUEUE_SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "5000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.assignment.interval.ms": "0",
    "share.coordinator.state.topic.num.partitions": "3",
}


class Queue:
    """A topic, and a share group on it with these settings; `share_isolation_level="..."`."""

    def __init__(self, broker: BrokerUnderTest, *, partitions: int = 1, **settings: Any) -> None:
        self.broker = broker
        self.topic = broker.create_topic(partitions=partitions)
        self.group = unique("queue")
        self.configure(**{"share_auto_offset_reset": "earliest"} | settings)

    def produce(self, *values: str, partition: int = 0) -> None:
        """All of them in one batch."""
        records = batch([value.encode() for value in values])
        fields = produce_fields(self.topic, records, partition=partition)
        with Wire(self.broker.bootstrap) as wire:
            answer = wire.call("produce", 9, **fields)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def produce_each(self, values: Iterable[str], partition: int = 0) -> None:
        """Each in a batch of its own."""
        for value in values:
            self.produce(value, partition=partition)

    def configure(self, **settings: Any) -> None:
        configure_group(self.broker, self.group, **settings)

    def in_state(self, state: int) -> set[int]:
        """The offsets of partition 0 whose delivery has this state, as far as it is persisted."""
        return {
            offset
            for it in self._read_state().state_batches
            if it.delivery_state == state
            for offset in range(it.first_offset, it.last_offset + 1)
        }

    def start_offset(self) -> int:
        """Everything before it is done with."""
        return int(self._read_state().start_offset)

    def member_count(self) -> int:
        with Wire(self.broker.bootstrap) as wire:
            answer = wire.call(
                "share_group_describe",
                1,
                group_ids=(self.group,),
                include_authorized_operations=False,
            )
        return len(answer.groups[0].members)

    def _read_state(self) -> Any:
        asked = {"partition": 0, "leader_epoch": -1}
        topics = ({"topic_id": self.broker.topic_id(self.topic), "partitions": (asked,)},)
        with Wire(self.broker.bootstrap) as wire:
            answer = wire.call("read_share_group_state", 0, group_id=self.group, topics=topics)
        (partition,) = answer.results[0].partitions
        assert partition.error_code == 0, partition
        return partition

    def join(self, client: str = "confluent", **config: Any) -> ShareConsumer:
        return SHARE_CLIENTS[client].join(self.broker.bootstrap, self.topic, self.group, **config)


def configure_group(broker: BrokerUnderTest, group: str, **settings: Any) -> None:
    """Set and wait until it is known: Apache Kafka applies it a moment after it answers."""
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    broker.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)

    def is_known() -> bool:
        asked = ConfigResource(ResourceType.GROUP, group)
        known = broker.admin.describe_configs([asked])[asked].result(PATIENCE_SECONDS)
        return all(known[entry.name].value == entry.value for entry in entries)

    wait_until(is_known)


def delete_if_empty(broker: BrokerUnderTest, group: str) -> bool:
    """Delete the group, unless it still has members. Returns whether it is deleted."""
    try:
        broker.admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NON_EMPTY_GROUP:
            raise
        return False
    return True
