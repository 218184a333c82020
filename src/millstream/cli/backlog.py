"""The backlog policy of a topic, as `millstream topic describe` shows it.

Computed from what any client may ask for: settings, offsets of groups, sizes of logs, and the
oldest unread record. The size of a backlog is an estimate, from the average size of the
partition's records. The leader measures it exactly, and after a policy has applied, it continues to
until a tenth of the bound is free again.
"""

from __future__ import annotations

import time
from typing import Any

from millstream.cli.cluster import Cluster, Partition
from millstream.cli.group import listed_groups
from millstream.cli.lag import committed_offsets, oldest_unread_ms
from millstream.cli.moments import show_span
from millstream.cli.output import print_pairs, print_rows
from millstream.cli.share import start_offsets
from millstream.config.backlog import AGE, BYTES, EVERY_GROUP, GROUPS, IDLE, POLICY, BacklogPolicy
from millstream.config.topic import NO_BOUND, RETAIN

APPLIES = {"hold": "holds producers", "reject": "rejects producers", "drop": "drops records"}


def describe_backlog(
    cluster: Cluster, topic: str, settings: dict[str, str], partitions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The policy, and the slowest group of each partition; None for a topic that retains.

    `partitions` are rows with the partition's number, leader, start and end.
    """
    policy = policy_in(settings)
    if policy is None:
        return None
    positions = group_positions(cluster, topic, policy)
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
    oldest = oldest_unread_ms(cluster, {(topic, p): offset for p, (offset, _) in slowest.items()})
    now_ms = round(time.time() * 1000)
    rows = []
    for row in partitions:
        index = row["partition"]
        offset, group = slowest.get(index, (row["end"], None))
        unread = row["end"] - offset
        size = unread * sizes.get(index, 0) // max(row["end"] - row["start"], 1)
        age_ms = max(now_ms - oldest[topic, index], 0) if (topic, index) in oldest else 0
        rows.append(
            {
                "partition": index,
                "group": group,
                "records": unread,
                "bytes": size,
                "age_ms": age_ms,
                "used": round(policy.usage(size, age_ms), 3),
                "state": APPLIES[policy.kind] if policy.usage(size, age_ms) >= 1 else "within",
            }
        )
    return {
        "policy": policy.kind,
        "bytes_max": None if policy.bytes_max == NO_BOUND else policy.bytes_max,
        "ms_max": None if policy.age_ms_max == NO_BOUND else policy.age_ms_max,
        "groups": list(policy.groups),
        "groups_found": sorted(positions),
        "partitions": rows,
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
) -> dict[str, dict[Partition, int]]:
    """What the groups that count by their names have committed in the topic."""
    found = {}
    for row in listed_groups(cluster):
        if not policy.counts(row["group"]):
            continue
        read = start_offsets if row["type"] == "share" else committed_offsets
        offsets = read(cluster, row["group"])
        if any(place[0] == topic for place in offsets):
            found[row["group"]] = offsets
    return found


def log_sizes(cluster: Cluster, topic: str, partitions: list[dict[str, Any]]) -> dict[int, int]:
    """The bytes of each partition's log at its leader."""
    sizes: dict[int, int] = {}
    for leader in {row["leader"] for row in partitions if row["leader"] >= 0}:
        led = [row["partition"] for row in partitions if row["leader"] == leader]
        asked = {"topics": [{"topic": topic, "partitions": led}]}
        answer = cluster.protocol.ask_broker(leader, "describe_log_dirs", asked)
        for directory in answer.results:
            for described in directory.topics:
                for it in described.partitions:
                    sizes[int(it.partition_index)] = int(it.partition_size)
    return sizes


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
        row | {"age": show_span(row["age_ms"]), "share": f"{row['used']:.0%}"}
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
