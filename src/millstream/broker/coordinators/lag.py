"""Lag of groups, and a warning before retention deletes unread records.

Whenever retention has been applied, each group's commits are compared with the logs. One line is
logged for a group and partition when its oldest unread record has used up
`millstream.lag.retention.warning.ratio` of its retention, and another when records were deleted
unread; neither is repeated until the group commits. The number of lost records is available at any
time, also after a restart (see `coordination/groups/retained_loss.py`), and any client can compute
it: if the log start offset is past the committed offset, the difference is lost.

Of partitions that another broker leads, that broker is asked: for the ends of the log, and for the
first record that has not used up that share of its retention. `retention.bytes` counts only for
partitions of this broker.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from millstream.broker.coordinators.groups import GroupCoordinator
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.store import MetadataStore
from millstream.broker.peers.partitions import EARLIEST, LATEST, RemotePartitions
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.table import PartitionTable
from millstream.coordination.group_records import OffsetCommitKey, OffsetCommitValue
from millstream.coordination.groups.retained_loss import (
    OldestUnread,
    PartitionLag,
    Retention,
    retention_used,
)
from millstream.coordination.groups.shard import GroupShard
from millstream.errors import ApiError, NotCached
from millstream.records.batch import NO_TIMESTAMP

logger = logging.getLogger("millstream.lag")

NO_LEADER = -1


class Threat(Enum):
    """Severity."""

    ENDANGERED = "endangered"
    LOST = "lost"


class GroupLag:
    """Compares what groups have committed with the partitions that this broker leads."""

    def __init__(
        self,
        groups: GroupCoordinator,
        partitions: PartitionTable,
        configs: ConfigManager,
        metadata: MetadataStore,
        remote: RemotePartitions,
    ) -> None:
        self._metadata = metadata
        self._remote = remote
        self._groups = groups
        self._partitions = partitions
        self._configs = configs
        # Warnings already logged, by group and partition.
        self._warned: dict[OffsetCommitKey, tuple[int, Threat]] = {}
        self._check: asyncio.Task[object] | None = None

    def of_group(self, group_id: str) -> list[PartitionLag]:
        """The lag of a group in each partition with a committed offset."""
        shards = self._groups.shards()
        return [lag for shard in shards for _, lag, _ in self._of_group(shard, group_id)]

    def check(self, now_ms: int) -> None:
        """Start a check for new threats, unless one is running. Call it on the event loop."""
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self.find_threats(now_ms))

    def stop(self) -> None:
        if self._check is not None:
            self._check.cancel()

    async def find_threats(self, now_ms: int) -> list[tuple[PartitionLag, Threat]]:
        """Log a line for each new threat; returns those that were logged.

        There may be many commits, so other tasks run between groups.
        """
        ratio = self._configs.current.millstream_lag_retention_warning_ratio
        found: dict[OffsetCommitKey, tuple[int, Threat]] = {}
        logged: list[tuple[PartitionLag, Threat]] = []

        def note(key: OffsetCommitKey, lag: PartitionLag, threat: Threat | None) -> None:
            if threat is None:
                return
            found[key] = (lag.committed, threat)
            if self._warned.get(key) != found[key]:
                _log(lag, threat)
                logged.append((lag, threat))

        elsewhere: dict[int, dict[OffsetCommitKey, int]] = {}  # by leader: what was committed
        for shard in self._groups.shards():
            for group_id in shard.offsets.group_ids():
                for key, lag, partition in self._of_group(shard, group_id):
                    note(key, lag, self._threat(lag, partition, ratio, now_ms))
                for leader, key, committed in self._led_elsewhere(shard, group_id):
                    elsewhere.setdefault(leader, {})[key] = committed
                await asyncio.sleep(0)
        for leader, commits in elsewhere.items():
            try:
                threats = await self._ask(leader, commits, ratio, now_ms)
            except ApiError as error:
                logger.info("the lag on broker %d is not known: %s", leader, error)
                found |= {key: self._warned[key] for key in commits if key in self._warned}
                continue
            for key, lag, threat in threats:
                note(key, lag, threat)
        self._warned = found
        return logged

    def _led_elsewhere(
        self, shard: GroupShard, group_id: str
    ) -> Iterator[tuple[int, OffsetCommitKey, int]]:
        """The leader, the key and the committed offset of partitions of other brokers."""
        image, me = self._metadata.image, self._configs.broker_id
        for key, value in shard.offsets.of_group(group_id):
            partition = image.partition(key.topic, key.partition)
            if partition is not None and partition.leader not in (me, NO_LEADER):
                yield partition.leader, key, value.offset

    async def _ask(
        self, leader: int, commits: dict[OffsetCommitKey, int], ratio: float, now_ms: int
    ) -> list[tuple[OffsetCommitKey, PartitionLag, Threat | None]]:
        """The threats in partitions of another broker. Raises `ApiError` if it does not answer."""
        partitions = {(key.topic, key.partition) for key in commits}
        dated = {}  # the time before which records have used up that much of their retention
        for topic, index in partitions:
            config = self._configs.topic(topic)
            if config.delete and config.retention_ms >= 0 and ratio < 1:
                dated[topic, index] = max(now_ms - int(ratio * config.retention_ms), 0)
        starts = await self._remote.offsets(leader, dict.fromkeys(partitions, EARLIEST))
        ends = await self._remote.offsets(leader, dict.fromkeys(partitions, LATEST))
        safe = await self._remote.offsets(leader, dated) if dated else {}
        threats = []
        for key, committed in commits.items():
            place = (key.topic, key.partition)
            if place not in starts or place not in ends:
                continue
            lag = PartitionLag(
                group_id=key.group_id,
                topic=key.topic,
                partition=key.partition,
                committed=committed,
                log_start=starts[place],
                log_end=ends[place],
            )
            threat = Threat.LOST if lag.lost else None
            if threat is None and lag.lag and place in safe:
                first_safe = safe[place] if safe[place] >= 0 else lag.log_end
                threat = Threat.ENDANGERED if committed < first_safe else None
            threats.append((key, lag, threat))
        return threats

    def _threat(
        self, lag: PartitionLag, partition: Partition, ratio: float, now_ms: int
    ) -> Threat | None:
        if lag.lost:
            return Threat.LOST
        if not lag.lag or ratio >= 1:
            return None
        config = partition.log.config
        if not config.delete:
            return None
        retention = Retention(config.retention_ms, config.retention_bytes)
        used = retention_used(_oldest_unread(lag, partition), retention, now_ms)
        return Threat.ENDANGERED if used >= ratio else None

    def _of_group(
        self, shard: GroupShard, group_id: str
    ) -> Iterator[tuple[OffsetCommitKey, PartitionLag, Partition]]:
        for key, value in shard.offsets.of_group(group_id):
            partition = self._partitions.get(key.topic, key.partition)
            if partition is not None:
                yield key, _lag(key, value, partition), partition


def _lag(key: OffsetCommitKey, value: OffsetCommitValue, partition: Partition) -> PartitionLag:
    start = partition.known_start_offset  # what is archived is not lost
    return PartitionLag(
        group_id=key.group_id,
        topic=key.topic,
        partition=key.partition,
        committed=value.offset,
        log_start=min(value.offset, partition.log_start_offset) if start is None else start,
        log_end=partition.high_watermark,
    )


def _oldest_unread(lag: PartitionLag, partition: Partition) -> OldestUnread:
    segments = partition.log.segments
    position = max(
        bisect_right(segments, lag.committed, key=lambda found: found.base_offset) - 1, 0
    )
    segment = segments[position]
    with suppress(NotCached):  # not known yet: retention will determine it in its thread
        segment.load_timestamps(may_block=False)
    newest_ms = segment.max_timestamp
    return OldestUnread(
        NO_TIMESTAMP if newest_ms is None else newest_ms,
        sum(later.size for later in segments[position + 1 :]),
    )


def _log(lag: PartitionLag, threat: Threat) -> None:
    where = f"group {lag.group_id}, {lag.topic}-{lag.partition}"
    if threat is Threat.LOST:
        logger.warning(
            "%s: %d records were deleted before the group had read them (it has committed %d, the "
            "log starts at %d)",
            where,
            lag.lost,
            lag.committed,
            lag.log_start,
        )
    else:
        logger.warning(
            "%s: retention will soon delete records that the group has not read; it is %d behind. "
            "Speed it up, or raise retention.ms or retention.bytes of the topic",
            where,
            lag.lag,
        )
