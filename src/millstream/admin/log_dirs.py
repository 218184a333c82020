"""The log directories of brokers: their size, their free space, and the replicas in them.

A broker that does not answer, and a user without the right (Describe on the cluster), get a
`DirectoryState` with the reason: the others are still shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

UNKNOWN_BYTES = -1


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One log directory; its sizes are those of its volume, and -1 if the broker has none."""

    broker: int
    path: str
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES
    replicas: int = 0
    log_bytes: int = 0
    problem: str = ""

    @property
    def used_share(self) -> float | None:
        """The share of the volume that is in use, by whatever."""
        if self.total_bytes <= 0 or self.usable_bytes < 0:
            return None
        return 1 - self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica in its log directory, and where it moves, if it does."""

    topic: str
    partition: int
    broker: int
    log_dir: str
    bytes: int
    moving_to: str | None = None
    copied_bytes: int = 0
    lag: int | None = None  # records not copied yet


@dataclass(frozen=True)
class LogDirs:
    directories: list[DirectoryState]
    replicas: list[ReplicaState]


def log_dirs(
    cluster: Cluster,
    brokers: Sequence[int] | None = None,
    partitions: Iterable[tuple[str, int]] | None = None,
) -> LogDirs:
    """The directories of these brokers (None: of all), with these partitions (None: all)."""
    known = cluster.broker_ids(seconds_old_max=1.0)
    fields = {"topics": None if partitions is None else _by_topic(partitions)}
    found = LogDirs([], [])
    for broker in known if brokers is None else brokers:
        try:
            answer = cluster.ask_broker(broker, "describe_log_dirs", fields)
            check(
                getattr(answer, "error_code", ErrorCode.NONE),
                f"broker {broker} does not describe its log directories",
                "describe_log_dirs",
            )
        except (OSError, ApiError) as error:
            found.directories.append(DirectoryState(broker, "", problem=str(error)))
            continue
        for result in answer.results:
            replicas = _replicas(broker, result)
            found.directories.append(_directory(broker, result, replicas))
            found.replicas.extend(replicas)
    return LogDirs(found.directories, _merge_moves(found.replicas))


def _by_topic(partitions: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [{"topic": name, "partitions": them} for name, them in topics.items()]


def _directory(broker: int, result: Any, replicas: Sequence[ReplicaState]) -> DirectoryState:
    failed = result.error_code is not ErrorCode.NONE
    return DirectoryState(
        broker,
        str(result.log_dir),
        int(getattr(result, "total_bytes", UNKNOWN_BYTES)),
        int(getattr(result, "usable_bytes", UNKNOWN_BYTES)),
        sum(it.moving_to is None for it in replicas),
        sum(it.bytes for it in replicas),
        f"{result.error_code.name}: the directory is offline" if failed else "",
    )


def _replicas(broker: int, result: Any) -> list[ReplicaState]:
    path = str(result.log_dir)
    return [
        ReplicaState(
            str(topic.name),
            int(it.partition_index),
            broker,
            "" if it.is_future_key else path,
            0 if it.is_future_key else int(it.partition_size),
            path if it.is_future_key else None,
            int(it.partition_size) if it.is_future_key else 0,
            int(it.offset_lag) if it.is_future_key else None,
        )
        for topic in result.topics
        for it in topic.partitions
    ]


def _merge_moves(replicas: Iterable[ReplicaState]) -> list[ReplicaState]:
    """One entry for a replica that moves: it is listed in both directories."""
    merged: dict[tuple[str, int, int], ReplicaState] = {}
    for it in replicas:
        key = (it.topic, it.partition, it.broker)
        other = merged.get(key)
        if other is None:
            merged[key] = it
            continue
        here, future = (other, it) if it.moving_to is not None else (it, other)
        merged[key] = ReplicaState(
            *key, here.log_dir, here.bytes, future.moving_to, future.copied_bytes, future.lag
        )
    return [merged[key] for key in sorted(merged)]
