"""Offsets of many partitions at once: where their logs begin and end, and those of a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from millstream.partitions import TopicPartition

NONE_AS_NEW = -1  # no record has this timestamp or a later one


def list_offsets(
    cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The first offset with at least this timestamp, or -1; EARLIEST and LATEST are timestamps,
    too. With `read_committed`, LATEST is the last stable offset. One request per leader."""
    if not timestamps_ms:
        return {}
    return cluster.retrying(lambda: _ask_leaders(cluster, timestamps_ms, read_committed))


def log_bounds(
    cluster: Cluster, places: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end of each partition."""
    places = list(places)
    starts = list_offsets(cluster, dict.fromkeys(places, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(places, LATEST), read_committed=read_committed)
    return {it: (min(starts[it], ends[it]), ends[it]) for it in places}


def _ask_leaders(
    cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, int]:
    by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for (topic, partition), timestamp in timestamps_ms.items():
        topics = by_leader.setdefault(cluster.leader(topic, partition), {})
        topics.setdefault(topic, []).append((partition, timestamp))
    found: dict[TopicPartition, int] = {}
    for leader, topics in by_leader.items():
        answer = cluster.connection(leader).call("list_offsets", _request(topics, read_committed))
        for topic in answer.topics:
            for it in topic.partitions:
                what = f"offsets of {topic.name}-{it.partition_index}"
                check(it.error_code, what, "list_offsets")
                found[topic.name, int(it.partition_index)] = int(it.offset)
    return found


def _request(
    topics: Mapping[str, list[tuple[int, int]]], read_committed: bool
) -> Mapping[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": it, "current_leader_epoch": -1, "timestamp": timestamp}
                    for it, timestamp in partitions
                ],
            }
            for name, partitions in topics.items()
        ],
    }
