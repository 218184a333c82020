"""Metadata, v0-13: brokers, topics, partitions and their leaders; creates topics that are missing.

* v4: a client may forbid the creation
* v5: offline replicas
* v7: leader epochs
* v8-10: the cluster's authorized operations (in DescribeCluster since); v8: those of topics
* v9: flexible
* v10: topic ids; v12: topics asked for by id
* v13: an error for the whole (not needed)

Answers are kept as bytes until the metadata change: hundreds of clients ask the same. A topic that
is missing is created before the answer, so that the client need not ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers.describe_cluster import ALL_CLUSTER_OPERATIONS
from millstream.broker.metadata.topics import validate_topic_name
from millstream.broker.network.request import Deferred, RequestContext
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
    from millstream.broker.server import BrokerServer
    from millstream.coordination.cluster import TopicImage

# Without an authorizer everyone may do everything: bits of READ, WRITE, CREATE, DELETE, ALTER,
# DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS.
ALL_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))

CACHED_ANSWERS_MAX = 256
CACHED_ANSWER_BYTES_MAX = 1024 * 1024


class MetadataCache:
    """Encoded answers, good for one version of the metadata."""

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[tuple[int, str, bytes], bytes] = {}

    def get(self, version: int, key: tuple[int, str, bytes]) -> bytes | None:
        if version != self._version:
            self._answers.clear()
            self._version = version
        return self._answers.get(key)

    def put(self, key: tuple[int, str, bytes], answer: bytes) -> None:
        if len(answer) <= CACHED_ANSWER_BYTES_MAX:
            if len(self._answers) >= CACHED_ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = answer

    def clear(self) -> None:
        """Something that is not in the metadata has changed: a log directory failed."""
        self._answers.clear()


def metadata(context: RequestContext, body: Buffer) -> bytes | Deferred:
    broker = context.broker
    key = (context.api_version, context.listener, bytes(body))
    cached = broker.metadata_cache.get(broker.metadata.image.version, key)
    if cached is not None:
        return cached
    request = decode_metadata_request(body, context.api_version)
    missing = _to_create(broker, request)
    if missing:
        deferred = Deferred()
        broker.start_task(_create_and_answer(context, request, missing, deferred))
        return deferred
    answer = _answer(context, request, {})
    broker.metadata_cache.put(key, answer)
    return answer


def _to_create(broker: BrokerServer, request: MetadataRequest) -> list[str]:
    """The topics that the request brings into being."""
    if not (request.topics and request.allow_auto_topic_creation):
        return []
    if not broker.config.auto_create_topics_enable:
        return []
    topics = broker.metadata.image.topics
    return [
        topic.name
        for topic in request.topics
        if topic.name and topic.name not in topics and _name_error(topic.name) is None
    ]


async def _create_and_answer(
    context: RequestContext, request: MetadataRequest, missing: list[str], deferred: Deferred
) -> None:
    errors: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            await context.broker.topics.auto_create(name)
        except ApiError as error:
            errors[name] = error.code
    deferred.complete(_answer(context, request, errors))


def _answer(
    context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> bytes:
    broker = context.broker
    operations = ALL_TOPIC_OPERATIONS if request.include_topic_operations else OPERATIONS_NOT_ASKED
    if request.topics is None:
        topics = [
            _describe(broker, topic, operations) for topic in broker.metadata.image.topics.values()
        ]
    else:
        topics = [_look_up(broker, wanted, operations, errors) for wanted in request.topics]
    response = MetadataResponse(
        brokers=_brokers(broker, context.listener),
        cluster_id=broker.cluster_id,
        controller_id=broker.id,
        topics=topics,
        cluster_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_operations else OPERATIONS_NOT_ASKED
        ),
    )
    return encode_metadata_response(context.api_version, response)


def _brokers(broker: BrokerServer, listener: str) -> list[BrokerEntry]:
    entries = []
    for node in broker.metadata.image.brokers.values():
        endpoint = node.endpoint(listener)
        if endpoint is not None and not node.fenced:
            entries.append(BrokerEntry(node.id, endpoint.host, endpoint.port, node.rack))
    return entries


def _look_up(
    broker: BrokerServer, wanted: RequestedTopic, operations: int, errors: dict[str, ErrorCode]
) -> TopicEntry:
    image = broker.metadata.image
    if wanted.topic_id != ZERO_ID:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return TopicEntry(None, wanted.topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(broker, topic, operations)
    name = wanted.name or ""
    topic = image.topics.get(name)
    if topic is not None:
        return _describe(broker, topic, operations)
    error = errors.get(name) or _name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicEntry(name, error=error)


def _name_error(name: str) -> ErrorCode | None:
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return None


def _describe(broker: BrokerServer, topic: TopicImage, operations: int) -> TopicEntry:
    return TopicEntry(
        name=topic.name,
        topic_id=topic.id,
        partitions=[
            describe_partition(broker, topic, index) for index in range(len(topic.partitions))
        ],
        is_internal=topic.is_internal,
        operations=operations,
    )


def describe_partition(broker: BrokerServer, topic: TopicImage, index: int) -> PartitionEntry:
    """A partition as clients see it: without a leader while its log directory is offline."""
    image = topic.partitions[index]
    partition = broker.partitions.get(topic.name, index)
    if image.leader == broker.id and (partition is None or partition.offline_error is not None):
        return PartitionEntry(
            partition=index,
            leader_id=-1,
            leader_epoch=image.leader_epoch,
            replicas=image.replicas,
            in_sync=image.isr,
            offline=(broker.id,),
            error=ErrorCode.LEADER_NOT_AVAILABLE,
        )
    return PartitionEntry(index, image.leader, image.leader_epoch, image.replicas, image.isr)
