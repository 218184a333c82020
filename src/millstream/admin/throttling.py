"""Throttles of reassignments, set and removed as Kafka's own tool does it.

    brokers    leader.replication.throttled.rate, follower.replication.throttled.rate
    topics     leader.replication.throttled.replicas: the replicas that partitions have
               follower.replication.throttled.replicas: those that they get

Only replicas that are not in sync are throttled, so the replicas of before go on as always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.client.cluster import check

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
TOPIC, BROKER = 2, 4  # types of resources
SET, DELETE = 0, 1
SET_FOR_TOPIC = 1  # the source of a setting in DescribeConfigs


class Moved(NamedTuple):
    """A partition that moves: its replicas before, and those that it gets."""

    topic: str
    partition: int
    sources: tuple[int, ...]
    added: tuple[int, ...]


def set_throttles(cluster: Cluster, moved: Collection[Moved], bytes_per_second: int) -> None:
    """Throttle these partitions on all of their brokers."""
    for topic, settings in throttled_replicas(moved).items():
        _alter(cluster, cluster.broker_ids()[0], TOPIC, topic, settings)
    rates: dict[str, str | None] = dict.fromkeys(RATES, str(bytes_per_second))
    involved = {broker for it in moved for broker in it.sources + it.added}
    _alter_brokers(cluster, involved, rates)


def throttled_replicas(moved: Iterable[Moved]) -> dict[str, dict[str, str | None]]:
    """The settings of each topic."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for topic, partition, sources, added in sorted(moved):
        leaders.setdefault(topic, []).extend(f"{partition}:{it}" for it in sources)
        followers.setdefault(topic, []).extend(f"{partition}:{it}" for it in added)
    return {
        topic: {LEADERS: ",".join(leaders[topic]), FOLLOWERS: ",".join(followers[topic])}
        for topic in leaders
    }


def remove_throttles(
    cluster: Cluster, topics: Collection[str] | None, *, is_moving: bool
) -> list[str]:
    """Remove the throttles of these topics (None: of all), and the rates of brokers unless other
    partitions still move. Returns the topics that had throttles."""
    throttled = [it for it in throttled_topics(cluster) if topics is None or it in topics]
    for topic in throttled:
        removed: dict[str, str | None] = {LEADERS: None, FOLLOWERS: None}
        _alter(cluster, cluster.broker_ids()[0], TOPIC, topic, removed)
    if not is_moving and (throttled or topics is None):
        _alter_brokers(cluster, cluster.broker_ids(), dict.fromkeys(RATES))
    return throttled


def throttled_topics(cluster: Cluster) -> list[str]:
    """The topics with throttled replicas."""
    names = sorted(cluster.retrying(cluster.refresh))
    resources = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "configuration_keys": [LEADERS, FOLLOWERS],
        }
        for name in names
    ]
    fields = {
        "resources": resources,
        "include_synonyms": False,
        "include_documentation": False,
    }
    answer = cluster.ask_broker(cluster.broker_ids()[0], "describe_configs", fields)
    return [
        str(result.resource_name)
        for result in answer.results
        if any(it.config_source == SET_FOR_TOPIC and it.value for it in result.configs)
    ]


def _alter_brokers(
    cluster: Cluster, brokers: Iterable[int], settings: Mapping[str, str | None]
) -> None:
    """Each is asked itself. Those that are gone transfer nothing."""
    for broker in sorted(set(brokers) & set(cluster.broker_ids())):
        _alter(cluster, broker, BROKER, str(broker), settings)


def _alter(
    cluster: Cluster,
    broker: int,
    kind: int,
    name: str,
    settings: Mapping[str, str | None],
) -> None:
    """Set these settings; None unsets."""
    configs: list[dict[str, Any]] = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": False}
    (outcome,) = cluster.ask_broker(broker, "incremental_alter_configs", fields).responses
    check(outcome.error_code, f"throttling {name}: {outcome.error_message}")
