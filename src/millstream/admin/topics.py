"""Creating topics, adding partitions, deleting topics. All raise `ApiError` with what the broker
says, and the right that the user lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.admin.errors import OperationFailed
from millstream.admin.waiting import wait_until_shown
from millstream.client.cluster import check
from millstream.client.topics import BROKER_DEFAULT, TIMEOUT_MS
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

TIMEOUT = timedelta(milliseconds=TIMEOUT_MS)


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    settings: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> None:
    """Create a topic; None is the broker's default. It must not exist."""
    topic = {
        "name": name,
        "num_partitions": BROKER_DEFAULT if partitions is None else partitions,
        "replication_factor": BROKER_DEFAULT if replication_factor is None else replication_factor,
        "configs": [{"name": key, "value": it} for key, it in (settings or {}).items()],
    }
    fields = {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": dry_run}
    result = _ask(cluster, "create_topics", fields).topics[0]
    _check(result, f"cannot create topic {name}", "create_topics")
    if not dry_run:
        _wait_for(cluster, name, lambda partitions: partitions > 0)


def add_partitions(cluster: Cluster, name: str, count: int, *, dry_run: bool = False) -> None:
    """Give the topic `count` partitions in all."""
    topic = {"name": name, "count": count, "assignments": None}
    fields = {"topics": [topic], "timeout": TIMEOUT, "validate_only": dry_run}
    result = _ask(cluster, "create_partitions", fields).results[0]
    _check(result, f"cannot add partitions to topic {name}", "create_partitions")
    if not dry_run:
        _wait_for(cluster, name, lambda partitions: partitions >= count)


def delete_topic(cluster: Cluster, name: str, topic_id: UUID | None = None) -> None:
    """Delete the topic with all its records; with an id, this one and no other of its name."""
    topic = {"name": name if topic_id is None else None, "topic_id": topic_id}
    result = _ask(cluster, "delete_topics", {"topics": [topic], "timeout": TIMEOUT}).responses[0]
    if result.error_code is ErrorCode.UNKNOWN_TOPIC_ID:
        raise another_topic(name)
    _check(result, f"cannot delete topic {name}", "delete_topics")
    if topic_id is None:
        _wait_for(cluster, name, lambda partitions: partitions == 0)
    else:
        wait_until_shown(lambda: current_id(cluster, name) != topic_id)


def check_same_topic(cluster: Cluster, name: str, topic_id: UUID | None) -> None:
    """Raises `OperationFailed` if the topic of this name has another id by now."""
    if topic_id is not None and current_id(cluster, name) != topic_id:
        raise another_topic(name)


def current_id(cluster: Cluster, name: str) -> UUID | None:
    """None if there is no such topic, or if the user may not describe it."""
    try:
        found = cluster.refresh([name]).get(name)
    except ApiError:
        return None
    return None if found is None else found.id


def another_topic(name: str) -> OperationFailed:
    return OperationFailed(
        f"topic {name} was deleted meanwhile, and may have been created again; reload the page"
    )


def _wait_for(cluster: Cluster, name: str, has_changed: Callable[[int], bool]) -> None:
    """Wait until the number of partitions is as expected; 0 if there is no such topic."""

    def shown() -> bool:
        try:
            found = cluster.refresh([name]).get(name)
        except ApiError:  # the user may not describe the topic
            return True
        return has_changed(len(found.partitions) if found is not None else 0)

    wait_until_shown(shown)


def _ask(cluster: Cluster, api: str, fields: dict[str, Any]) -> Any:
    """Ask a broker, once: a request whose answer was lost may have been carried out. One that is
    not the controller forwards it."""
    broker = cluster.broker_ids(seconds_old_max=10.0)[0]
    return cluster.connection(broker).call(api, fields)


def _check(result: Any, what: str, api: str) -> None:
    detail = result.error_message or result.error_code.description
    check(result.error_code, f"{what}: {detail}", api)
