"""What the metadata contain of workers that died: fenced, and their partitions without a leader.

A worker's presence is a lock that ends with its process (`layout.presence_lock`). When it is back,
it claims the leadership of its partitions, with new leader epochs.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
)


def fence(image: ClusterImage, dead: Collection[int]) -> list[MetadataRecord]:
    """The records that take the leadership from these workers; none from those that have fenced
    themselves, as at a clean stop."""
    fenced = {it.id: it for it in image.brokers.values() if it.id in dead and not it.fenced}
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker.id, broker.epoch, fenced=1)
        for broker in fenced.values()
    ]
    records += [
        PartitionChangeRecord(index, topic.id, leader=NO_LEADER)
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if partition.leader in fenced
    ]
    return records
