"""The topics that pipelines need: checked before anything starts, and created on request."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import PipelineSpec, Topic
from millstream.pipelines.standing.topic import new_topic

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
    pipelines = list(pipelines)
    needed = needed_topics(pipelines)
    queries = {it.queries for each in pipelines for it in each.reads.values() if it.queries}
    address = settings.required_broker()
    with Cluster(
        address,
        client_id="millstream-run",
        security=settings.kafka,
        timeout_seconds=CONNECT_SECONDS,
    ) as cluster:
        try:
            found = cluster.retrying(lambda: cluster.refresh([*needed, *queries]))
        except OSError as error:
            raise BrokerUnreachable(f"no broker answers at {address}: {error}") from error
        missing = [name for name in needed if name not in found]
        _check_queries(cluster, settings, queries - found.keys())
        if missing and not settings.create_topics:
            raise ConfigError(
                f"there is no topic {', '.join(missing)} at {address}: create it with `millstream "
                f"topic create {missing[0]}`, or repeat the command with --create-topics"
            )
        if missing:
            create_topics(cluster, [NewTopic(name, needed[name].partitions) for name in missing])
            found |= cluster.retrying(lambda: cluster.refresh(missing))
        return {
            name: it.id
            for name, it in found.items()
            if it.id is not None and it.id.int and name in needed
        }


def _check_queries(cluster: Cluster, settings: Settings, missing: Collection[str]) -> None:
    """Create missing topics of standing queries, or raise `ConfigError`."""
    if missing and not settings.create_topics:
        raise ConfigError(
            f"there is no topic {', '.join(sorted(missing))} of standing queries: create it with "
            f"`millstream queries create {min(missing)} --schema ...`, or repeat the command with "
            "--create-topics"
        )
    create_topics(cluster, [new_topic(name) for name in missing])
