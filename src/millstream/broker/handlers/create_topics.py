"""CreateTopics, v2-7: create topics; each succeeds or fails individually.

* v4: -1 partitions or replicas: the broker's defaults (also accepted in older versions)
* v5: flexible; the answer contains partitions, replicas and settings (KIP-525)
* v6: THROTTLING_QUOTA_EXCEEDED (KIP-599)
* v7: the answer contains the topic's id

The timeout is ignored: the answer is sent when the topic exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.broker.handlers._quotas import Mutations
from millstream.broker.handlers._rights import may_cluster, may_topic, split_topics
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest

    from millstream.coordination.cluster import TopicImage
    from millstream.protocol.messages import Fields

FIRST_VERSION_WITH_CONFIGS = 5
FIRST_VERSION_WITH_QUOTA_ERROR = 6


async def create_topics(context: RequestContext, request: CreateTopicsRequest) -> Fields:
    counts = Counter(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics if counts[topic.name] == 1}
    refused: Sequence[str] = ()
    if not may_cluster(context, Operation.CREATE, log_denied=False):
        allowed, refused = split_topics(context, Operation.CREATE, wanted, lambda name: name)
        wanted = {name: wanted[name] for name in allowed}
    mutations = Mutations(context, "create_topics", strict_since=FIRST_VERSION_WITH_QUOTA_ERROR)
    new = {str(name): _new_topic(topic) for name, topic in wanted.items()}
    actions = context.services.actions
    outcomes: dict[str, TopicImage | ApiError] = {}
    if mutations.is_limited:
        checked = await actions.create_topics(list(new.values()), validate_only=True)
        outcomes |= mutations.refusals(
            {
                name: len(topic.partitions)
                for name, topic in checked.items()
                if not isinstance(topic, ApiError)
            }
        )
    outcomes |= await actions.create_topics(
        [topic for name, topic in new.items() if name not in outcomes],
        validate_only=request.validate_only,
    )
    answers: list[Fields] = []
    describe = _describing(context)
    for name, topic in wanted.items():
        outcome = outcomes[name]
        if isinstance(outcome, ApiError):
            answers.append(_refused(name, outcome))
        else:
            answers.append(_created(context, outcome, describe(topic)))
    unauthorized = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    answers += [_refused(name, unauthorized) for name in refused]
    duplicate = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    answers += [_refused(name, duplicate) for name, count in counts.items() if count > 1]
    return {"topics": answers, "throttle_time": mutations.throttle()}


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            (assignment.partition_index, tuple(assignment.broker_ids))
            for assignment in topic.assignments
        ),
        settings={config.name: config.value for config in topic.configs},
    )


def _describing(context: RequestContext) -> Callable[[CreatableTopic], Sequence[Fields]]:
    """Describes the settings of new topics, once for all topics that are created alike."""
    configs = context.services.configs
    known: dict[tuple[tuple[str, str], ...], list[Fields]] = {}

    def describe(topic: CreatableTopic) -> Sequence[Fields]:
        if context.api_version < FIRST_VERSION_WITH_CONFIGS:
            return ()
        given = tuple((it.name, it.value) for it in topic.configs if it.value is not None)
        if given not in known:
            known[given] = [
                {
                    "name": described.setting.name,
                    "value": described.value,
                    "read_only": described.read_only,
                    "config_source": described.source,
                    "is_sensitive": described.setting.sensitive,
                }
                for described in configs.describe_new_topic(dict(given))
            ]
        return known[given]

    return describe


def _created(context: RequestContext, topic: TopicImage, configs: Sequence[Fields]) -> Fields:
    """Only to a client that may describe its settings is the new topic described."""
    if not may_topic(context, Operation.DESCRIBE_CONFIGS, topic.name, log_denied=False):
        return {
            "name": topic.name,
            "topic_id": topic.id,
            "error_code": ErrorCode.NONE,
            "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": (),
        }
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "error_code": ErrorCode.NONE,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": configs,
    }


def _refused(name: str, error: ApiError) -> Fields:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message or error.code.description,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
