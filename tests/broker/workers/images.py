"""Images of clusters of workers, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from millstream.broker.metadata.store import registration
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord, PartitionRecord, TopicRecord


def image_of(topics: Mapping[str, Sequence[int]], workers: int = 0) -> ClusterImage:
    """An image in which each topic's partitions are on the given workers."""
    records: list[MetadataRecord] = [
        registration(worker, [], epoch=worker, rack=None, directories=[])
        for worker in range(1, workers + 1)
    ]
    for name, placed in topics.items():
        topic_id = uuid.uuid4()
        records.append(TopicRecord(name, topic_id))
        records += [
            PartitionRecord(index, topic_id, replicas=(it,), isr=(it,), leader=it)
            for index, it in enumerate(placed)
        ]
    return ClusterImage().apply(records, len(records))
