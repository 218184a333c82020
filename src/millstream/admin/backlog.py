"""The backlog policy of a topic, and what groups have not read of it.

Computed from what any client may ask for: settings, offsets of groups, sizes of logs, and the
oldest unread record. The size of a backlog is an estimate, from the average size of the
partition's records, and unknown to a user who may not describe the cluster. The leader measures it
exactly, and after a policy has applied, it continues to until a tenth of the bound is free again.
Clients cannot know when a group has committed: one without members may not count any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from millstream.admin.groups import SHARE, committed_offsets, list_groups
from millstream.admin.lag import timestamps_at
from millstream.admin.log_dirs import log_dirs
from millstream.admin.share_groups import start_offsets
from millstream.client.cluster import Cluster
from millstream.config.backlog import AGE, BYTES, EVERY_GROUP, GROUPS, IDLE, POLICY, BacklogPolicy
from millstream.config.topic import NO_BOUND, RETAIN
from millstream.models import dataclass

APPLIES = {"hold": "holds producers", "reject": "rejects producers", "drop": "drops records"}
UNLESS_IDLE = " unless idle"
WITHIN, UNKNOWN = "within", "unknown"
WITHOUT_MEMBERS = ("empty", "dead")

Place = tuple[str, int]


class Extent(NamedTuple):
    """A partition: its log, and the bytes of it where they are known."""

    partition: int
    leader: int
    start: int
    end: int
    bytes: int | None = None


@dataclass(frozen=True)
class Positions:
    """How far the groups that count by their names are in the topic. Partitions that are not in it
    are read to their end."""

    by_group: Mapping[str, Mapping[Place, int]]
    idle: frozenset[str] = frozenset()  # those without members


@dataclass(frozen=True)
class PartitionBacklog:
    """What the slowest group has not read of a partition; no group: all have read everything."""

    partition: int
    group: str | None
    records: int
    bytes: int | None
    age_ms: int
    used: float | None  # of the bound; from 1 on, the policy applies
    state: str

    @property
    def is_applied(self) -> bool:
        return self.state not in (WITHIN, UNKNOWN)


@dataclass(frozen=True)
class Backlog:
    """The policy, and the slowest group of each partition."""

    policy: str
    bytes_max: int | None
    ms_max: int | None
    groups: list[str]  # names and patterns of those that count
    groups_found: list[str]
    partitions: list[PartitionBacklog] = field(default_factory=list)


def policy_in(settings: Mapping[str, str | None]) -> BacklogPolicy | None:
    """The policy in a topic's settings; None for retain, and for other brokers' topics."""
    if (settings.get(POLICY) or RETAIN) == RETAIN:
        return None
    groups = tuple(filter(None, (settings[GROUPS] or "").split(",")))
    return BacklogPolicy(
        settings[POLICY] or RETAIN,
        int(settings[BYTES] or NO_BOUND),
        int(settings[AGE] or NO_BOUND),
        groups or EVERY_GROUP,
        int(settings[IDLE] or 0),
    )


def describe_backlog(
    cluster: Cluster,
    topic: str,
    policy: BacklogPolicy,
    partitions: Sequence[Extent],
    positions: Positions | None = None,
) -> Backlog:
    """The backlog of each partition. `positions`: if they are known already."""
    if positions is None:
        positions = group_positions(cluster, topic, policy)
    slowest: dict[int, tuple[int, str]] = {}  # offset and group, by partition
    for it in partitions:
        behind = [
            (max(offset, it.start), group)
            for group, offsets in positions.by_group.items()
            for offset in [offsets.get((topic, it.partition), it.end)]
            if offset < it.end
        ]
        if behind:
            slowest[it.partition] = min(behind)
    unread = {(topic, index): offset for index, (offset, _) in slowest.items()}
    oldest = timestamps_at(cluster, unread)
    now_ms = round(time.time() * 1000)
    rows = []
    for it in partitions:
        offset, group = slowest.get(it.partition, (it.end, None))
        place = (topic, it.partition)
        age_ms = max(now_ms - oldest[place], 0) if place in oldest else 0
        records = it.end - offset
        size = unread_bytes(records, it.end - it.start, it.bytes)
        used = used_of(policy, size, age_ms)
        state = state_of(policy, used, has_members=group not in positions.idle)
        rows.append(PartitionBacklog(it.partition, group, records, size, age_ms, used, state))
    return Backlog(
        policy.kind,
        None if policy.bytes_max == NO_BOUND else policy.bytes_max,
        None if policy.age_ms_max == NO_BOUND else policy.age_ms_max,
        list(policy.groups),
        sorted(positions.by_group),
        rows,
    )


def unread_bytes(unread: int, records: int, log_bytes: int | None) -> int | None:
    """An estimate; None if it is not known."""
    if not unread:
        return 0
    return None if log_bytes is None else unread * log_bytes // records


def used_of(policy: BacklogPolicy, size: int | None, age_ms: int) -> float | None:
    """What a backlog uses of its bound; None if that is not known."""
    used = policy.usage(size or 0, age_ms)
    is_known = used >= 1 or size is not None or policy.bytes_max == NO_BOUND
    return round(used, 3) if is_known else None


def state_of(policy: BacklogPolicy, used: float | None, *, has_members: bool) -> str:
    """What the policy does because of it."""
    if used is None:
        return UNKNOWN
    if used < 1:
        return WITHIN
    return APPLIES[policy.kind] + ("" if has_members else UNLESS_IDLE)


def group_positions(cluster: Cluster, topic: str, policy: BacklogPolicy) -> Positions:
    """What the groups that count by their names have committed in the topic."""
    found: dict[str, Mapping[Place, int]] = {}
    idle = set()
    for row in list_groups(cluster):
        if not policy.counts(row.group):
            continue
        read = start_offsets if row.type == SHARE else committed_offsets
        offsets = read(cluster, row.group)
        if any(place[0] == topic for place in offsets):
            found[row.group] = offsets
            if row.state in WITHOUT_MEMBERS:
                idle.add(row.group)
    return Positions(found, frozenset(idle))


def with_sizes(cluster: Cluster, topic: str, partitions: Iterable[Extent]) -> list[Extent]:
    """The same with the bytes of their logs at their leaders, where the user may know them."""
    rows = list(partitions)
    leaders = sorted({it.leader for it in rows if it.leader >= 0})
    found = log_dirs(cluster, leaders, [(topic, it.partition) for it in rows])
    sizes = {(it.partition, it.broker): it.bytes for it in found.replicas}
    return [it._replace(bytes=sizes.get((it.partition, it.leader))) for it in rows]
