"""DeleteTopics, v1-6: delete topics by name or by id.

* v4: flexible
* v5: error messages, THROTTLING_QUOTA_EXCEEDED (KIP-599)
* v6: topics by id (KIP-516)
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._quotas import Mutations
from millstream.broker.handlers._rights import may_cluster, may_topic, require_topic
from millstream.broker.metadata.outcomes import failures
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.coordination.cluster import TopicImage
    from millstream.protocol.messages import Fields

logger = logging.getLogger(__name__)

FIRST_VERSION_WITH_QUOTA_ERROR = 5

_NO_ID = uuid.UUID(int=0)


async def delete_topics(context: RequestContext, request: Any) -> Fields:
    wanted = _wanted(context.api_version, request)
    try:
        return await _delete(context, wanted)
    except MillstreamError as error:  # clients wait for an answer about each topic
        logger.warning("topics cannot be deleted now: %s", error)
        # Other messages than those of an ApiError are not for clients.
        reason = error.message if isinstance(error, ApiError) else "the broker's log has the reason"
        late = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The outcome is not known: {reason}")
        return {"responses": [_answer(name, topic_id, late) for name, topic_id in wanted]}


async def _delete(context: RequestContext, wanted: list[tuple[str | None, uuid.UUID]]) -> Fields:
    await context.services.metadata.refresh()  # another broker may have just created the topic
    counts = Counter(wanted)
    answers: list[dict[str, Any]] = []
    found: dict[uuid.UUID, TopicImage] = {}
    for name, topic_id in counts:
        try:
            topic = _find(context, name, topic_id, is_duplicate=counts[name, topic_id] > 1)
            if topic.id in found:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "The provided topic name maps to an ID that was already supplied.",
                )
            found[topic.id] = topic
        except ApiError as error:
            told = _name_to_tell(context, topic_id) if name is None else name
            answers.append(_answer(told, topic_id, error))
    mutations = Mutations(context, "delete_topics", strict_since=FIRST_VERSION_WITH_QUOTA_ERROR)
    refusals = mutations.refusals({key: len(it.partitions) for key, it in found.items()})
    answers += [_answer(found.pop(key).name, key, error) for key, error in refusals.items()]
    kept = await context.services.archiving.prepare_deletion(found.values())
    answers += [_answer(found.pop(key).name, key, error) for key, error in kept.items()]
    failed = await failures(found, context.services.actions.delete_topics(found))
    answers += [_answer(topic.name, key, failed.get(key)) for key, topic in found.items()]
    return {"responses": answers, "throttle_time": mutations.throttle()}


def _wanted(version: int, request: Any) -> list[tuple[str | None, uuid.UUID]]:
    if version < 6:
        return [(name or "", _NO_ID) for name in request.topic_names]  # the answer repeats it
    return [(topic.name, topic.topic_id or _NO_ID) for topic in request.topics]


def _find(
    context: RequestContext, name: str | None, topic_id: uuid.UUID, *, is_duplicate: bool
) -> TopicImage:
    """The topic of the request. Raises `ApiError`."""
    services = context.services
    if not services.config.delete_topic_enable:
        if context.api_version < 3:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled.")
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
    if name is None and topic_id == _NO_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != _NO_ID:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    if is_duplicate:
        what = "name" if name is not None else "id"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
    image = services.metadata.image
    if name is not None:
        _require_right(context, name, exists=name in image.topics)
        if name not in image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return image.topics[name]
    if topic_id not in image.topics_by_id:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    _require_right(context, image.topics_by_id[topic_id].name, exists=True)
    return image.topics_by_id[topic_id]


def _name_to_tell(context: RequestContext, topic_id: uuid.UUID) -> str | None:
    """The name of a topic given by its id, if the client may describe it."""
    topic = context.services.metadata.image.topics_by_id.get(topic_id)
    if topic is None or context.client.rights is None:
        return None
    return topic.name if may_topic(context, Operation.DESCRIBE, topic.name) else None


def _require_right(context: RequestContext, name: str, *, exists: bool) -> None:
    """Who may not describe the topic learns nothing about it; who may learns that it is missing."""
    if may_cluster(context, Operation.DELETE, log_denied=False):
        return
    require_topic(context, Operation.DESCRIBE, name)
    if exists:
        require_topic(context, Operation.DELETE, name)


def _answer(name: str | None, topic_id: uuid.UUID, error: ApiError | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None if topic_id == _NO_ID else topic_id,
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
    }
