"""The lag of a group, and records that retention deletes before they are read.

lag      end - committed: records still to read
lost     log start - committed, where positive: records that retention deleted unread
expires  when retention reaches the oldest unread record, by `retention.ms` and its timestamp
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Partition, is_refused
from millstream.cli.moments import show_span

READ_TIMEOUT_S = 5.0
WARN_BELOW_SHARE = 0.2  # of retention.ms: less than this left is worth a warning


@dataclass(frozen=True)
class PartitionLag:
    """One group's position in one partition."""

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    expires_in_ms: int | None = None  # until retention reaches the oldest unread record
    retention_ms: int = -1
    member: str = ""

    @property
    def lag(self) -> int | None:
        return (
            None if self.committed is None else max(0, self.end - max(self.committed, self.start))
        )

    @property
    def lost(self) -> int:
        return 0 if self.committed is None else max(0, self.start - self.committed)

    @property
    def warning(self) -> str:
        """A warning for the operator; empty if there is none."""
        if self.lost:
            return f"retention deleted {self.lost} unread records"
        left = self.expires_in_ms
        if left is not None and left < self.retention_ms * WARN_BELOW_SHARE:
            return f"retention reaches unread records in {show_span(left)}"
        return ""

    def as_row(self) -> dict[str, Any]:
        return asdict(self) | {"lag": self.lag, "lost": self.lost, "warning": self.warning}


def committed_offsets(cluster: Cluster, group: str) -> dict[Partition, int]:
    """What the group has committed, by partition."""
    request = [ConsumerGroupTopicPartitions(group)]
    future = cluster.admin.list_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)[
        group
    ]
    return {
        (place.topic, place.partition): place.offset
        for place in future.result().topic_partitions
        if place.offset >= 0
    }


def group_lag(cluster: Cluster, group: str, members: dict[Partition, str]) -> list[PartitionLag]:
    """The group's position in every partition it has committed to or been assigned."""
    committed = committed_offsets(cluster, group)
    known = cluster.metadata().topics
    places = sorted(
        (topic, index)
        for topic, index in committed.keys() | members.keys()
        if topic in known and index in known[topic].partitions
    )
    starts = cluster.start_offsets(places)
    ends = cluster.end_offsets(places)
    unread = [p for p in places if p in committed and max(committed[p], starts[p]) < ends[p]]
    retention_ms = {topic: topic_retention_ms(cluster, topic) for topic in {t for t, _ in unread}}
    ageing = [place for place in unread if retention_ms[place[0]] >= 0]
    oldest = oldest_unread_ms(cluster, {p: max(committed[p], starts[p]) for p in ageing})
    now_ms = round(time.time() * 1000)
    return [
        PartitionLag(
            topic=place[0],
            partition=place[1],
            committed=committed.get(place),
            start=starts[place],
            end=ends[place],
            expires_in_ms=oldest[place] + retention_ms[place[0]] - now_ms
            if place in oldest
            else None,
            retention_ms=retention_ms.get(place[0], -1),
            member=members.get(place, ""),
        )
        for place in places
    ]


def topic_retention_ms(cluster: Cluster, topic: str) -> int:
    """`retention.ms` where the topic deletes by age and the user may know, else -1."""
    try:
        settings = cluster.settings_of(topic)
    except KafkaException as error:
        if is_refused(error):
            return -1
        raise
    if "delete" not in settings["cleanup.policy"].value:
        return -1
    return int(settings["retention.ms"].value)


def oldest_unread_ms(cluster: Cluster, offsets: dict[Partition, int]) -> dict[Partition, int]:
    """The timestamp of the record at each offset, read without the group; some may be missing."""
    if not offsets:
        return {}
    consumer = cluster.consumer(**{"auto.offset.reset": "earliest"})
    found: dict[Partition, int] = {}
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(t, p, offset) for (t, p), offset in offsets.items()])
        while len(found) < len(offsets) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            place = (message.topic(), message.partition())
            if place not in found:
                found[place] = message.timestamp()[1]
                consumer.pause([TopicPartition(*place)])
    finally:
        consumer.close()
    return found


def warnings(lags: Iterable[PartitionLag]) -> list[str]:
    return [f"{lag.topic}[{lag.partition}]: {lag.warning}" for lag in lags if lag.warning]
