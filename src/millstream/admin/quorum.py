"""Where a cluster keeps its metadata, as far as its protocol tells: the controller, brokers that
can become it, those that follow, the brokers that are registered but not live, and the levels of
its features. A broker that is gone for good is unregistered here."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

METADATA_TOPIC = "__cluster_metadata"
FIRST_WITH_FENCED = 2  # of DescribeCluster
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Follower:
    """A voter or an observer. `lag` counts records of the metadata log; None if unknown."""

    id: int
    is_voter: bool
    log_end: int
    lag: int | None
    last_caught_up_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    level: int  # finalized; 0: disabled


@dataclass(frozen=True)
class Quorum:
    leader: int = UNKNOWN
    epoch: int = UNKNOWN
    high_watermark: int = UNKNOWN
    followers: list[Follower] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)  # registered, and not live
    features: list[Feature] = field(default_factory=list)
    problem: str = ""  # why the quorum is not described


def quorum(cluster: Cluster) -> Quorum:
    """The metadata quorum, or why it is not described: the broker, or the rights of the user."""
    connection = cluster.retrying(cluster.any_connection)
    features = [Feature(name, level) for name, level in sorted(connection.features.items())]
    fenced = _fenced(cluster)
    asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    try:
        answer = cluster.retrying(
            lambda: cluster.any_connection().call("describe_quorum", {"topics": asked})
        )
        code = answer.error_code
        check(code, answer.error_message or "the quorum is not described", "describe_quorum")
        it = answer.topics[0].partitions[0]
        check(it.error_code, getattr(it, "error_message", None) or "no metadata quorum")
    except ApiError as error:
        return Quorum(fenced=fenced, features=features, problem=str(error))
    end = max((int(one.log_end_offset) for one in it.current_voters), default=UNKNOWN)
    followers = [_follower(one, end, is_voter=True) for one in it.current_voters]
    followers += [_follower(one, end, is_voter=False) for one in it.observers]
    followers.sort(key=lambda one: (not one.is_voter, one.id))
    return Quorum(
        int(it.leader_id), int(it.leader_epoch), int(it.high_watermark), followers, fenced, features
    )


def unregister_broker(cluster: Cluster, broker_id: int) -> None:
    """Have the cluster forget a broker that is gone for good. Raises `ApiError`."""
    fields = {"broker_id": broker_id}
    answer = cluster.retrying(lambda: cluster.any_connection().call("unregister_broker", fields))
    code = answer.error_code
    check(code, answer.error_message or code.description, "unregister_broker")


def _follower(it: Any, end: int, *, is_voter: bool) -> Follower:
    log_end = int(it.log_end_offset)
    caught_up = int(getattr(it, "last_caught_up_timestamp", UNKNOWN))
    lag = max(0, end - log_end) if log_end >= 0 else None
    return Follower(int(it.replica_id), is_voter, log_end, lag, caught_up)


def _fenced(cluster: Cluster) -> list[int]:
    """Registered brokers that are not live; none where the broker does not say."""
    connection = cluster.any_connection()
    try:
        version = connection.version_for("describe_cluster")
    except ApiError:
        return []
    if version < FIRST_WITH_FENCED:
        return []
    fields = {"include_cluster_authorized_operations": False, "include_fenced_brokers": True}
    answer = connection.call("describe_cluster", fields)
    if answer.error_code is not ErrorCode.NONE:
        return []
    return sorted(int(it.broker_id) for it in answer.brokers if it.is_fenced)
