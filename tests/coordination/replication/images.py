"""Images for tests: brokers 1 to n, and one topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.coordination.cluster_records import (
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

TOPIC_ID = uuid.UUID(int=77)


def incarnation(broker_id: int, number: int = 1) -> uuid.UUID:
    return uuid.UUID(int=broker_id * 1000 + number)


def registration(broker_id: int, number: int = 1, rack: str | None = None) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id, incarnation(broker_id, number), broker_epoch=number * 10, endpoints=(), rack=rack
    )


def sessions(*broker_ids: int) -> dict[int, uuid.UUID]:
    return {broker_id: incarnation(broker_id) for broker_id in broker_ids}


def image(brokers: int, *partitions: PartitionRecord) -> ClusterImage:
    records: list[MetadataRecord] = [registration(it) for it in range(1, brokers + 1)]
    return ClusterImage().apply([*records, TopicRecord("t", TOPIC_ID), *partitions], 0)


def partition(
    *replicas: int,
    isr: tuple[int, ...] | None = None,
    leader: int | None = None,
    index: int = 0,
    **more: tuple[int, ...],
) -> PartitionRecord:
    isr = replicas if isr is None else isr
    leader = isr[0] if leader is None else leader
    return PartitionRecord(index, TOPIC_ID, replicas, isr, leader, **more)  # type: ignore[arg-type]


def applied(before: ClusterImage, records: Iterable[MetadataRecord]) -> ClusterImage:
    return before.apply(records, before.version + 1)


def only(it: ClusterImage) -> PartitionImage:
    return it.topics["t"].partitions[0]
