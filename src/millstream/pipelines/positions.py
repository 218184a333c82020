"""Where topics begin and end: what the driver asks the brokers before it plans a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.client.cluster import Cluster, check
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.pipelines.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from millstream.pipelines.options import Position, ReadOptions

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Positions:
    """Looks up partitions and offsets of what a reader has subscribed to."""

    def __init__(self, options: ReadOptions, cluster: Cluster | None = None) -> None:
        self._options = options
        self._cluster = cluster or Cluster(
            options.bootstrap_servers,
            client_id=options.client_id,
            security=options.security,
            timeout_seconds=options.request_timeout_ms / 1000,
        )

    def close(self) -> None:
        self._cluster.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions that there are now; raises for a topic that is not there."""
        selection = self._options.selection
        if selection.partitions:
            return sorted(selection.partitions)
        if selection.pattern is not None:
            pattern = re.compile(selection.pattern)
            found = self._cluster.retrying(lambda: self._cluster.refresh(None))
            topics = [info for name, info in found.items() if pattern.fullmatch(name)]
        else:
            found = self._cluster.retrying(lambda: self._cluster.refresh(selection.topics))
            missing = [name for name in selection.topics if name not in found]
            if missing:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"there is no topic {', '.join(missing)} at {self._options.bootstrap_servers}; "
                    "create it first, or check the option subscribe",
                )
            topics = list(found.values())
        return sorted((info.name, it.number) for info in topics for it in info.partitions)

    def resolve(self, position: Position, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset of each partition that `position` stands for."""
        partitions = list(partitions)
        self._check_named(position, partitions)
        if position.timestamp_ms is not None:
            return self._at_timestamps(
                dict.fromkeys(partitions, position.timestamp_ms), position.when_none_is_as_new
            )
        if position.timestamps_ms:
            by_time = self._at_timestamps(position.timestamps_ms, position.when_none_is_as_new)
            rest = [it for it in partitions if it not in by_time]
            return by_time | self.lookup(dict.fromkeys(rest, position.everywhere))
        asked = {it: position.offsets.get(it, position.everywhere) for it in partitions}
        fixed = {it: offset for it, offset in asked.items() if offset >= 0}
        moving = {it: offset for it, offset in asked.items() if offset < 0}
        return fixed | self.lookup(moving)

    def _check_named(self, position: Position, partitions: list[TopicPartition]) -> None:
        for topic, number in (*position.offsets, *position.timestamps_ms):
            if (topic, number) not in partitions:
                raise ConfigError(
                    f"offsets are given for {topic}-{number}, which is not among what is read"
                )

    def _at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int], none: str) -> Offsets:
        found = self.lookup(timestamps_ms)
        late = [it for it, offset in found.items() if offset < 0]
        if late and none == "error":
            topic, partition = late[0]
            raise ConfigError(
                f"{topic}-{partition} has no record as new as {timestamps_ms[late[0]]}; set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end then"
            )
        return found | self.lookup(dict.fromkeys(late, LATEST))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.lookup(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The end: for a read-committed reader, where the oldest open transaction begins."""
        return self.lookup(dict.fromkeys(partitions, LATEST))

    def lookup(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets by timestamp, or by EARLIEST and LATEST; -1 where no record is as new."""
        if not timestamps_ms:
            return {}
        return self._cluster.retrying(lambda: self._ask_leaders(timestamps_ms))

    def _ask_leaders(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for (topic, partition), timestamp in timestamps_ms.items():
            leader = self._cluster.leader(topic, partition)
            topics = by_leader.setdefault(leader, {})
            topics.setdefault(topic, []).append((partition, timestamp))
        found: Offsets = {}
        for leader, topics in by_leader.items():
            answer = self._cluster.connection(leader).call(
                "list_offsets", _list_offsets(topics, self._options.read_committed)
            )
            for topic in answer.topics:
                for it in topic.partitions:
                    check(it.error_code, f"offsets of {topic.name}-{it.partition_index}")
                    found[topic.name, int(it.partition_index)] = int(it.offset)
        return found


def _list_offsets(
    topics: Mapping[str, list[tuple[int, int]]], read_committed: bool
) -> Mapping[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": it, "current_leader_epoch": -1, "timestamp": timestamp}
                    for it, timestamp in partitions
                ],
            }
            for name, partitions in topics.items()
        ],
    }


def check_for_loss(
    start: Offsets,
    earliest: Offsets,
    *,
    fail: bool,
    report: Callable[[str], None],
) -> Offsets:
    """`start`, moved up to where the log begins now; raises `DataLost` if that is to `fail`."""
    lost = {it: earliest[it] for it in start if start[it] < earliest.get(it, 0)}
    if not lost:
        return start
    details = ", ".join(
        f"{topic}-{partition}: {start[topic, partition]} to {offset - 1}"
        for (topic, partition), offset in sorted(lost.items())
    )
    message = f"records were deleted before they were read ({details})"
    if fail:
        raise DataLost(
            f"{message}: raise retention.ms, or set failOnDataLoss=false to go on without them"
        )
    report(message)
    return start | lost


class DataLost(ConfigError):
    """Retention was faster than the reader."""
