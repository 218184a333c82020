"""The clusters that are written to: connections that are kept, and what is asked of the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.client.cluster import Cluster
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.pipelines.writing.options import WriteOptions

TIMEOUT_MS_DEFAULT = 15 * 60_000  # the most that Kafka allows by default
DECISION_TIMEOUT_MS = 180_000  # longer than brokers that are away are waited for

_clusters: dict[tuple[Any, ...], Cluster] = {}
_timeouts_ms: dict[str, int] = {}


def cluster_for(options: WriteOptions, role: str) -> Cluster:
    """This process's connections, kept from batch to batch; for writers and tasks, of which a
    process runs one at a time.
    """
    key = (options.bootstrap_servers, options.client_id, options.security, role)
    cluster = _clusters.get(key)
    if cluster is None:
        cluster = _clusters[key] = make_cluster(options, role)
    return cluster


def make_cluster(options: WriteOptions, role: str) -> Cluster:
    """Driver and tasks have client ids of their own: the one ends what the others have written."""
    return Cluster(
        options.bootstrap_servers,
        client_id=f"{options.client_id}-{role}",
        security=options.security,
        timeout_seconds=options.patience_ms / 1000,
        request_timeout_seconds=options.request_timeout_ms / 1000,
    )


def transaction_timeout_ms(options: WriteOptions, cluster: Cluster) -> int:
    """How long tasks' transactions may stay open: as long as the brokers allow, unless set."""
    return options.transaction_timeout_ms or _longest_timeout_ms(options, cluster)


def decision_timeout_ms(options: WriteOptions, cluster: Cluster) -> int:
    """How long the driver's own transaction may."""
    return min(DECISION_TIMEOUT_MS, _longest_timeout_ms(options, cluster))


def _longest_timeout_ms(options: WriteOptions, cluster: Cluster) -> int:
    known = _timeouts_ms.get(options.bootstrap_servers)
    if known is None:
        known = _timeouts_ms[options.bootstrap_servers] = _ask_timeout_ms(cluster)
    return known


def _ask_timeout_ms(cluster: Cluster) -> int:
    broker_id = cluster.broker_ids()[0]
    asked = {
        "resource_type": 4,  # a broker
        "resource_name": str(broker_id),
        "configuration_keys": ["transaction.max.timeout.ms"],
    }
    answer = cluster.ask_broker(broker_id, "describe_configs", {"resources": [asked]})
    for it in answer.results[0].configs:
        if it.name == "transaction.max.timeout.ms" and it.value:
            return int(it.value)
    return TIMEOUT_MS_DEFAULT  # not set, or not allowed to read it


def partition_count(cluster: Cluster, topic: str, needed: int) -> int:
    """The known one; requested again if it is less than what is needed."""

    def count() -> int:
        try:
            known = len(cluster.topic(topic).partitions)
            if known >= needed:
                return known
            return len(cluster.topic(topic, seconds_old_max=0.0).partitions)
        except ApiError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return 0  # a topic of another cluster
            raise

    return cluster.retrying(count)
