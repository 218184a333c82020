"""Moving the replicas of a partition to other brokers (AlterPartitionReassignments).

    before       replicas 1 2 3
    begun        replicas 4 5 3 1 2    adding 4 5    removing 1 2
    completed    replicas 4 5 3        once 4 and 5 are in sync (`elections.decide`)

Another target while one is under way replaces it: the original replicas count, and added ones that
are not in the new target are dropped at once. Cancelling drops all added ones. Each is refused if
it would drop the last member of the in-sync set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.coordination.cluster_records import MetadataRecord
from millstream.coordination.replication.controller import active_brokers
from millstream.coordination.replication.elections import (
    PartitionState,
    decide,
    record_for,
    with_replicas,
)
from millstream.errors import ApiError, ErrorCode


class Target(NamedTuple):
    """Where the replicas of a partition should be; None cancels a reassignment."""

    topic: str
    partition_id: int
    replicas: tuple[int, ...] | None


def reassign(
    image: ClusterImage, targets: Iterable[Target]
) -> tuple[list[MetadataRecord], dict[tuple[str, int], ApiError | None]]:
    """The records of the reassignments that are accepted, and the error of each one that is not."""
    active = active_brokers(image)
    records: list[MetadataRecord] = []
    outcome: dict[tuple[str, int], ApiError | None] = {}
    for target in targets:
        try:
            topic = image.topics.get(target.topic)
            if topic is None or not 0 <= target.partition_id < len(topic.partitions):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition = topic.partitions[target.partition_id]
            if target.replicas is None:
                state = _cancelled(partition)
            else:
                _check(image, target.replicas)
                state = _begun(partition, target.replicas)
            record = record_for(topic.id, target.partition_id, partition, decide(state, active))
        except ApiError as error:
            outcome[target.topic, target.partition_id] = error
            continue
        outcome[target.topic, target.partition_id] = None
        if record is not None:
            records.append(record)
    return records, outcome


def is_reassigning(partition: PartitionImage) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def _original(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(it for it in partition.replicas if it not in partition.adding_replicas)


def _begun(partition: PartitionImage, target: tuple[int, ...]) -> PartitionState:
    original = _original(partition)
    removing = tuple(it for it in original if it not in target)
    adding = tuple(it for it in target if it not in original)
    state = _with(partition, target + removing)
    return state._replace(adding_replicas=adding, removing_replicas=removing)


def _cancelled(partition: PartitionImage) -> PartitionState:
    if not is_reassigning(partition):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    state = _with(partition, _original(partition))
    return state._replace(adding_replicas=(), removing_replicas=())


def _with(partition: PartitionImage, replicas: tuple[int, ...]) -> PartitionState:
    isr = tuple(member for member in partition.isr if member in replicas)
    if not isr:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the in-sync replicas {list(partition.isr)} are all being added by the current "
            "reassignment and would be dropped: wait until it completes",
        )
    return with_replicas(PartitionState.of(partition), replicas)._replace(isr=isr)


def _check(image: ClusterImage, replicas: tuple[int, ...]) -> None:
    problem = None
    unknown = [broker_id for broker_id in sorted(replicas) if broker_id not in image.brokers]
    if not replicas:
        problem = "an empty replica list."
    elif unknown:
        problem = f"broker {unknown[0]}, but no such broker is registered."
    elif len(set(replicas)) < len(replicas):
        twice = next(replica for replica in sorted(replicas) if replicas.count(replica) > 1)
        problem = f"the broker {twice} more than once."
    if problem is not None:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes {problem}",
        )
