"""DescribeLogDirs, v1-5: the log directories, their contents and free space.

* v2: flexible
* v3: an error for the whole answer
* v4: size and free room of the directory's volume (KIP-827)
* v5: cordoned directories, of which there are none

As in Kafka, only a replica on its way to another directory has a lag here: about the number of
records that are not copied yet.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.metadata.store import METADATA_TOPIC
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

    from millstream.protocol.messages import Fields
    from millstream.storage.directory import LogDirectory
    from millstream.storage.log import Log
    from millstream.storage.moving import LogMove


def describe_log_dirs(context: RequestContext, request: DescribeLogDirsRequest) -> Fields:
    require_cluster(context, Operation.DESCRIBE)
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    logs: dict[LogDirectory, list[Log]] = {}
    for key, log in context.services.directories.logs.items():
        if key[0] != METADATA_TOPIC and (wanted is None or key in wanted):
            logs.setdefault(log.directory, []).append(log)
    moves: dict[LogDirectory, list[LogMove]] = {}
    for move in context.services.log_moves.under_way:
        if wanted is None or (move.log.topic, move.log.partition) in wanted:
            moves.setdefault(move.target, []).append(move)
    return {
        "error_code": ErrorCode.NONE,
        "results": [
            _describe(directory, logs.get(directory, ()), moves.get(directory, ()))
            for directory in context.services.directories.directories
        ],
    }


def _describe(
    directory: LogDirectory, logs: Collection[Log], moves: Collection[LogMove]
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "log_dir": directory.path,
        "topics": (),
        "total_bytes": -1,
        "usable_bytes": -1,
    }
    if directory.failure is not None:
        return answer | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    try:
        volume = os.statvfs(directory.path)
    except OSError:
        return answer | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    topics: dict[str, list[dict[str, Any]]] = {}
    for log in logs:
        topics.setdefault(log.topic, []).append(
            {
                "partition_index": log.partition,
                "partition_size": log.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    for move in moves:
        topics.setdefault(move.log.topic, []).append(
            {
                "partition_index": move.log.partition,
                "partition_size": move.copied_bytes,
                "offset_lag": move.missing_records,
                "is_future_key": True,
            }
        )
    return answer | {
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": volume.f_blocks * volume.f_frsize,
        "usable_bytes": volume.f_bavail * volume.f_frsize,
    }
