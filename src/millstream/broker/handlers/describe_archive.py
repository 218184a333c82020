"""DescribeArchive, v0, an API of our own: what is archived of the partitions that this broker
leads, how far that is behind the log, and why nothing is archived at the moment.

Topics that are unknown, or that the client may not describe, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import split_topics
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.archiving.reporting import ArchivedPartition
    from millstream.protocol.messages import Fields
    from millstream.protocol.own.describe_archive import DescribeArchiveRequest


def describe_archive(context: RequestContext, request: DescribeArchiveRequest) -> Fields:
    from millstream.broker.archiving.reporting import archived_partitions

    wanted = None if request.topics is None else set(request.topics)
    topics: dict[str, list[dict[str, Any]]] = {}
    services = context.services
    has_path = services.archiving.archiver is not None
    for it in archived_partitions(services.partitions, has_path=has_path):
        if wanted is None or it.topic in wanted:
            topics.setdefault(it.topic, []).append(_told(it))
    visible, _ = split_topics(
        context, Operation.DESCRIBE, topics, lambda name: name, log_denied=wanted is not None
    )
    return {
        "error_code": ErrorCode.NONE,
        "topics": [{"topic_name": name, "partitions": topics[name]} for name in visible],
    }


def _told(partition: ArchivedPartition) -> dict[str, Any]:
    totals = partition.totals
    return {
        "partition_index": partition.partition,
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
        "local_start_offset": partition.local_start_offset,
        "log_end_offset": partition.log_end_offset,
        "lag_bytes": partition.lag_bytes,
        "problem": partition.problem,
        **({} if totals is None else totals._asdict()),
    }
