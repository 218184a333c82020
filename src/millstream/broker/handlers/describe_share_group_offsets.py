"""DescribeShareGroupOffsets, v0-1: start offsets and lag of share groups.

* v1: lag (KIP-1226)

A partition without an offset has -1, without an error; so does an unknown group. The lag is the
number of records between the start offset and the end of the partition, without finished ones; -1
if the group has not started reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.broker.handlers._rights import require_group, split_topics
from millstream.broker.peers.leaders import leader_of
from millstream.broker.peers.partitions import RemotePartitions
from millstream.broker.services import RequestContext, Services
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.coordination.share_state import (
    NO_COUNT,
    NO_LEADER_EPOCH,
    NO_START_OFFSET,
    SharePartitionKey,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_share_group_offsets.v1.request import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

    from millstream.protocol.messages import Fields

NO_LAG = -1


async def describe_share_group_offsets(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Fields:
    return {"groups": [await _described_group(context, group) for group in request.groups]}


async def _described_group(
    context: RequestContext, group: DescribeShareGroupOffsetsRequestGroup
) -> dict[str, Any]:
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.DESCRIBE, group.group_id)
        is_named = group.topics is not None
        visible, hidden = split_topics(
            context,
            Operation.DESCRIBE,
            await _topics_asked_for(context, group),
            lambda topic: topic[0],
            log_denied=is_named,
        )
        described = [
            await _described_topic(context, group.group_id, name, partitions)
            for name, partitions in visible
        ]
        if is_named:
            described += [_hidden_topic(name, partitions) for name, partitions in hidden]
    except ApiError as error:
        return {
            "group_id": group.group_id,
            "error_code": error.code,
            "error_message": error.message or error.code.description,
            "topics": [],
        }
    return {"group_id": group.group_id, "error_code": ErrorCode.NONE, "topics": described}


async def _topics_asked_for(
    context: RequestContext, group: DescribeShareGroupOffsetsRequestGroup
) -> list[tuple[str, Iterable[int]]]:
    if group.topics is not None:
        return [(topic.topic_name, topic.partitions) for topic in group.topics]
    coordinators = context.services.coordinators
    if coordinators.groups.has_no_groups:
        return []
    topics = await coordinators.share_groups.initialized_partitions(group.group_id)
    by_id = context.services.metadata.image.topics_by_id
    return [(by_id[t].name, sorted(p)) for t, p in sorted(topics.items()) if t in by_id]


async def _described_topic(
    context: RequestContext, group_id: str, name: str, partitions: Iterable[int]
) -> dict[str, Any]:
    topic = context.services.metadata.image.topics.get(name)
    if topic is None:
        absent = [_partition(partition) for partition in partitions]
        return {"topic_name": name, "topic_id": UUID(int=0), "partitions": absent}
    keys = [SharePartitionKey(group_id, topic.id, partition) for partition in partitions]
    described = await asyncio.gather(*(_described(context, name, key) for key in keys))
    return {"topic_name": name, "topic_id": topic.id, "partitions": described}


def _hidden_topic(name: str, partitions: Iterable[int]) -> dict[str, Any]:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = {"error_code": code, "error_message": code.description}
    return {
        "topic_name": name,
        "topic_id": UUID(int=0),
        "partitions": [{**_partition(partition), **refused} for partition in partitions],
    }


async def _described(context: RequestContext, name: str, key: SharePartitionKey) -> dict[str, Any]:
    try:
        summary = await context.services.coordinators.share_persister.read_summary(
            key, NO_LEADER_EPOCH
        )
    except ApiError:
        return _partition(key.partition)
    start_offset, done = summary.start_offset, summary.delivery_complete_count
    if start_offset == NO_START_OFFSET or done == NO_COUNT:
        return _partition(key.partition, start_offset, summary.leader_epoch)
    try:
        end_offset = await _end_offset(context.services, name, key.partition)
    except ApiError as error:
        failed = {"error_code": error.code, "error_message": error.message}
        return {**_partition(key.partition), **failed}
    lag = end_offset - start_offset - done
    return _partition(key.partition, start_offset, summary.leader_epoch, lag)


async def _end_offset(services: Services, topic: str, index: int) -> int:
    """Of a partition of this broker, or of another one."""
    partition = services.metadata.image.partition(topic, index)
    if partition is None or partition.leader == services.broker_id:
        return services.partitions.find(topic, index).high_watermark
    leader = leader_of(services.metadata.image, topic, index)
    return await RemotePartitions(services.peers).end_offset(leader, topic, index)


def _partition(
    partition: int, start_offset: int = NO_START_OFFSET, leader_epoch: int = 0, lag: int = NO_LAG
) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "start_offset": start_offset,
        "leader_epoch": leader_epoch,
        "lag": lag,
        "error_code": ErrorCode.NONE,
    }
