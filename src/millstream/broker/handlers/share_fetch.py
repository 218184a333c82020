"""ShareFetch, v1-2: acquire records of a share group, and acknowledge others.

* v2: the acquire mode `record limit` (KIP-1206), and renewing locks (KIP-1222): a request that does
  so fetches nothing

Membership is not checked here (nor by Kafka's leaders): the group's coordinator
assigns partitions to members.
"""

from __future__ import annotations

from functools import partial

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._rights import require_group, require_topic
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import (
    Acknowledging,
    checked_ids,
    require_share_groups,
)
from millstream.broker.sharing.fetching import ShareFetching, encode_answer
from millstream.broker.sharing.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.share_fetch import (
    BATCH_OPTIMIZED,
    FIRST_WITH_RENEWAL,
    RECORD_LIMIT,
    ShareFetchRequest,
    decode_share_fetch_request,
    encode_share_fetch_response,
)
from millstream.protocol.wire import Buffer
from millstream.security.acls import Operation


def share_fetch(context: RequestContext, body: Buffer) -> Buffers | Deferred:
    request = decode_share_fetch_request(body, context.api_version)
    try:
        return _serve(context, request)
    except ApiError as error:
        answer = _error(error)
        if error.code is not ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            return answer
    # As in Kafka: a member that finds no room should not retry at once.
    deferred = Deferred(exclusive=True)
    context.services.loop.call_later(max(request.max_wait_ms, 0) / 1000, deferred.complete, answer)
    return deferred


def _serve(context: RequestContext, request: ShareFetchRequest) -> Buffers | Deferred:
    require_share_groups(context.services.metadata.image)
    if request.group_id is not None:
        require_group(context, Operation.READ, request.group_id)
    group_id, member_id = checked_ids(request.group_id, request.member_id)
    if request.acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown acquire mode {request.acquire_mode}")
    if request.is_renew_ack:
        _check_renewal(request)
    session = _session(context, group_id, member_id, request)
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
        return _close(context, session, acknowledging)
    partitions = [] if request.is_renew_ack else session.rotated(request.session_epoch)
    if not partitions:
        return _without_fetch(context, group_id, acknowledging)
    fetch_max_bytes = context.services.config.fetch_max_bytes
    return ShareFetching(
        context.services.share_partitions,
        request,
        partitions,
        acknowledging,
        require_right=partial(require_topic, context, Operation.READ),
        response_bytes_max=lambda: min(fetch_max_bytes, context.response_bytes_max()),
    ).start()


def _check_renewal(request: ShareFetchRequest) -> None:
    limits = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    wrong = [name for name, value in limits.items() if value]
    if wrong:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{', '.join(wrong)} must be 0 if isRenewAck is true."
        )


def _session(
    context: RequestContext, group_id: str, member_id: str, request: ShareFetchRequest
) -> ShareSession:
    """The session that the request opens, continues or closes."""
    sessions = context.services.share_partitions.sessions
    named = [
        (topic_id, partition[0])
        for topic_id, partitions in request.topics
        for partition in partitions
    ]
    if request.session_epoch == FINAL_EPOCH:
        return sessions.find(group_id, member_id)
    if request.session_epoch == INITIAL_EPOCH:
        if any(partition[1] for _, partitions in request.topics for partition in partitions):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "a request that opens a session cannot acknowledge records",
            )
        session = sessions.open(
            group_id,
            member_id,
            context.connection_id,
            sessions_max=context.services.config.group_share_max_share_sessions,
        )
        session.add(named)
        return session
    session = sessions.next(group_id, member_id, request.session_epoch)
    session.add(named)
    session.remove(
        (topic_id, index) for topic_id, indexes in request.forgotten for index in indexes
    )
    return session


def _close(
    context: RequestContext, session: ShareSession, acknowledging: Acknowledging
) -> Buffers | Deferred:
    sessions = context.services.share_partitions.sessions
    acknowledging.when_done(lambda _: sessions.close(session))
    return _without_fetch(context, session.group_id, acknowledging)


def _without_fetch(
    context: RequestContext, group_id: str, acknowledging: Acknowledging
) -> Buffers | Deferred:
    lock_ms = context.services.share_partitions.config(group_id).share_record_lock_duration_ms
    if acknowledging.is_done:
        return encode_answer({}, acknowledging, lock_ms)
    deferred = Deferred(exclusive=True)
    acknowledging.when_done(lambda _: deferred.complete(encode_answer({}, acknowledging, lock_ms)))
    return deferred


def _error(error: ApiError) -> Buffers:
    message = error.message or error.code.description
    return encode_share_fetch_response((), error=error.code, error_message=message)
