"""A cluster at one moment, from one Metadata request about all topics: brokers, topics, partitions,
and the partitions that need attention.

A partition is offline if it has no leader, under-replicated if a replica is not in sync, and not
preferred if another replica than its first leads it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

NO_LEADER = -1
OFFLINE, UNDER_REPLICATED, NOT_PREFERRED = "offline", "under-replicated", "not preferred"
STATES = (OFFLINE, UNDER_REPLICATED, NOT_PREFERRED)  # the worst first


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A live broker, and how many partitions it leads and has replicas of."""

    id: int
    host: str
    port: int
    rack: str | None
    leads: int = 0
    replicas: int = 0
    in_sync: int = 0
    is_controller: bool = False

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionState:
    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def state(self) -> str | None:
        """What is wrong with the partition; the worst first."""
        if self.leader == NO_LEADER:
            return OFFLINE
        if len(self.in_sync) < len(self.replicas):
            return UNDER_REPLICATED
        if self.replicas and self.leader != self.replicas[0]:
            return NOT_PREFERRED
        return None


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    id: str
    is_internal: bool
    partitions: tuple[PartitionState, ...]

    @property
    def replicas(self) -> int:
        """The largest number of replicas of a partition."""
        return max((len(it.replicas) for it in self.partitions), default=0)

    @property
    def state(self) -> str | None:
        """The worst of its partitions' states."""
        found = {it.state for it in self.partitions}
        return next((it for it in STATES if it in found), None)


@dataclass(frozen=True)
class ClusterState:
    cluster_id: str
    controller: int
    brokers: tuple[BrokerState, ...]
    topics: dict[str, TopicState] = field(repr=False)

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @cached_property
    def gone(self) -> list[int]:
        """Brokers that have replicas and are not live."""
        live = {it.id for it in self.brokers}
        found = {
            broker
            for topic in self.topics.values()
            for it in topic.partitions
            for broker in it.replicas
        }
        return sorted(found - live)

    @cached_property
    def attention(self) -> list[PartitionState]:
        """The partitions that need attention, by topic and number."""
        return [it for topic in self.topics.values() for it in topic.partitions if it.state]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many partitions are in each of `STATES`."""
        return Counter(it.state for it in self.attention if it.state)

    @cached_property
    def leaders(self) -> dict[tuple[str, int], int]:
        """The leader of each partition."""
        return {
            (it.topic, it.index): it.leader
            for topic in self.topics.values()
            for it in topic.partitions
        }


def cluster_state(cluster: Cluster) -> ClusterState:
    """The cluster as the user sees it: topics without the right to describe them are missing."""
    cluster.broker_ids()  # their addresses; and retries until a broker answers
    fields = {"topics": None, "allow_auto_topic_creation": False}
    return parse_metadata(
        cluster.retrying(lambda: cluster.any_connection().call("metadata", fields))
    )


def topic_state(cluster: Cluster, name: str) -> TopicState:
    """One topic. Raises `ApiError` if there is none, or the user may not describe it."""
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    cluster.broker_ids(seconds_old_max=1.0)  # their addresses
    answer = cluster.retrying(lambda: cluster.any_connection().call("metadata", fields))
    found = answer.topics[0]
    if found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise ApiError(found.error_code, f"there is no topic {name}")
    if found.error_code is not ErrorCode.LEADER_NOT_AVAILABLE:
        check(found.error_code, f"topic {name}", "metadata")
    return _topic(found)


def parse_metadata(metadata: Any) -> ClusterState:
    """The answer to a Metadata request about all topics."""
    topics = {it.name: it for it in sorted(map(_topic, metadata.topics), key=lambda it: it.name)}
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for topic in topics.values():
        for partition in topic.partitions:
            leads[partition.leader] += 1
            replicas.update(partition.replicas)
            in_sync.update(partition.in_sync)
    brokers = [
        BrokerState(
            int(it.node_id),
            str(it.host),
            int(it.port),
            it.rack,
            leads[it.node_id],
            replicas[it.node_id],
            in_sync[it.node_id],
            it.node_id == metadata.controller_id,
        )
        for it in sorted(metadata.brokers, key=lambda it: int(it.node_id))
    ]
    return ClusterState(
        str(metadata.cluster_id or ""), int(metadata.controller_id), tuple(brokers), topics
    )


def _topic(topic: Any) -> TopicState:
    name = str(topic.name)
    partitions = [
        PartitionState(
            name,
            int(it.partition_index),
            int(it.leader_id),
            int(it.leader_epoch),
            tuple(map(int, it.replica_nodes)),
            tuple(map(int, it.isr_nodes)),
        )
        for it in topic.partitions
    ]
    partitions.sort(key=lambda it: it.index)
    return TopicState(name, str(topic.topic_id or ""), bool(topic.is_internal), tuple(partitions))
