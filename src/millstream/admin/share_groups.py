"""Share groups of any Kafka cluster: members, backlog, records in flight and who holds them.

The coordinator has the members and start offsets. What is in flight is known by the leader of each
partition: Millstream's brokers report it (DescribeSharePartitions, an API of their own), with the
members that hold records. Apache Kafka reports only persisted state, to users who may act as
brokers: it has no locks.
"""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any

from millstream.admin.errors import OperationFailed
from millstream.admin.groups import (
    GROUPS_AT_ONCE,
    SHARE,
    GroupDescription,
    GroupListing,
    Member,
    list_groups,
    no_such_group,
)
from millstream.admin.offsets import LATEST, find_offsets, partitions_by_leader
from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
from millstream.partitions import TopicPartition

NO_LEADER_EPOCH = -1  # the caller leads no partition
BATCHES_MAX = 200  # of a partition, in detail


class Delivery(IntEnum):
    """Where a record stands, with the wire's numbers; 10 is ours, told to tools alone."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4
    DELAYED = 10


FINISHED = (Delivery.ACKNOWLEDGED, Delivery.ARCHIVED)


@dataclass(frozen=True)
class ShareBatch:
    """Consecutive records in the same state."""

    first: int
    last: int
    state: Delivery
    delivery_count: int
    member: str | None = None  # that holds them
    remaining_ms: int | None = None  # of the lock, or until the next attempt

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class SharePartition:
    """One partition as a share group consumes it."""

    topic: str
    partition: int
    start: int | None  # the first unfinished record; None before the first delivery
    end: int | None
    backlog: int | None  # unfinished records
    counts: Counter[Delivery] | None = None  # records in flight by state; None if unknown
    is_live: bool = False  # whether that has what members hold, or only what is persisted
    deliveries: Counter[int] = field(default_factory=Counter)  # records by how often delivered
    holders: dict[str, int] = field(default_factory=dict)  # records by member
    batches: list[ShareBatch] = field(default_factory=list)  # unfinished ones, the first of them
    has_more_batches: bool = False

    def add(self, batches: Iterable[ShareBatch], *, is_live: bool) -> None:
        """Take in the records from the start on."""
        counts: Counter[Delivery] = Counter()
        for batch in batches:
            counts[batch.state] += len(batch)
            if batch.state in FINISHED:
                continue
            self.deliveries[batch.delivery_count] += len(batch)
            if batch.member is not None:
                self.holders[batch.member] = self.holders.get(batch.member, 0) + len(batch)
            if len(self.batches) < BATCHES_MAX:
                self.batches.append(batch)
            else:
                self.has_more_batches = True
        self.counts, self.is_live = counts, is_live

    def count(self, state: Delivery) -> int | None:
        """Records in this state; None if it is unknown: locks and delays are not persisted."""
        if self.counts is None:
            return None
        if not self.is_live and state in (Delivery.ACQUIRED, Delivery.DELAYED):
            return None
        return self.counts[state]

    @property
    def held(self) -> int | None:
        return self.count(Delivery.ACQUIRED)

    @property
    def delayed(self) -> int | None:
        return self.count(Delivery.DELAYED)

    @property
    def released(self) -> int | None:
        return self.count(Delivery.AVAILABLE)

    @property
    def dying(self) -> int | None:
        return self.count(Delivery.ARCHIVING)

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.start,
            "end": self.end,
            "backlog": self.backlog,
            "held": self.held,
            "delayed": self.delayed,
            "released": self.released,
            "dying": self.dying,
            "deliveries": {str(count): self.deliveries[count] for count in sorted(self.deliveries)},
            "holders": dict(sorted(self.holders.items())),
        }


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def describe_share_group(cluster: Cluster, group: str) -> GroupDescription:
    """The group with its members; raises `OperationFailed` if there is none."""
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "share_group_describe",
        {"group_ids": [group]},
        error_of=lambda answer: answer.groups[0].error_code,
    )
    found = answer.groups[0]
    if found.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
        raise no_such_group(group, [it.group for it in list_groups(cluster) if it.type == SHARE])
    check(found.error_code, found.error_message or f"group {group!r}", "share_group_describe")
    members = tuple(
        Member(
            it.member_id,
            None,
            it.client_id,
            it.client_host.lstrip("/"),
            tuple(
                sorted(
                    (topic.topic_name, int(index))
                    for topic in it.assignment.topic_partitions
                    for index in topic.partitions
                )
            ),
            rack=it.rack_id,
            epoch=int(it.member_epoch),
        )
        for it in found.members
    )
    coordinator = cluster.coordinator(CoordinatorKind.GROUP, group)
    return GroupDescription(
        group,
        SHARE,
        found.group_state.lower(),
        SHARE,
        found.assignor_name,
        coordinator,
        members,
        int(found.group_epoch),
    )


# Offsets


def share_lags(
    cluster: Cluster, listed: Sequence[GroupListing]
) -> dict[str, dict[TopicPartition, int | None]]:
    """The backlog of every partition of every group, as its coordinator reports it; None where
    the group has not started. Groups that the user may not describe are left out."""
    by_broker: dict[int, list[str]] = {}
    for row in listed:
        by_broker.setdefault(row.coordinator, []).append(row.group)
    found: dict[str, dict[TopicPartition, int | None]] = {}
    for broker_id, groups in by_broker.items():
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            asked = [
                {"group_id": group, "topics": None}
                for group in groups[first : first + GROUPS_AT_ONCE]
            ]
            answer = cluster.ask_broker(
                broker_id, "describe_share_group_offsets", {"groups": asked}
            )
            for it in answer.groups:
                if it.error_code is ErrorCode.NONE:
                    found[str(it.group_id)] = _backlogs(it)
    return found


def _backlogs(found: Any) -> dict[TopicPartition, int | None]:
    return {
        (str(topic.topic_name), int(it.partition_index)): None
        if getattr(it, "lag", -1) < 0
        else int(it.lag)
        for topic in found.topics
        for it in topic.partitions
    }


def _offsets_of(cluster: Cluster, group: str) -> Any:
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "describe_share_group_offsets",
        {"groups": [{"group_id": group, "topics": None}]},
        error_of=lambda answer: answer.groups[0].error_code,
    )
    found = answer.groups[0]
    check(found.error_code, found.error_message or f"group {group!r}", "share_group_describe")
    return found


def share_partitions(cluster: Cluster, group: str) -> list[SharePartition]:
    """Every partition of the group, with the records in flight if the brokers report them."""
    found = _offsets_of(cluster, group)
    told = {
        (str(topic.topic_name), int(it.partition_index)): (topic.topic_id, it)
        for topic in found.topics
        for it in topic.partitions
    }
    ends = find_offsets(cluster, dict.fromkeys(told, LATEST)).found
    partitions = {}
    for place, (_, it) in told.items():
        check(it.error_code, it.error_message or f"{place[0]}[{place[1]}]")
        end = ends.get(place)
        start = None if it.start_offset < 0 else int(it.start_offset)
        lag = int(getattr(it, "lag", -1))  # since version 1
        backlog = lag if lag >= 0 else None
        if lag < 0 and start is not None and end is not None:
            backlog = end - start
        partitions[place] = SharePartition(*place, start, end, backlog)
    started = {place: it for place, it in partitions.items() if it.start is not None}
    if not add_live_states(cluster, group, started):
        for place, partition in started.items():
            add_persisted_state(cluster, group, told[place][0], partition)
    return [partitions[place] for place in sorted(partitions)]


def add_live_states(
    cluster: Cluster, group: str, partitions: Mapping[TopicPartition, SharePartition]
) -> bool:
    """Ask the leaders of the partitions; returns whether they support that. Those that cannot be
    reached are left out."""
    by_leader, _ = partitions_by_leader(cluster, partitions)
    for leader, places in by_leader.items():
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        fields = {
            "group_id": group,
            "topics": [{"topic_name": name, "partitions": it} for name, it in topics.items()],
        }
        try:
            answer = cluster.ask_broker(leader, "describe_share_partitions", fields)
        except ApiError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return False
            raise
        except OSError:  # a leader that is down: what it holds is not known
            continue
        check(answer.error_code, answer.error_message or f"group {group!r}")
        for topic in answer.topics:
            for it in topic.partitions:
                if it.error_code is ErrorCode.NONE:
                    partition = partitions[str(topic.topic_name), int(it.partition_index)]
                    partition.add(map(_live_batch, it.batches), is_live=True)
    return True


def _live_batch(batch: Any) -> ShareBatch:
    return ShareBatch(
        int(batch.first_offset),
        int(batch.last_offset),
        Delivery(batch.delivery_state),
        int(batch.delivery_count),
        batch.member_id,
        None if batch.remaining_ms < 0 else int(batch.remaining_ms),
    )


def add_persisted_state(
    cluster: Cluster, group: str, topic_id: uuid.UUID, partition: SharePartition
) -> None:
    """Read the state from the persister, without leading the partition."""
    places = [{"partition": partition.partition, "leader_epoch": NO_LEADER_EPOCH}]
    try:
        answer = cluster.ask_coordinator(
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
        batches = (
            ShareBatch(
                int(it.first_offset),
                int(it.last_offset),
                Delivery(it.delivery_state),
                int(it.delivery_count),
            )
            for it in found.state_batches
        )
        partition.add(batches, is_live=False)


def coordinator_key(group: str, topic_id: uuid.UUID, partition: int) -> str:
    """What the state of a share partition is kept under."""
    return f"{group}:{base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:{partition}"


def start_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Where the group begins in each partition, by partition."""
    found = _offsets_of(cluster, group)
    return {
        (str(topic.topic_name), int(it.partition_index)): int(it.start_offset)
        for topic in found.topics
        for it in topic.partitions
        if it.error_code is ErrorCode.NONE and it.start_offset >= 0
    }


def alter_start_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Move the group; raises `OperationFailed` while it has members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append({"partition_index": index, "start_offset": offset})
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "alter_share_group_offsets",
        {
            "group_id": group,
            "topics": [{"topic_name": name, "partitions": it} for name, it in topics.items()],
        },
    )
    if answer.error_code is ErrorCode.NON_EMPTY_GROUP:
        raise OperationFailed(f"group {group!r} has members; stop its consumers first")
    check(answer.error_code, answer.error_message or f"group {group!r}")
    for topic in answer.responses:
        for partition in topic.partitions:
            check(
                partition.error_code,
                partition.error_message or f"{topic.topic_name}[{partition.partition_index}]",
            )
