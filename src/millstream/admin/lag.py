"""The lag of groups in records and in time, and records that retention deletes unread.

lag      end - committed: records still to read
behind   how old the oldest unread record is: lag in time
lost     log start - committed, where positive: records that retention deleted unread
expires  when retention reaches the oldest unread record, by `retention.ms` and its timestamp
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millstream.admin.groups import (
    CONSUMER_PROTOCOL,
    SHARE,
    GroupDescription,
    GroupListing,
    committed_by_group,
    committed_offsets,
)
from millstream.admin.moments import show_span
from millstream.admin.offsets import EARLIEST, LATEST, find_offsets, partitions_by_leader
from millstream.admin.share_groups import share_lags
from millstream.client.cluster import Cluster
from millstream.client.fetching import FETCH_VERSION_MAX, fetch_request, timestamp_in
from millstream.errors import ErrorCode
from millstream.models import dataclass
from millstream.partitions import TopicPartition

WARN_BELOW_SHARE = 0.2  # of retention.ms: less than this left is worth a warning
TOPIC_RESOURCE = 2
REQUESTS_AT_ONCE = 50

Spot = tuple[str, int, int]
"""Topic, partition and offset."""


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
    behind_ms: int | None = None  # the age of the oldest unread record, if it is known

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


@dataclass(frozen=True)
class GroupLag:
    """What a group has to read in all its partitions."""

    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    lag: int | None  # None if nothing is committed, or if the user may not know
    lost: int
    partitions: int
    topics: tuple[str, ...]
    unread: tuple[Spot, ...] = ()  # the oldest unread record of each partition


def group_lag(
    cluster: Cluster, description: GroupDescription, *, now_ms: int | None = None
) -> list[PartitionLag]:
    """The group's position in every partition it has committed to or been assigned; partitions
    that do not answer are left out."""
    committed = committed_offsets(cluster, description.group)
    readers = description.readers
    places = sorted(committed.keys() | readers.keys())
    starts = find_offsets(cluster, dict.fromkeys(places, EARLIEST)).found
    ends = find_offsets(cluster, dict.fromkeys(places, LATEST)).found
    places = [place for place in places if place in starts and place in ends]
    oldest_offsets = {
        place: max(committed[place], starts[place])
        for place in places
        if place in committed and max(committed[place], starts[place]) < ends[place]
    }
    retention_ms = topic_retention_ms(cluster, {topic for topic, _ in oldest_offsets})
    oldest = timestamps_at(cluster, oldest_offsets)
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    lags = []
    for place in places:
        reader = readers.get(place)
        retained_ms = retention_ms.get(place[0], -1)
        known = place in oldest
        lags.append(
            PartitionLag(
                topic=place[0],
                partition=place[1],
                committed=committed.get(place),
                start=starts[place],
                end=ends[place],
                expires_in_ms=oldest[place] + retained_ms - now_ms
                if known and retained_ms >= 0
                else None,
                retention_ms=retained_ms,
                member=f"{reader.client} @ {reader.host}" if reader else "",
                behind_ms=max(0, now_ms - oldest[place]) if known else None,
            )
        )
    return lags


def group_lags(
    cluster: Cluster,
    listed: Sequence[GroupListing],
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    ends: Mapping[TopicPartition, int] | None = None,
) -> list[GroupLag]:
    """The lag of every group, with a few requests for all of them; fewer if the caller knows
    where all partitions start and end."""
    consumers = [it for it in listed if it.type != SHARE and it.protocol in (CONSUMER_PROTOCOL, "")]
    committed = committed_by_group(cluster, consumers)
    shared = share_lags(cluster, [it for it in listed if it.type == SHARE])
    places = {place for offsets in committed.values() for place in offsets}
    if starts is None:
        starts = find_offsets(cluster, dict.fromkeys(places, EARLIEST)).found
    if ends is None:
        ends = find_offsets(cluster, dict.fromkeys(places, LATEST)).found
    rows = []
    for it in listed:
        if it.type == SHARE:
            rows.append(_share_row(it, shared.get(it.group)))
        else:
            rows.append(_row(it, committed.get(it.group), starts, ends))
    return rows


def _share_row(
    listed: GroupListing, backlogs: Mapping[TopicPartition, int | None] | None
) -> GroupLag:
    known = [it for it in (backlogs or {}).values() if it is not None]
    return GroupLag(
        **asdict(listed),
        lag=sum(known) if known else None,
        lost=0,
        partitions=len(backlogs or {}),
        topics=tuple(sorted({topic for topic, _ in backlogs or {}})),
    )


def _row(
    listed: GroupListing,
    committed: Mapping[TopicPartition, int] | None,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> GroupLag:
    lag, lost, unread = 0, 0, []
    known = [place for place in committed or {} if place in starts and place in ends]
    for place in known:
        offset = (committed or {})[place]
        lost += max(0, starts[place] - offset)
        oldest = max(offset, starts[place])
        if oldest < ends[place]:
            lag += ends[place] - oldest
            unread.append((*place, oldest))
    return GroupLag(
        **asdict(listed),
        lag=lag if known else None,
        lost=lost,
        partitions=len(committed or {}),
        topics=tuple(sorted({topic for topic, _ in committed or {}})),
        unread=tuple(sorted(unread)),
    )


def topic_retention_ms(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """`retention.ms` of topics that delete by age, if the user may know it."""
    names = sorted(topics)
    if not names:
        return {}
    fields = {
        "resources": [
            {
                "resource_type": TOPIC_RESOURCE,
                "resource_name": name,
                "configuration_keys": ["retention.ms", "cleanup.policy"],
            }
            for name in names
        ]
    }
    answer = cluster.retrying(lambda: cluster.any_connection().call("describe_configs", fields))
    found = {}
    for it in answer.results:
        values = {entry.name: entry.value for entry in it.configs}
        if it.error_code is ErrorCode.NONE and "delete" in (values.get("cleanup.policy") or ""):
            found[str(it.resource_name)] = int(values.get("retention.ms") or -1)
    return found


def timestamps_at(
    cluster: Cluster, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The timestamp of the record at each offset, or of the next one; some may be missing."""
    found = timestamps_of(cluster, [(*place, offset) for place, offset in offsets.items()])
    return {(topic, index): timestamp_ms for (topic, index, _), timestamp_ms in found.items()}


def timestamps_of(
    cluster: Cluster,
    spots: Iterable[Spot],
    *,
    leaders: Mapping[TopicPartition, int] | None = None,
) -> dict[Spot, int]:
    """The same, of any number of offsets of each partition.

    Reads one batch for each, with many requests in flight. `leaders`: as in `find_offsets`.
    """
    by_place: dict[TopicPartition, list[Spot]] = {}
    for spot in spots:
        by_place.setdefault(spot[:2], []).append(spot)
    by_leader, _ = partitions_by_leader(cluster, by_place, leaders)
    found: dict[Spot, int] = {}
    for leader, places in by_leader.items():
        wanted = [spot for place in places for spot in by_place[place]]
        for first in range(0, len(wanted), REQUESTS_AT_ONCE):
            try:
                found |= _timestamps(cluster, leader, wanted[first : first + REQUESTS_AT_ONCE])
            except OSError:
                cluster.forget_all()
                break
    return found


def _timestamps(cluster: Cluster, leader: int, spots: Sequence[Spot]) -> dict[Spot, int]:
    connection = cluster.connection(leader)
    version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)
    for topic, index, offset in spots:
        connection.send_fields("fetch", version, fetch_request(topic, index, offset, bytes_max=1))
    found = {}
    for spot in spots:
        answer = connection.receive()
        for topic in answer.responses:
            for it in topic.partitions:
                if it.error_code is ErrorCode.NONE and it.records:
                    timestamp_ms = timestamp_in(it.records, spot[2])
                    if timestamp_ms is not None:
                        found[spot] = timestamp_ms
    return found


def warnings(lags: Iterable[PartitionLag]) -> list[str]:
    return [f"{lag.topic}[{lag.partition}]: {lag.warning}" for lag in lags if lag.warning]
