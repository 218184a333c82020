"""DeleteRecords, v0-2: move the start of a log, up to its high watermark.

* v2: flexible

An offset of -1 stands for the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_topic
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest

    from millstream.broker.replicas.partition import Partition
    from millstream.protocol.messages import Fields


async def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> Fields:
    topics = [
        {
            "name": topic.name,
            "partitions": [
                await _delete(context, topic.name, partition) for partition in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    # Saved before the answer: what was deleted shall not come back after a crash.
    services = context.services
    await services.tasks.run_steps(services.directories.checkpoint_steps())
    return {"topics": topics}


async def _delete(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition
) -> dict[str, Any]:
    try:
        require_topic(context, Operation.DELETE, topic)
        partition = context.services.partitions.find(topic, wanted.partition_index)
        if partition.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")
        if partition.archive is not None:
            await context.services.archiving.wait_until_loaded(partition)
        low_watermark = partition.delete_records_before(wanted.offset)
        if partition.archive is not None:
            await _save_archive(context, partition)
    except ApiError as error:
        return {
            "partition_index": wanted.partition_index,
            "low_watermark": -1,
            "error_code": error.code,
        }
    return {
        "partition_index": wanted.partition_index,
        "low_watermark": low_watermark,
        "error_code": ErrorCode.NONE,
    }


async def _save_archive(context: RequestContext, partition: Partition) -> None:
    try:
        await context.services.archiving.save_start(partition)
    except MillstreamError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
