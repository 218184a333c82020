"""ShareAcknowledge, v1-2: acknowledge records of a share group.

* v2: renewing locks (KIP-1222), and the lock duration in the answer

Acknowledgements may also come with ShareFetch; this is for members that fetch nothing just now.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._rights import require_group, require_topic
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import (
    Acknowledging,
    checked_ids,
    require_share_groups,
)
from millstream.broker.sharing.sessions import FINAL_EPOCH, INITIAL_EPOCH
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.share_acknowledge import (
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    decode_share_acknowledge_request,
    encode_share_acknowledge_response,
)
from millstream.protocol.share_fetch import FIRST_WITH_RENEWAL
from millstream.protocol.wire import Buffer
from millstream.security.acls import Operation


def share_acknowledge(context: RequestContext, body: Buffer) -> Buffers | Deferred:
    version = context.api_version
    request = decode_share_acknowledge_request(body, version)
    try:
        return _serve(context, request)
    except ApiError as error:
        message = error.message or error.code.description
        return encode_share_acknowledge_response(
            version, (), error=error.code, error_message=message
        )


def _serve(context: RequestContext, request: ShareAcknowledgeRequest) -> Buffers | Deferred:
    require_share_groups(context.services.metadata.image)
    if request.group_id is not None:
        require_group(context, Operation.READ, request.group_id)
    group_id, member_id = checked_ids(request.group_id, request.member_id)
    sessions = context.services.share_partitions.sessions
    if request.session_epoch == INITIAL_EPOCH:
        raise ApiError(
            ErrorCode.INVALID_SHARE_SESSION_EPOCH, "only ShareFetch opens a share session"
        )
    if request.session_epoch == FINAL_EPOCH:
        session = sessions.find(group_id, member_id)
    else:
        session = sessions.next(group_id, member_id, request.session_epoch)
    acknowledging = Acknowledging()
    acknowledging.start(
        context.services.share_partitions,
        group_id,
        member_id,
        request.topics,
        may_renew=context.api_version >= FIRST_WITH_RENEWAL and request.is_renew_ack,
        require_right=partial(require_topic, context, Operation.READ),
    )
    if request.session_epoch == FINAL_EPOCH:
        acknowledging.when_done(lambda _: sessions.close(session))
    if acknowledging.is_done:
        return _answer(context, group_id, acknowledging)
    deferred = Deferred()
    acknowledging.when_done(lambda _: deferred.complete(_answer(context, group_id, acknowledging)))
    return deferred


def _answer(context: RequestContext, group_id: str, acknowledging: Acknowledging) -> bytes:
    services = context.services
    topics: dict[UUID, list[AcknowledgedPartition]] = {}
    for (topic_id, index), error in acknowledging.results.items():
        answer = AcknowledgedPartition(index)
        if error is not None:
            answer = AcknowledgedPartition(index, error.code, error.message)
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader = services.share_partitions.current_leader(topic_id, index)
                answer = answer._replace(leader=leader)
        topics.setdefault(topic_id, []).append(answer)
    return encode_share_acknowledge_response(
        context.api_version,
        topics.items(),
        lock_duration_ms=services.share_partitions.config(group_id).share_record_lock_duration_ms,
    )
