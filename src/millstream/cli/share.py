"""Share groups as `millstream group` shows them: members, backlog, and what is in flight.

The coordinator has the members and start offsets; the persister has the state of later records. Our
broker also reports locked records; Apache Kafka reports only persisted state, which does not
include locks.
"""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from confluent_kafka.admin import ConfigResource

from millstream.cli.cluster import Cluster, Partition
from millstream.cli.failures import CommandFailed
from millstream.cli.output import console, print_json, print_pairs, print_rows
from millstream.client.cluster import CoordinatorKind, check
from millstream.errors import ApiError, ErrorCode

NO_LEADER_EPOCH = -1  # the caller leads no partition


class Delivery(IntEnum):
    """Where a record stands, with the wire's numbers; 10 is ours, told to tools alone."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4
    DELAYED = 10


@dataclass
class SharePartition:
    """One partition as a share group consumes it."""

    topic: str
    partition: int
    start: int | None  # the first unfinished record; None before the first delivery
    end: int
    backlog: int | None  # unfinished records
    counts: Counter[Delivery] | None = None  # records in flight by state; None if unknown
    is_live: bool = False  # whether that has what members hold, or only what is persisted
    deliveries: Counter[int] = field(default_factory=Counter)  # records by how often delivered

    def add(self, batches: Iterable[Any], *, is_live: bool) -> None:
        """Take in what the persister says about the records from the start on."""
        counts: Counter[Delivery] = Counter()
        for batch in batches:
            records = int(batch.last_offset) - int(batch.first_offset) + 1
            state = Delivery(batch.delivery_state)
            counts[state] += records
            if state not in (Delivery.ACKNOWLEDGED, Delivery.ARCHIVED):
                self.deliveries[int(batch.delivery_count)] += records
        self.counts, self.is_live = counts, is_live

    def as_row(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.start,
            "end": self.end,
            "backlog": self.backlog,
            "held": counts[Delivery.ACQUIRED] if counts is not None and self.is_live else None,
            "delayed": counts[Delivery.DELAYED] if counts is not None and self.is_live else None,
            "released": None if counts is None else counts[Delivery.AVAILABLE],
            "dying": None if counts is None else counts[Delivery.ARCHIVING],
            "deliveries": {str(count): self.deliveries[count] for count in sorted(self.deliveries)},
        }


def describe_share_group(cluster: Cluster, group: str, as_json: bool) -> None:
    found = described(cluster, group)
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host.lstrip("/"),
            "partitions": [
                f"{it.topic_name}[{index}]"
                for it in member.assignment.topic_partitions
                for index in it.partitions
            ],
        }
        for member in found.members
    ]
    partitions = [it.as_row() for it in share_partitions(cluster, group)]
    facts = {
        "group": group,
        "state": found.group_state.lower(),
        "type": "share",
        "assignor": found.assignor_name,
        "coordinator": cluster.protocol.coordinator(CoordinatorKind.GROUP, group),
        "backlog": sum(row["backlog"] or 0 for row in partitions),
        "held": total(partitions, "held"),
        "delayed": total(partitions, "delayed"),
    }
    if as_json:
        print_json(facts | {"members": members, "partitions": partitions})
        return
    print_pairs(facts.items())
    console().print()
    columns = {"client": "CLIENT", "host": "HOST", "partitions": "PARTITIONS"}
    print_rows(members, columns, empty="no members", title="Members")
    show_partitions(partitions)


def total(rows: list[dict[str, Any]], key: str) -> int | None:
    known = [row[key] for row in rows if row[key] is not None]
    return sum(known) if known else None


def show_partitions(rows: list[dict[str, Any]]) -> None:
    shown = [
        row | {"deliveries": "  ".join(f"{n}x: {it}" for n, it in row["deliveries"].items())}
        for row in rows
    ]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start": "START",
        "end": "END",
        "backlog": "BACKLOG",
        "held": "HELD",
        "delayed": "DELAYED",
        "released": "RELEASED",
        "dying": "DYING",
        "deliveries": "DELIVERED",
    }
    print_rows(shown, columns, empty="nothing consumed yet", title="Partitions")


def described(cluster: Cluster, group: str) -> Any:
    answer = cluster.protocol.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "share_group_describe",
        {"group_ids": [group]},
        error_of=lambda answer: answer.groups[0].error_code,
    )
    found = answer.groups[0]
    check(found.error_code, found.error_message or f"group {group!r}")
    return found


def share_partitions(cluster: Cluster, group: str) -> list[SharePartition]:
    """Every partition of the group, with the records in flight if the broker reports them."""
    answer = cluster.protocol.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "describe_share_group_offsets",
        {"groups": [{"group_id": group, "topics": None}]},
        error_of=lambda answer: answer.groups[0].error_code,
    )
    found = answer.groups[0]
    check(found.error_code, found.error_message or f"group {group!r}")
    known = cluster.metadata().topics
    told = [
        (topic.topic_name, topic.topic_id, partition)
        for topic in found.topics
        for partition in topic.partitions
        if topic.topic_name in known
    ]
    ends = cluster.end_offsets((topic, int(it.partition_index)) for topic, _, it in told)
    is_live = tells_what_is_held(cluster, group)
    partitions = []
    for topic, topic_id, described in told:
        check(
            described.error_code, described.error_message or f"{topic}[{described.partition_index}]"
        )
        end = ends[topic, int(described.partition_index)]
        start = None if described.start_offset < 0 else int(described.start_offset)
        lag = getattr(described, "lag", -1)  # since version 1
        backlog = None if start is None else end - start if lag < 0 else int(lag)
        partition = SharePartition(topic, int(described.partition_index), start, end, backlog)
        if start is not None:
            read_state(cluster, group, topic_id, partition, is_live)
        partitions.append(partition)
    return sorted(partitions, key=lambda it: (it.topic, it.partition))


def read_state(
    cluster: Cluster, group: str, topic_id: uuid.UUID, partition: SharePartition, is_live: bool
) -> None:
    """Read the state from the persister, without leading the partition."""
    places = [{"partition": partition.partition, "leader_epoch": NO_LEADER_EPOCH}]
    try:
        answer = cluster.protocol.ask_coordinator(
            CoordinatorKind.SHARE,
            coordinator_key(group, topic_id, partition.partition),
            "read_share_group_state",
            {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": places}]},
            error_of=lambda answer: answer.results[0].partitions[0].error_code,
        )
    except ApiError:  # an API between brokers, which may be restricted
        return
    found = answer.results[0].partitions[0]
    if found.error_code is ErrorCode.NONE:
        partition.add(found.state_batches, is_live=is_live)


def tells_what_is_held(cluster: Cluster, group: str) -> bool:
    """Whether the persister knows what members hold: ours does, and ours alone has this setting."""
    return "share.retry.backoff.ms" in cluster.settings_of(group, ConfigResource.Type.GROUP)


def coordinator_key(group: str, topic_id: uuid.UUID, partition: int) -> str:
    """What the state of a share partition is kept under."""
    return f"{group}:{base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:{partition}"


def start_offsets(cluster: Cluster, group: str) -> dict[Partition, int]:
    """Where the group begins in each partition, by partition."""
    return {
        (it.topic, it.partition): it.start
        for it in share_partitions(cluster, group)
        if it.start is not None
    }


def alter_start_offsets(cluster: Cluster, group: str, offsets: dict[Partition, int]) -> None:
    """Move the group; raises `CommandFailed` while it has members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": index, "start_offset": offset})
    answer = cluster.protocol.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "alter_share_group_offsets",
        {
            "group_id": group,
            "topics": [{"topic_name": name, "partitions": it} for name, it in topics.items()],
        },
    )
    if answer.error_code is ErrorCode.NON_EMPTY_GROUP:
        raise CommandFailed(f"group {group!r} has members; stop its consumers first")
    check(answer.error_code, answer.error_message or f"group {group!r}")
    for topic in answer.responses:
        for partition in topic.partitions:
            check(
                partition.error_code,
                partition.error_message or f"{topic.topic_name}[{partition.partition_index}]",
            )
