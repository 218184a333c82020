"""How far replicas are behind their leaders.

The ends of logs come from ListOffsets with the replica id of tools, -2: every replica answers it
with the end of its log, in Apache Kafka too. (DescribeLogDirs has a field for the lag of a replica,
but a follower reports 0 there: it cannot know of records that it has not fetched.) Leaders are
asked first, so a lag is a number of records that a follower has not got since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.admin.cluster_state import ClusterState
    from millstream.client.cluster import Cluster

TOOL_REPLICA_ID = -2
LATEST = -1
TIMEOUT_SECONDS = 10.0  # a broker that needs longer counts as one that does not answer


class Replica(NamedTuple):
    broker: int
    topic: str
    partition: int


class ReplicaLag(NamedTuple):
    """`lag` is None if the replica, or its leader, does not answer."""

    replica: Replica
    lag: int | None
    is_in_sync: bool


def replica_lags(cluster: Cluster, state: ClusterState) -> list[ReplicaLag]:
    """All followers of the cluster."""
    cluster.request_timeout_seconds = min(cluster.request_timeout_seconds, TIMEOUT_SECONDS)
    followers = {
        Replica(broker, it.topic, it.index): it
        for topic in state.topics.values()
        for it in topic.partitions
        for broker in it.replicas
        if broker != it.leader and len(it.replicas) > 1
    }
    leaders = {it: it._replace(broker=partition.leader) for it, partition in followers.items()}
    ends = log_ends(cluster, {leader for leader in leaders.values() if leader.broker >= 0})
    ends |= log_ends(cluster, followers)
    return [
        ReplicaLag(
            follower,
            _difference(ends.get(leaders[follower]), ends.get(follower)),
            follower.broker in partition.in_sync,
        )
        for follower, partition in followers.items()
    ]


def _difference(leader: int | None, follower: int | None) -> int | None:
    return None if leader is None or follower is None else max(leader - follower, 0)


def log_ends(cluster: Cluster, replicas: Iterable[Replica]) -> dict[Replica, int]:
    """The log ends of those replicas whose brokers answer."""
    by_broker: dict[int, dict[str, list[int]]] = {}
    for broker, topic, index in replicas:
        by_broker.setdefault(broker, {}).setdefault(topic, []).append(index)
    known = cluster.broker_ids(seconds_old_max=TIMEOUT_SECONDS) if by_broker else ()
    ends: dict[Replica, int] = {}
    for broker in sorted(by_broker.keys() & set(known)):
        try:
            ends.update(_ask(cluster, broker, by_broker[broker]))
        except (OSError, ApiError):
            continue
    return ends


def _ask(
    cluster: Cluster, broker: int, wanted: Mapping[str, list[int]]
) -> Iterator[tuple[Replica, int]]:
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": it, "timestamp": LATEST} for it in indexes],
        }
        for topic, indexes in wanted.items()
    ]
    fields = {"replica_id": TOOL_REPLICA_ID, "isolation_level": 0, "topics": topics}
    answer = cluster.connection(broker).call("list_offsets", fields)
    for topic in answer.topics:
        for it in topic.partitions:
            if it.error_code is ErrorCode.NONE:
                yield Replica(broker, str(topic.name), int(it.partition_index)), int(it.offset)
