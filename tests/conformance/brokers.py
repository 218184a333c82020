"""The broker under test, as every conformance test sees it: an address, and small conveniences."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from millstream.broker.coordinators.key_hash import partition_for
from tests.conformance.differences import DIFFERENCES
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server
from tests.peers.transactional import GROUP, TRANSACTION, find_coordinator
from tests.peers.wire import Wire

# Both brokers get the same settings: short waits, so that tests are quick.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "5000",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
    "offsets.topic.num.partitions": "5",
    "socket.request.max.bytes": "10485760",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

_LATEST = OffsetSpec.latest()
TRANSACTION_STATE = "__transaction_state"
_names = itertools.count()
_is_here: list[Callable[[str], bool]] = []  # what names have to be, if a test needs it


@dataclass
class BrokerUnderTest:
    """With `is_one_worker`, the last one of several: topics are created there, so that requests by
    raw wire reach their leader; after `choose_names`, also the coordinator of transactions."""

    server: Server
    is_one_worker: bool = False

    @property
    def bootstrap(self) -> str:
        return self._worker[1] if self.is_one_worker else self.server.bootstrap

    @property
    def node_id(self) -> int:
        return self._worker[0] if self.is_one_worker else 1

    def coordinator(self, group: str) -> str:
        """Where a group has its coordinator: maybe on another worker."""
        with Wire(self.bootstrap) as wire:
            return find_coordinator(wire, group, GROUP)

    @cached_property
    def _worker(self) -> tuple[int, str]:
        """Its id and its own address."""
        with Wire(self.server.bootstrap) as wire:
            brokers = wire.call("metadata", 9, topics=()).brokers
        assert len(brokers) == self.server.brokers
        last = max(brokers, key=lambda it: it.node_id)
        return last.node_id, f"{last.host}:{last.port}"

    def choose_names(self) -> None:
        """From now on, transactional ids with a unique name have their coordinators on this broker,
        if it is one of several workers."""
        _is_here.clear()  # another broker's partitions may lie elsewhere
        if self.is_one_worker:
            leaders = self._transaction_leaders
            _is_here.append(lambda it: leaders[partition_for(it, len(leaders))] == self.node_id)

    @cached_property
    def _transaction_leaders(self) -> dict[int, int]:
        """The broker that coordinates each partition of transactions."""
        with Wire(self.bootstrap) as wire:
            find_coordinator(wire, "any", TRANSACTION)

            def leaders() -> dict[int, int]:
                answer = wire.call("metadata", 9, topics=({"name": TRANSACTION_STATE},))
                return {it.partition_index: it.leader_id for it in answer.topics[0].partitions}

            wait_until(lambda: self.node_id in leaders().values() and -1 not in leaders().values())
            return leaders()

    def expects(self, difference: str) -> Any:
        """What this broker does where the two differ."""
        entry = DIFFERENCES[difference]
        return entry.millstream if self.server.kind == "millstream" else entry.kafka

    def config(self, **settings: Any) -> dict[str, Any]:
        """A confluent-kafka configuration; `linger_ms=5` becomes `linger.ms`."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **named}

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.config())

    def create_topic(
        self, partitions: int = 1, name: str | None = None, **config: str | int
    ) -> str:
        """A fresh topic; `segment_bytes=1048576` becomes the setting `segment.bytes`."""
        name = name or unique("topic")
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        if self.is_one_worker:
            places = [[self._worker[0]]] * partitions
            topic = NewTopic(name, partitions, replica_assignment=places, config=settings)
        else:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([topic])[name].result(PATIENCE_SECONDS)
        self.await_leaders(name, partitions)
        return name

    def await_leaders(self, topic: str, partitions: int) -> None:
        """Wait until every partition serves: Apache Kafka answers a creation before that."""
        if self.server.brokers > 1:  # the client finds the leaders, and tries again
            latest = {TopicPartition(topic, index): _LATEST for index in range(partitions)}
            for offset in self.admin.list_offsets(latest).values():
                offset.result(PATIENCE_SECONDS)
            return
        asked = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        topics = ({"name": topic, "partitions": asked},)
        with Wire(self.bootstrap) as wire:

            def all_serve() -> bool:
                answer = wire.call("list_offsets", 5, replica_id=-1, topics=topics)
                return all(part.error_code == 0 for part in answer.topics[0].partitions)

            wait_until(all_serve)

    def topic_id(self, topic: str) -> uuid.UUID:
        with Wire(self.bootstrap) as wire:
            answer = wire.call("metadata", 12, topics=({"name": topic},))
        topic_id: uuid.UUID = answer.topics[0].topic_id
        return topic_id


def unique(prefix: str) -> str:
    """A name no other test in any worker uses."""
    while True:
        name = f"{prefix}-{os.getpid()}-{next(_names)}"
        if all(condition(name) for condition in _is_here):
            return name
