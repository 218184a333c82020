"""Creating topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.client.cluster import Cluster, check
from millstream.errors import ApiError, ErrorCode

BROKER_DEFAULT = -1
_REFUSED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = BROKER_DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)
    replicas: int = BROKER_DEFAULT


def create_topics(cluster: Cluster, topics: Sequence[NewTopic]) -> None:
    """Create topics; existing ones are left as they are. Raises `ApiError` for the first topic that
    the broker refuses."""
    if not topics:
        return
    request = {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replicas,
                "configs": [{"name": name, "value": it} for name, it in topic.settings.items()],
            }
            for topic in topics
        ],
        "timeout": TIMEOUT_MS,
    }
    answer: Any = cluster.retrying(lambda: cluster.any_connection().call("create_topics", request))
    for it in answer.topics:
        if it.error_code in _REFUSED and _is_there(cluster, it.name):
            continue  # brokers refuse it before they look for it
        if it.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            detail = it.error_message or it.error_code.description
            check(it.error_code, f"cannot create topic {it.name}: {detail}", "create_topics")


def _is_there(cluster: Cluster, topic: str) -> bool:
    """Whether the user sees the topic."""
    try:
        return topic in cluster.retrying(lambda: cluster.refresh([topic]))
    except ApiError:
        return False
