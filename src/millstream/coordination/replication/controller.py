"""The controller: what the metadata should be, given which brokers are live.

Every function takes an image and returns records; the caller commits them against that very image
and decides again if another commit came first. Nothing is kept between calls, so a new controller
continues where the former one stopped.

    reconcile(image, live, ...)     fence and unfence brokers, elect leaders, complete reassignments
    register(image, broker, ...)    a broker has started, as a new incarnation
    shut_down(image, broker_id)     a broker wants to stop: its partitions move to others
    unregister(image, broker_id)    a broker is gone for good
    withdraw(image, ...)            a broker cannot write some partitions: they move to others
    alter_partitions(image, ...)    in-sync sets that leaders propose
    elect(image, ...)               elections that a user asks for
    prefer(image, ...)              leaders go back to their preferred replicas

A broker is live if its session exists and belongs to the incarnation that is registered. A broker
that restarts is fenced, leads nothing, and is unfenced when its session is seen. If it may have
lost records of its former incarnation, it leaves all in-sync sets, except where it is the last
member. If it has kept them, it stays: after a power cut of all brokers, those that are still down
seem to be active to the first one that returns, and it must not leave its in-sync sets to them.

Controlled shutdown: a broker that shuts down is not active. Other members of in-sync sets lead
instead of it; where it is the last one, the partition has no leader until it returns. It may stop
when it leads nothing (`may_stop`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.coordination.cluster import RECOVERED, ClusterImage, PartitionImage, TopicImage
from millstream.coordination.cluster_records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from millstream.coordination.replication.elections import PartitionState, decide, record_for
from millstream.coordination.replication.leader import IsrChange
from millstream.errors import ApiError, ErrorCode

FENCED, UNFENCED = 1, -1


def active_brokers(image: ClusterImage) -> dict[int, int]:
    """The brokers that can lead and join in-sync sets, with their epochs."""
    return {broker.id: broker.epoch for broker in image.brokers.values() if broker.is_active}


def no_topic(_topic: str) -> bool:
    return False


def reconcile(
    image: ClusterImage,
    live: Mapping[int, uuid.UUID],
    *,
    is_unclean_allowed: Callable[[str], bool] = no_topic,
) -> list[MetadataRecord]:
    """All that follows from the sessions that exist: `live` has the incarnation of each."""
    records: list[MetadataRecord] = []
    active: set[int] = set()
    for broker in image.brokers.values():
        is_live = live.get(broker.id) == broker.incarnation_id
        if is_live == broker.fenced:
            change = UNFENCED if is_live else FENCED
            records.append(BrokerRegistrationChangeRecord(broker.id, broker.epoch, change))
        if is_live and not broker.in_controlled_shutdown:
            active.add(broker.id)
    return [*records, *_partition_changes(image, active, is_unclean_allowed)]


def register(
    image: ClusterImage,
    registration: RegisterBrokerRecord,
    *,
    has_kept_records: bool = False,
    is_unclean_allowed: Callable[[str], bool] = no_topic,
) -> list[MetadataRecord]:
    """A broker has started. It is fenced until its session is seen (`reconcile`).

    `has_kept_records`: whether it has all records that its former incarnation has reported to
    leaders. It has if they were flushed before (`millstream.acks.all.flush`), or if it was stopped
    cleanly. Other log directories than before (`log_dirs`) make this false, and so does a former
    incarnation that is unknown.
    """
    broker_id = registration.broker_id
    record = registration._replace(fenced=True, in_controlled_shutdown=False)
    former = image.brokers.get(broker_id)
    has_kept_records &= former is not None and former.directories == registration.log_dirs
    active = active_brokers(image).keys() - {broker_id}
    keeps = frozenset({broker_id} if has_kept_records else ())
    return [record, *_partition_changes(image, active, is_unclean_allowed, keeps)]


def shut_down(image: ClusterImage, broker_id: int, broker_epoch: int) -> list[MetadataRecord]:
    """A broker is about to stop: nothing if it is already on its way, or restarted."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch or broker.in_controlled_shutdown:
        return []
    record = BrokerRegistrationChangeRecord(broker_id, broker_epoch, in_controlled_shutdown=1)
    active = active_brokers(image).keys() - {broker_id}
    return [record, *_partition_changes(image, active, no_topic)]


def unregister(image: ClusterImage, broker_id: int) -> list[MetadataRecord]:
    """A broker is gone for good: it leaves all in-sync sets. Its replicas stay assigned to it until
    they are reassigned.

    Refused while it runs, and while only it has all records of a partition.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
        )
    if not broker.fenced:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running: stop it first.")
    records: list[MetadataRecord] = [UnregisterBrokerRecord(broker_id, broker.epoch)]
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.isr == (broker_id,):
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Broker {broker_id} is the only one that has all records of "
                    f"{topic.name}-{index}: start it, delete the topic, or elect another leader, "
                    "which loses records.",
                )
            if broker_id in partition.isr:  # no other member is active either
                isr = tuple(member for member in partition.isr if member != broker_id)
                records.append(PartitionChangeRecord(index, topic.id, isr=isr))
    return records


def withdraw(
    image: ClusterImage,
    broker_id: int,
    broker_epoch: int,
    partitions: Iterable[tuple[uuid.UUID, int]],
) -> list[MetadataRecord]:
    """A broker cannot write its replicas of these partitions: they leave the in-sync sets, and
    others lead. Where no other member is active the broker stays, since only it has all records."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return []
    others = active_brokers(image).keys() - {broker_id}
    records: list[MetadataRecord] = []
    for topic_id, index in partitions:
        topic = image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if broker_id not in partition.isr or others.isdisjoint(partition.isr):
            continue
        isr = tuple(member for member in partition.isr if member != broker_id)
        state = decide(PartitionState.of(partition)._replace(isr=isr), others)
        record = record_for(topic_id, index, partition, state)
        if record is not None:
            records.append(record)
    return records


def may_stop(image: ClusterImage, broker_id: int) -> bool:
    """Whether a broker that shuts down leads nothing any more."""
    return not any(
        partition.leader == broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _partition_changes(
    image: ClusterImage,
    active: Iterable[int],
    is_unclean_allowed: Callable[[str], bool],
    keeps: frozenset[int] = frozenset(),
) -> Iterator[PartitionChangeRecord]:
    members = frozenset(active)
    for topic in image.topics.values():
        unclean: bool | None = None
        for index, partition in enumerate(topic.partitions):
            if (
                partition.leader in members
                and members.issuperset(partition.isr)
                and not partition.adding_replicas
                and not partition.removing_replicas
            ):
                continue  # as nearly all are
            if unclean is None:
                unclean = is_unclean_allowed(topic.name)
            state = decide(
                PartitionState.of(partition), members, keeps=keeps, is_unclean_allowed=unclean
            )
            record = record_for(topic.id, index, partition, state)
            if record is not None:
                yield record


# Proposals of leaders


class Proposal(NamedTuple):
    """A change of an in-sync set, as a leader sends it."""

    topic_id: uuid.UUID
    partition_id: int
    change: IsrChange


def alter_partitions(
    image: ClusterImage, broker_id: int, broker_epoch: int, proposals: Sequence[Proposal]
) -> tuple[list[MetadataRecord], list[ApiError | None]]:
    """The records of the proposals that are accepted, and for each proposal the error, or None if
    it is accepted or the partition already has that state."""
    active = active_brokers(image)
    records: list[MetadataRecord] = []
    errors: list[ApiError | None] = []
    for proposal in proposals:
        try:
            _check_broker_epoch(image, broker_id, broker_epoch)
            record = _alter_partition(image, active, broker_id, proposal)
        except ApiError as error:
            errors.append(error)
            continue
        errors.append(None)
        if record is not None:
            records.append(record)
    return records, errors


def _check_broker_epoch(image: ClusterImage, broker_id: int, broker_epoch: int) -> None:
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} is registered with epoch {broker.epoch if broker else None}, not "
            f"{broker_epoch}",
        )


def _alter_partition(
    image: ClusterImage, active: Mapping[int, int], leader: int, proposal: Proposal
) -> PartitionChangeRecord | None:
    """In the order of Kafka's controller, so that a leader gets the same errors."""
    topic_id, index, change = proposal
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= index < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[index]
    name = f"{topic.name}-{index}"
    _check_leader(name, partition, leader, change)
    is_recovered = partition.leader_recovery_state == RECOVERED
    if set(change.isr) == set(partition.isr) and is_recovered:
        return None
    if change.partition_epoch < partition.partition_epoch:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} is at partition epoch {partition.partition_epoch}, not "
            f"{change.partition_epoch}",
        )
    if leader not in change.isr or not set(change.isr) <= set(partition.replicas):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{change.isr} is no in-sync set of {name}, whose replicas are {partition.replicas}",
        )
    if not is_recovered and len(change.isr) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"the leader of {name} has to recover before others can join its in-sync set",
        )
    _check_eligible(name, partition, change, active)
    state = PartitionState.of(partition)._replace(isr=change.isr, leader_recovery_state=RECOVERED)
    # The last of the added replicas may have joined: this completes a reassignment.
    return record_for(topic_id, index, partition, decide(state, active))


def _check_leader(name: str, partition: PartitionImage, leader: int, change: IsrChange) -> None:
    if (
        change.leader_epoch > partition.leader_epoch
        or change.partition_epoch > partition.partition_epoch
    ):
        raise ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"this image has an older state of {name} than its leader",
        )
    if change.leader_epoch < partition.leader_epoch or partition.leader != leader:
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"broker {partition.leader} leads {name} in epoch {partition.leader_epoch}",
        )


def _check_eligible(
    name: str, partition: PartitionImage, change: IsrChange, active: Mapping[int, int]
) -> None:
    """All members have to be active, in the incarnations that the leader has seen. A member that
    stays may not have fetched since the election, so that the leader has not seen it yet."""
    for member, epoch in zip(change.isr, change.broker_epochs, strict=True):
        is_unseen = epoch < 0 and member in partition.isr
        if member not in active or not (is_unseen or epoch == active[member]):
            raise ApiError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"broker {member} cannot be in the in-sync set of {name}: it is fenced, shuts "
                "down or has restarted",
            )


# Elections that are asked for


def elect(
    image: ClusterImage, partitions: Iterable[tuple[str, int]], *, unclean: bool
) -> tuple[list[MetadataRecord], dict[tuple[str, int], ErrorCode]]:
    """ElectLeaders: of the preferred replicas or, with `unclean`, of any replica where there is no
    leader. A code for each partition, as Kafka answers."""
    active = active_brokers(image)
    records: list[MetadataRecord] = []
    outcome: dict[tuple[str, int], ErrorCode] = {}
    for name, index in partitions:
        topic = image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            outcome[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        error, record = _elect(topic, index, active, unclean=unclean)
        outcome[name, index] = error
        if record is not None:
            records.append(record)
    return records, outcome


def _elect(
    topic: TopicImage, index: int, active: Mapping[int, int], *, unclean: bool
) -> tuple[ErrorCode, PartitionChangeRecord | None]:
    partition = topic.partitions[index]
    is_led = partition.leader != NO_LEADER
    if is_led and (unclean or partition.leader == partition.replicas[0]):
        return ErrorCode.ELECTION_NOT_NEEDED, None
    state = decide(
        PartitionState.of(partition), active, is_unclean_allowed=unclean, prefers_first=not unclean
    )
    if unclean and state.leader == NO_LEADER:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, None
    if not unclean and state.leader != partition.replicas[0]:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, None
    return ErrorCode.NONE, record_for(topic.id, index, partition, state)


def prefer(image: ClusterImage, *, imbalance_percent: int = 0) -> list[MetadataRecord]:
    """Let preferred replicas lead that can and do not, of brokers whose share of such partitions
    exceeds `imbalance_percent` (`leader.imbalance.per.broker.percentage`)."""
    active = active_brokers(image)
    preferred: dict[int, int] = {}
    moves: dict[int, list[PartitionChangeRecord]] = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            preferred[first] = preferred.get(first, 0) + 1
            if partition.leader == first or first not in active or first not in partition.isr:
                continue
            state = decide(PartitionState.of(partition), active, prefers_first=True)
            record = record_for(topic.id, index, partition, state)
            if record is not None:
                moves.setdefault(first, []).append(record)
    return [
        record
        for broker_id, records in moves.items()
        if len(records) * 100 > imbalance_percent * preferred[broker_id]
        for record in records
    ]
