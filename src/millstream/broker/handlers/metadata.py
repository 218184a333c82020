"""Metadata, v0-13: brokers, topics, partitions and their leaders; creates missing topics.

* v4: a client may forbid the creation
* v5: offline replicas
* v6: an error for a leader without the listener that the client uses
* v7: leader epochs
* v8-10: the cluster's authorized operations (in DescribeCluster since); v8: those of topics
* v9: flexible
* v10: topic ids; v12: topics asked for by id
* v13: an error for the whole (not needed)

Answers are cached as bytes until the metadata changes: many clients send the same request. A
missing topic is created before the answer, so that the client need not retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.deferred import Deferred
from millstream.broker.handlers._rights import (
    cluster_operations,
    may_cluster,
    may_topic,
    operations,
    split_topics,
)
from millstream.broker.metadata.cache import KEPT_REQUEST_BYTES_MAX
from millstream.broker.metadata.topics import validate_topic_name
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.metadata import (
    OPERATIONS_NOT_ASKED,
    ZERO_ID,
    BrokerEntry,
    MetadataRequest,
    MetadataResponse,
    PartitionEntry,
    RequestedTopic,
    TopicEntry,
    decode_metadata_request,
    encode_metadata_response,
)
from millstream.protocol.wire import Buffer
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from millstream.broker.metadata.cache import Key
    from millstream.broker.services import Services
    from millstream.coordination.cluster import TopicImage

FIRST_WITH_LISTENER_ERRORS = 6


def metadata(context: RequestContext, body: Buffer) -> bytes | Deferred:
    services, rights = context.services, context.client.rights
    identity = None if rights is None else rights.identity
    key: Key | None = None
    # If allowed operations are to be in the audit too, every request has to be decided.
    if len(body) <= KEPT_REQUEST_BYTES_MAX and not (rights and rights.records_allowed):
        key = (context.api_version, context.listener, identity, bytes(body))
        cached = services.metadata_cache.get(services.metadata.image.version, key)
        if cached is not None:
            return cached
    request = decode_metadata_request(body, context.api_version)
    refused = _refused(context, request)
    missing = _to_create(services, request, refused)
    if missing:
        refused |= _not_creatable(context, missing)
        missing = [name for name in missing if name not in refused]
    errors = dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if missing:
        deferred = Deferred()
        services.tasks.start(_create_and_answer(context, request, missing, errors, deferred))
        return deferred
    answer = _answer(context, request, errors)
    if key is not None and not refused:  # each refusal is to be in the audit
        services.metadata_cache.put(key, answer)
    return answer


def _refused(context: RequestContext, request: MetadataRequest) -> set[str]:
    """The topics asked for, by name or by id, that the client may not describe."""
    if context.client.rights is None or request.topics is None:
        return set()
    by_id = context.services.metadata.image.topics_by_id
    names = {
        by_id[topic.topic_id].name if topic.topic_id in by_id else topic.name or ""
        for topic in request.topics
        if topic.topic_id == ZERO_ID or topic.topic_id in by_id
    }
    return {name for name in names if not may_topic(context, Operation.DESCRIBE, name)}


def _not_creatable(context: RequestContext, names: list[str]) -> set[str]:
    if may_cluster(context, Operation.CREATE, log_denied=False):
        return set()
    return {name for name in names if not may_topic(context, Operation.CREATE, name)}


def _to_create(services: Services, request: MetadataRequest, refused: set[str]) -> list[str]:
    """The topics that the request creates."""
    if not (request.topics and request.allow_auto_topic_creation):
        return []
    if not services.config.auto_create_topics_enable:
        return []
    topics = services.metadata.image.topics
    return [
        topic.name
        for topic in request.topics
        if topic.name
        and topic.name not in topics
        and topic.name not in refused
        and _name_error(topic.name) is None
    ]


async def _create_and_answer(
    context: RequestContext,
    request: MetadataRequest,
    missing: list[str],
    errors: dict[str, ErrorCode],
    deferred: Deferred,
) -> None:
    try:
        outcomes = await context.services.topics.auto_create(missing)
        errors |= {
            name: outcome.code
            for name, outcome in outcomes.items()
            if isinstance(outcome, ApiError)
        }
    except ApiError as error:  # the commit failed
        errors |= dict.fromkeys(missing, error.code)
    deferred.complete(_answer(context, request, errors))


def _answer(
    context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> bytes:
    services = context.services
    with_operations = request.include_topic_operations
    if request.topics is None:
        every = services.metadata.image.topics
        visible = split_topics(context, Operation.DESCRIBE, every, str, log_denied=False)[0]
        topics = [_describe(context, every[name], with_operations) for name in visible]
    else:
        topics = [_look_up(context, wanted, with_operations, errors) for wanted in request.topics]
    response = MetadataResponse(
        brokers=_brokers(services, context.listener),
        cluster_id=services.cluster_id,
        controller_id=services.controller_id,
        topics=topics,
        cluster_operations=(
            cluster_operations(context)
            if request.include_cluster_operations
            else OPERATIONS_NOT_ASKED
        ),
    )
    return encode_metadata_response(context.api_version, response)


def _brokers(services: Services, listener: str) -> list[BrokerEntry]:
    entries = []
    for node in services.metadata.image.brokers.values():
        endpoint = node.endpoint(listener)
        if endpoint is not None and not node.fenced:
            entries.append(BrokerEntry(node.id, endpoint.host, endpoint.port, node.rack))
    return entries


def _look_up(
    context: RequestContext,
    wanted: RequestedTopic,
    with_operations: bool,
    errors: dict[str, ErrorCode],
) -> TopicEntry:
    image = context.services.metadata.image
    hidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if wanted.topic_id != ZERO_ID:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return TopicEntry(None, wanted.topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID)
        if errors.get(topic.name) is hidden:
            return TopicEntry(None, wanted.topic_id, error=hidden)
        return _describe(context, topic, with_operations)
    name = wanted.name or ""
    topic = image.topics.get(name)
    if topic is not None and errors.get(name) is not hidden:
        return _describe(context, topic, with_operations)
    error = errors.get(name) or _name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error is hidden:
        return TopicEntry(name, error=error)
    return TopicEntry(name, error=error, operations=_operations(context, name, with_operations))


def _operations(context: RequestContext, topic: str, with_operations: bool) -> int:
    if not with_operations:
        return OPERATIONS_NOT_ASKED
    return operations(context, ResourceType.TOPIC, topic)


def _name_error(name: str) -> ErrorCode | None:
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return None


def _describe(context: RequestContext, topic: TopicImage, with_operations: bool) -> TopicEntry:
    no_listener = ErrorCode.LISTENER_NOT_FOUND
    if context.api_version < FIRST_WITH_LISTENER_ERRORS:
        no_listener = ErrorCode.LEADER_NOT_AVAILABLE
    return TopicEntry(
        name=topic.name,
        topic_id=topic.id,
        partitions=[
            describe_partition(context, topic, index, no_listener)
            for index in range(len(topic.partitions))
        ],
        is_internal=topic.is_internal,
        operations=_operations(context, topic.name, with_operations),
    )


def describe_partition(
    context: RequestContext,
    topic: TopicImage,
    index: int,
    no_listener: ErrorCode = ErrorCode.LISTENER_NOT_FOUND,
) -> PartitionEntry:
    """A partition as clients see it: without a leader while that is not live, while its log
    directory is offline, or if it does not have the client's listener (`no_listener`)."""
    services = context.services
    image = topic.partitions[index]
    brokers = services.metadata.image.brokers
    offline = [
        replica for replica in image.replicas if replica not in brokers or brokers[replica].fenced
    ]
    if image.leader == services.broker_id and not services.partitions.is_online(topic.name, index):
        offline.append(image.leader)
    error = ErrorCode.NONE
    if image.leader not in brokers or image.leader in offline:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif brokers[image.leader].endpoint(context.listener) is None:
        error = no_listener
    return PartitionEntry(
        partition=index,
        leader_id=image.leader if error is ErrorCode.NONE else -1,
        leader_epoch=image.leader_epoch,
        replicas=image.replicas,
        in_sync=image.isr,
        offline=offline,
        error=error,
    )
