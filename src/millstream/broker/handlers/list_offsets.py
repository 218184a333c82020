"""ListOffsets, v1-11: offsets by timestamp, and the ends of partitions.

* v2: isolation level: with read_committed, "latest" is the last stable offset
* v4: leader epochs
* v6: flexible
* v7: -3, the record with the largest timestamp (KIP-734)
* v8: -4, the earliest offset on this machine (KIP-405; -2 is the earliest in the archive)
* v9: -5, the latest offset in the archive; v11: -6, the earliest not yet there; both are unknown
  if the topic is not archived
* v10: a timeout, for remote tiers (not needed: reads of the archive have one)

Followers (replica id from 0 on) and tools that compare replicas (-2) get the log's end as "latest".
Tools get it of any replica, the others of the leader only.

A look-up by timestamp may read the disk, so it runs in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.handlers._rights import require_topic
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.fetch import READ_COMMITTED
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )

    from millstream.protocol.messages import Fields

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
EndOf: TypeAlias = Callable[[Partition], int]
TOOL_REPLICA_ID = -2
_FIRST_VERSION_OF = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> Fields:
    end_of = _committed_end if request.isolation_level == READ_COMMITTED else _visible_end
    if request.replica_id >= 0:
        end_of = _log_end
    elif request.replica_id == TOOL_REPLICA_ID:
        end_of = _end_of_any_replica
    return {"topics": [await _list_topic(context, topic, end_of) for topic in request.topics]}


async def _list_topic(context: RequestContext, topic: ListOffsetsTopic, end_of: EndOf) -> Fields:
    partitions = []
    counts = Counter(partition.partition_index for partition in topic.partitions)
    for wanted in topic.partitions:
        try:
            if counts[wanted.partition_index] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "duplicate partition")
            answer = await _look_up(context, topic.name, wanted, end_of)
        except ApiError as error:
            answer = {"error_code": error.code}
        partitions.append({"partition_index": wanted.partition_index, **answer})
    return {"name": topic.name, "partitions": partitions}


async def _look_up(
    context: RequestContext, topic: str, wanted: ListOffsetsPartition, end_of: EndOf
) -> dict[str, Any]:
    timestamp = wanted.timestamp
    if timestamp < EARLIEST and context.api_version < _FIRST_VERSION_OF.get(timestamp, 1000):
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} is not supported in ListOffsets v{context.api_version}",
        )
    require_topic(context, Operation.DESCRIBE, topic)
    partition = context.services.partitions.find(topic, wanted.partition_index)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    partition.check_readable(may_follow=end_of is _end_of_any_replica)
    end_offset = end_of(partition)
    if timestamp == LATEST:
        if end_of in (_visible_end, _committed_end):
            _check_end(partition, context.api_version)
        return _found(-1, end_offset, partition.leader_epoch)
    if partition.archive is not None and partition.following is None and end_of is not _log_end:
        return await _look_up_archived(context, partition, timestamp, end_offset)
    if timestamp == EARLIEST:
        return _found(-1, partition.log_start_offset, _epoch_at_start(partition))
    found = await context.services.tasks.run_blocking(partition.offset_for_timestamp, timestamp)
    if found is None or found.offset >= end_offset:
        return _found(-1, -1, -1)
    return _found(found.timestamp, found.offset, found.leader_epoch)


async def _look_up_archived(
    context: RequestContext, partition: Partition, timestamp: int, end_offset: int
) -> dict[str, Any]:
    """As above, of a partition whose older records are archived."""
    archive, log_start = partition.archive, partition.log_start_offset
    assert archive is not None
    if timestamp != EARLIEST_LOCAL:
        await context.services.archiving.wait_until_loaded(partition)
    archived = archive.start_offset
    if timestamp == LATEST_TIERED:
        return _found(-1, -1 if archived is None else archive.end_offset - 1, archive.last_epoch)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        pending = log_start if archived is None else max(archive.end_offset, log_start)
        return _found(-1, pending, partition.leader_epoch)
    is_older = archived is not None and archived < log_start
    if timestamp == EARLIEST:
        start = partition.start_offset
        return _found(-1, start, -1 if is_older else _epoch_at_start(partition))
    archiving, tasks = context.services.archiving, context.services.tasks
    if timestamp >= 0:
        found = await archiving.offset_for_timestamp(partition, timestamp)
    else:
        found = await tasks.run_blocking(partition.offset_for_timestamp, timestamp)
    if timestamp == MAX_TIMESTAMP and is_older:
        largest = archive.max_timestamp(log_start)
        if found is None or largest >= found.timestamp:
            older = await archiving.run_blocking(archive.offset_for_timestamp, largest, log_start)
            found = found if older is None else older
    if found is None or found.offset >= end_offset:
        return _found(-1, -1, -1)
    return _found(found.timestamp, found.offset, found.leader_epoch)


def _visible_end(partition: Partition) -> int:
    return partition.high_watermark


def _committed_end(partition: Partition) -> int:
    return partition.last_stable_offset


def _log_end(partition: Partition) -> int:
    """For followers."""
    return partition.log.log_end_offset


def _end_of_any_replica(partition: Partition) -> int:
    """For tools."""
    return partition.log.log_end_offset


def _check_end(partition: Partition, version: int) -> None:
    """A new leader does not know the end that consumers have seen until its followers fetch: a
    lower one would look like lost records."""
    leadership = partition.leadership
    if not leadership.is_alone and leadership.high_watermark < leadership.epoch_start_offset:
        code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
        raise ApiError(code, f"{partition!r} has just got this leader: try again")


def _epoch_at_start(partition: Partition) -> int:
    found = partition.offset_for_timestamp(EARLIEST)
    return -1 if found is None else found.leader_epoch


def _found(timestamp: int, offset: int, leader_epoch: int) -> dict[str, Any]:
    return {"timestamp": timestamp, "offset": offset, "leader_epoch": leader_epoch}
