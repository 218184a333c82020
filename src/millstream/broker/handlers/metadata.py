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
from millstream.broker.handlers.describe_cluster import ALL_CLUSTER_OPERATIONS
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

if TYPE_CHECKING:
    from millstream.broker.services import Services
    from millstream.coordination.cluster import TopicImage

FIRST_WITH_LISTENER_ERRORS = 6
# Without an authorizer all operations are allowed: bits of READ, WRITE, CREATE, DELETE, ALTER,
# DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
ALL_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))


def metadata(context: RequestContext, body: Buffer) -> bytes | Deferred:
    services = context.services
    key = (context.api_version, context.listener, bytes(body))
    cached = services.metadata_cache.get(services.metadata.image.version, key)
    if cached is not None:
        return cached
    request = decode_metadata_request(body, context.api_version)
    missing = _to_create(services, request)
    if missing:
        deferred = Deferred()
        services.tasks.start(_create_and_answer(context, request, missing, deferred))
        return deferred
    answer = _answer(context, request, {})
    services.metadata_cache.put(key, answer)
    return answer


def _to_create(services: Services, request: MetadataRequest) -> list[str]:
    """The topics that the request creates."""
    if not (request.topics and request.allow_auto_topic_creation):
        return []
    if not services.config.auto_create_topics_enable:
        return []
    topics = services.metadata.image.topics
    return [
        topic.name
        for topic in request.topics
        if topic.name and topic.name not in topics and _name_error(topic.name) is None
    ]


async def _create_and_answer(
    context: RequestContext, request: MetadataRequest, missing: list[str], deferred: Deferred
) -> None:
    try:
        outcomes = await context.services.topics.auto_create(missing)
        errors = {
            name: outcome.code
            for name, outcome in outcomes.items()
            if isinstance(outcome, ApiError)
        }
    except ApiError as error:  # the commit failed
        errors = dict.fromkeys(missing, error.code)
    deferred.complete(_answer(context, request, errors))


def _answer(
    context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> bytes:
    services = context.services
    operations = ALL_TOPIC_OPERATIONS if request.include_topic_operations else OPERATIONS_NOT_ASKED
    if request.topics is None:
        topics = [
            _describe(context, topic, operations)
            for topic in services.metadata.image.topics.values()
        ]
    else:
        topics = [_look_up(context, wanted, operations, errors) for wanted in request.topics]
    response = MetadataResponse(
        brokers=_brokers(services, context.listener),
        cluster_id=services.cluster_id,
        controller_id=services.controller_id,
        topics=topics,
        cluster_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_operations else OPERATIONS_NOT_ASKED
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
    context: RequestContext, wanted: RequestedTopic, operations: int, errors: dict[str, ErrorCode]
) -> TopicEntry:
    image = context.services.metadata.image
    if wanted.topic_id != ZERO_ID:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return TopicEntry(None, wanted.topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(context, topic, operations)
    name = wanted.name or ""
    topic = image.topics.get(name)
    if topic is not None:
        return _describe(context, topic, operations)
    error = errors.get(name) or _name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicEntry(name, error=error)


def _name_error(name: str) -> ErrorCode | None:
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return None


def _describe(context: RequestContext, topic: TopicImage, operations: int) -> TopicEntry:
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
        operations=operations,
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
