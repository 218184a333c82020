"""Replication settings: how followers fetch, and when they are in sync."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.config.setting import LONG_MAX, Mode, integer, long, string
from millstream.errors import ConfigError

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def check_throttled_replicas(name: str, replicas: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless it is * or a list of partition:broker."""
    if replicas == ("*",) or all(map(_THROTTLED_REPLICA.fullmatch, replicas)):
        return
    raise ConfigError(
        f"Invalid value {','.join(replicas)} for configuration {name}: {name} must be the literal "
        "'*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReplicationSettings:
    """Followers and in-sync sets."""

    replica_lag_time_max_ms: int = long(
        30_000,
        low=1,
        importance="high",
        doc="A follower that has not caught up with its leader for so long leaves the in-sync "
        "set. Time for which the leader itself was slow does not count.",
    )
    replica_fetch_wait_max_ms: int = integer(
        500, low=0, importance="high", doc="How long a leader holds a follower's empty fetch."
    )
    replica_fetch_min_bytes: int = integer(
        1, low=0, importance="high", doc="Bytes for which a leader answers a follower at once."
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576, low=0, doc="Bytes of one partition in an answer to a follower."
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760, low=0, doc="Bytes of all partitions in an answer to a follower."
    )
    replica_selector_class: str | None = string(
        None,
        doc=f"With {RACK_AWARE_SELECTOR}, consumers read at an in-sync replica in their rack "
        "(client.rack, broker.rack); otherwise at the leader.",
    )
    replica_fetch_backoff_ms: int = integer(
        1_000, low=0, doc="The pause of a follower after an error."
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long(
        LONG_MAX,
        low=1,
        mode=Mode.CLUSTER_WIDE,
        ours=True,  # Kafka's, but not in its list: it can be set at run time only
        doc="Bytes per second that are copied when replicas move to another log directory.",
    )
    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        low=0,
        mode=Mode.CLUSTER_WIDE,
        ours=True,  # likewise
        doc="Bytes per second that this broker sends to followers that are not in sync, of the "
        "replicas in the topics' leader.replication.throttled.replicas.",
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        low=0,
        mode=Mode.CLUSTER_WIDE,
        ours=True,  # likewise
        doc="Bytes per second that this broker fetches for followers that are not in sync, of the "
        "replicas in the topics' follower.replication.throttled.replicas.",
    )
