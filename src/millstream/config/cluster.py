"""The cluster: ZooKeeper, and what its controller does by itself."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import boolean, integer, long, string


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterSettings:
    """ZooKeeper and the controller."""

    zookeeper_connect: str | None = string(
        None,
        importance="high",
        ours=True,  # of Kafka 3
        doc="Servers of ZooKeeper, as host:port,host:port/chroot; same as serve --zookeeper. Not "
        "set: this broker is a cluster of its own.",
    )
    zookeeper_session_timeout_ms: int = integer(
        18_000,
        low=500,
        importance="high",
        ours=True,  # of Kafka 3
        doc="After this time without contact, other brokers lead the partitions of this one. "
        "ZooKeeper allows 2 to 20 of its ticks.",
    )
    zookeeper_connection_timeout_ms: int | None = integer(
        None,
        low=1,
        importance="high",
        ours=True,  # of Kafka 3
        doc="How long a start waits for ZooKeeper; not set: as long as a session.",
    )
    auto_leader_rebalance_enable: bool = boolean(
        True,
        importance="high",
        doc="Preferred replicas lead again some time after they have caught up.",
    )
    leader_imbalance_check_interval_seconds: int = long(
        300,
        low=1,
        importance="high",
        doc="How often the controller lets preferred replicas lead again.",
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        low=0,
        importance="high",
        ours=True,  # of Kafka 3
        doc="Preferred replicas of a broker lead again if more than this share of them does not.",
    )
