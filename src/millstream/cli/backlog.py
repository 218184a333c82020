"""The backlog policy of a topic, as `millstream topic describe` shows it.

Computed from what any client may ask for: settings, offsets of groups, sizes of logs, and the
oldest unread record. The size of a backlog is an estimate, from the average size of the
partition's records, and unknown to a user who may not describe the cluster. The leader measures it
exactly, and after a policy has applied, it continues to until a tenth of the bound is free again.
Clients cannot know when a group has committed: one without members may not count any more.
"""

from __future__ import annotations

import time
from typing import Any

from millstream.admin.groups import SHARE, committed_offsets, list_groups
from millstream.admin.lag import timestamps_at
from millstream.admin.moments import show_span
from millstream.admin.share_groups import start_offsets
from millstream.cli.cluster import Cluster, Partition
from millstream.cli.output import print_pairs, print_rows
from millstream.config.backlog import AGE, BYTES, EVERY_GROUP, GROUPS, IDLE, POLICY, BacklogPolicy
from millstream.config.topic import NO_BOUND, RETAIN

APPLIES = {"hold": "holds producers", "reject": "rejects producers", "drop": "drops records"}
UNLESS_IDLE = " unless idle"
WITHOUT_MEMBERS = ("empty", "dead")


def describe_backlog(
    cluster: Cluster, topic: str, settings: dict[str, str], partitions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The policy, and the slowest group of each partition; None for a topic that retains.

    `partitions` are rows with the partition's number, leader, start and end.
    """
    policy = policy_in(settings)
    if policy is None:
        return None
    positions, idle = group_positions(cluster, topic, policy)
    sizes = log_sizes(cluster, topic, partitions)
    slowest: dict[int, tuple[int, str]] = {}  # offset and group, by partition
    for row in partitions:
        index = row["partition"]
        behind = [
            (max(offset, row["start"]), group)
            for group, offsets in positions.items()
            for offset in [offsets.get((topic, index), row["end"])]
            if offset < row["end"]
        ]
        if behind:
            slowest[index] = min(behind)
    unread = {(topic, p): offset for p, (offset, _) in slowest.items()}
    oldest = timestamps_at(cluster.protocol, unread)
    now_ms = round(time.time() * 1000)
    rows = []
    for row in partitions:
        index = row["partition"]
        offset, group = slowest.get(index, (row["end"], None))
        age_ms = max(now_ms - oldest[topic, index], 0) if (topic, index) in oldest else 0
        counted = {"partition": index, "group": group, "records": row["end"] - offset}
        size = unread_bytes(counted["records"], row["end"] - row["start"], sizes.get(index))
        rows.append(counted | used_of(policy, size, age_ms, has_members=group not in idle))
    return {
        "policy": policy.kind,
        "bytes_max": None if policy.bytes_max == NO_BOUND else policy.bytes_max,
        "ms_max": None if policy.age_ms_max == NO_BOUND else policy.age_ms_max,
        "groups": list(policy.groups),
        "groups_found": sorted(positions),
        "partitions": rows,
    }


def unread_bytes(unread: int, records: int, log_bytes: int | None) -> int | None:
    """An estimate; None if it is not known."""
    if not unread:
        return 0
    return None if log_bytes is None else unread * log_bytes // records


def used_of(
    policy: BacklogPolicy, size: int | None, age_ms: int, *, has_members: bool
) -> dict[str, Any]:
    """What a backlog uses of its bound, and so the state of the policy."""
    used = policy.usage(size or 0, age_ms)
    is_known = used >= 1 or size is not None or policy.bytes_max == NO_BOUND
    state = "within" if is_known else "unknown"
    if used >= 1:
        state = APPLIES[policy.kind] + ("" if has_members else UNLESS_IDLE)
    return {
        "bytes": size,
        "age_ms": age_ms,
        "used": round(used, 3) if is_known else None,
        "state": state,
    }


def policy_in(settings: dict[str, str]) -> BacklogPolicy | None:
    """The policy in a topic's settings; None for retain, and for other brokers' topics."""
    if settings.get(POLICY, RETAIN) == RETAIN:
        return None
    groups = tuple(filter(None, settings[GROUPS].split(",")))
    return BacklogPolicy(
        settings[POLICY],
        int(settings[BYTES]),
        int(settings[AGE]),
        groups or EVERY_GROUP,
        int(settings[IDLE]),
    )


def group_positions(
    cluster: Cluster, topic: str, policy: BacklogPolicy
) -> tuple[dict[str, dict[Partition, int]], set[str]]:
    """What the groups that count by their names have committed in the topic, and those of them
    without members."""
    found, idle = {}, set()
    for row in list_groups(cluster.protocol):
        if not policy.counts(row.group):
            continue
        read = start_offsets if row.type == SHARE else committed_offsets
        offsets = read(cluster.protocol, row.group)
        if any(place[0] == topic for place in offsets):
            found[row.group] = offsets
            if row.state in WITHOUT_MEMBERS:
                idle.add(row.group)
    return found, idle


def log_sizes(cluster: Cluster, topic: str, partitions: list[dict[str, Any]]) -> dict[int, int]:
    """The bytes of each partition's log at its leader, where the user may know it."""
    sizes: dict[int, int] = {}
    for leader in {row["leader"] for row in partitions if row["leader"] >= 0}:
        led = [row["partition"] for row in partitions if row["leader"] == leader]
        asked = {"topics": [{"topic": topic, "partitions": led}]}
        answer = cluster.protocol.ask_broker(leader, "describe_log_dirs", asked)
        sizes |= sizes_in(answer)  # nothing, if it is refused
    return sizes


def sizes_in(answer: Any) -> dict[int, int]:
    """By partition, without copies on their way to another directory."""
    return {
        int(it.partition_index): int(it.partition_size)
        for directory in answer.results
        for described in directory.topics
        for it in described.partitions
        if not it.is_future_key
    }


def show_backlog(backlog: dict[str, Any]) -> None:
    bounds = []
    if backlog["bytes_max"] is not None:
        bounds.append(f"{backlog['bytes_max']} bytes")
    if backlog["ms_max"] is not None:
        bounds.append(show_span(backlog["ms_max"]))
    print_pairs(
        [
            ("backlog policy", f"{backlog['policy']}, from {' or '.join(bounds)} on"),
            ("groups that count", ", ".join(backlog["groups"])),
        ]
    )
    rows = [
        row
        | {
            "age": show_span(row["age_ms"]),
            "share": "" if row["used"] is None else f"{row['used']:.0%}",
        }
        for row in backlog["partitions"]
    ]
    columns = {
        "partition": "PARTITION",
        "state": "STATE",
        "group": "SLOWEST GROUP",
        "records": "UNREAD",
        "bytes": "BYTES (ABOUT)",
        "age": "AGE",
        "share": "OF BOUND",
    }
    print_rows(rows, columns, empty="")
