"""OffsetCommit, v2-10: commit offsets of a group.

* v2-4: the commit may ask for its own retention time
* v6: leader epoch (KIP-320)
* v7: group instance ids (KIP-345)
* v8: flexible
* v9: consumer groups: the generation may be a member epoch, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH
* v10: topic ids instead of names
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._offset_commits import commit_topics, refuse_topics
from millstream.broker.handlers._rights import require_group
from millstream.broker.services import RequestContext
from millstream.coordination.groups.group import OffsetCommitter
from millstream.coordination.groups.offsets import (
    NO_RETENTION_MS,
    CommitRequest,
    CommittedPartition,
    TopicCommit,
)
from millstream.errors import ApiError
from millstream.protocol.messages import milliseconds
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.protocol.messages import Fields

FIRST_WITH_TOPIC_IDS = 10


async def offset_commit(context: RequestContext, request: Any) -> Fields:
    async def commit(topics: tuple[TopicCommit, ...]) -> tuple[CommittedPartition, ...]:
        wanted = _commit_request(context, request, topics)
        return await context.services.coordinators.groups.run(
            wanted.group_id, lambda shard, now_ms: shard.commit_offsets(wanted, now_ms)
        )

    by_id = context.api_version >= FIRST_WITH_TOPIC_IDS
    try:
        require_group(context, Operation.READ, request.group_id)
    except ApiError as error:
        return {"topics": refuse_topics(request.topics, error.code)}
    topics = await commit_topics(context, request.topics, by_id=by_id, commit=commit)
    context.services.backlog.offsets_committed()
    return {"topics": topics}


def _commit_request(
    context: RequestContext, request: Any, topics: tuple[TopicCommit, ...]
) -> CommitRequest:
    return CommitRequest(
        group_id=request.group_id,
        committer=OffsetCommitter(
            member_id=request.member_id,
            generation_or_epoch=request.generation_id_or_member_epoch,
            group_instance_id=getattr(request, "group_instance_id", None),
            api_version=context.api_version,
        ),
        topics=topics,
        retention_ms=_retention_ms(request),
    )


def _retention_ms(request: Any) -> int:
    retention = getattr(request, "retention_time", None)
    return milliseconds(retention) if retention is not None else NO_RETENTION_MS
