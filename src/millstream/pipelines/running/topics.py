"""The topics that pipelines need: checked before anything starts, and created on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import PipelineSpec, Topic

CONNECT_SECONDS = 10.0


class BrokerUnreachable(MillstreamError):
    """No broker answers at the address."""


def needed_topics(pipelines: Iterable[PipelineSpec]) -> dict[str, Topic]:
    """All topics that are read or written, by name."""
    needed: dict[str, Topic] = {}
    for pipeline in pipelines:
        for it in (*pipeline.writes.values(), *pipeline.reads.values()):
            if isinstance(it, Topic):
                needed[it.name] = it
    return needed


def check_topics(settings: Settings, pipelines: Iterable[PipelineSpec]) -> dict[str, UUID]:
    """The ids of all topics; raises `ConfigError` if some are missing and are not to be created.

    Dead-letter topics are created by the first reader that needs one.
    """
    needed = needed_topics(pipelines)
    address = settings.required_broker()
    with Cluster(
        address,
        client_id="millstream-run",
        security=settings.kafka,
        timeout_seconds=CONNECT_SECONDS,
    ) as cluster:
        try:
            found = cluster.retrying(lambda: cluster.refresh(list(needed)))
        except OSError as error:
            raise BrokerUnreachable(f"no broker answers at {address}: {error}") from error
        missing = [name for name in needed if name not in found]
        if missing and not settings.create_topics:
            raise ConfigError(
                f"there is no topic {', '.join(missing)} at {address}: create it with `millstream "
                f"topic create {missing[0]}`, or let `millstream run --create-topics` do so"
            )
        if missing:
            create_topics(cluster, {name: needed[name].partitions for name in missing})
            found |= cluster.retrying(lambda: cluster.refresh(missing))
        return {name: it.id for name, it in found.items() if it.id is not None and it.id.int}


def create_topics(cluster: Cluster, partitions: dict[str, int]) -> None:
    """Create topics with the cluster's default number of replicas, if they do not exist."""
    if not partitions:
        return
    request = {
        "topics": [
            {
                "name": name,
                "num_partitions": count,
                "replication_factor": -1,
                "assignments": [],
                "configs": [],
            }
            for name, count in partitions.items()
        ],
        "timeout_ms": 30_000,
        "validate_only": False,
    }
    answer: Any = cluster.retrying(lambda: cluster.any_connection().call("create_topics", request))
    for topic in answer.topics:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            detail = topic.error_message or topic.error_code.description
            raise ApiError(topic.error_code, f"topic {topic.name} cannot be created: {detail}")
