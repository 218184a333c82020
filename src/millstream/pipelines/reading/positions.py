"""Where topics begin and end: what the driver asks the brokers before it plans a batch."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from millstream.admin.pipeline_records import COMMANDS_TOPIC, STATUS_TOPIC
from millstream.client.cluster import Cluster, TopicInfo
from millstream.client.offsets import list_offsets
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.partitions import TopicPartition
from millstream.pipelines.offsets import (
    DECISIONS_TOPIC,
    EARLIEST,
    LATEST,
    Offsets,
    QueriesEnd,
)
from millstream.pipelines.reading.options import Position, ReadOptions

ATTEMPTS_FOR_MISSING = 4
PAUSE_FOR_MISSING_SECONDS = 0.25

logger = logging.getLogger(__name__)


def make_cluster(options: ReadOptions) -> Cluster:
    return Cluster(
        options.bootstrap_servers,
        client_id=options.client_id,
        security=options.security,
        timeout_seconds=options.patience_ms / 1000,
        request_timeout_seconds=options.request_timeout_ms / 1000,
    )


class Positions:
    """Looks up partitions and offsets of what a reader has subscribed to."""

    def __init__(self, options: ReadOptions, cluster: Cluster | None = None) -> None:
        self._options = options
        self._cluster = cluster or make_cluster(options)
        self.topic_ids: dict[str, UUID | None] = {}  # of the topics found last

    def close(self) -> None:
        self._cluster.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions that there are now; raises for a topic that is not there."""
        found, missing = self.find()
        if missing:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {', '.join(missing)} at {self._options.bootstrap_servers}; "
                "create it first, or check the option "
                + ("assign" if self._options.selection.partitions else "subscribe"),
            )
        return found

    def find(self) -> tuple[list[TopicPartition], list[str]]:
        """All partitions that there are now, and the names of topics that are not."""
        selection = self._options.selection
        if selection.pattern is not None:
            pattern = re.compile(selection.pattern)
            everything = self._cluster.retrying(lambda: self._cluster.refresh(None))
            topics = {
                name: info
                for name, info in everything.items()
                if pattern.fullmatch(name) and not _is_internal(info)
            }
            missing = []
        else:
            names = selection.topics or sorted({topic for topic, _ in selection.partitions})
            topics = self._ask_for(names)
            missing = [name for name in names if name not in topics]
        self.topic_ids = {name: info.id for name, info in topics.items()}
        there = [(info.name, it.number) for info in topics.values() for it in info.partitions]
        if not selection.partitions:
            return sorted(there), missing
        for topic, partition in selection.partitions:
            if topic in topics and (topic, partition) not in there:
                raise ConfigError(
                    f"assign: {topic} has {len(topics[topic].partitions)} partitions, and no "
                    f"partition {partition}"
                )
        return sorted(set(selection.partitions) & set(there)), missing

    def _ask_for(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """These topics. Asks several times: a new topic is not known to all brokers at once, and
        brokers do not announce it to clients."""
        for _ in range(ATTEMPTS_FOR_MISSING):
            found = self._cluster.retrying(lambda: self._cluster.refresh(names))
            if len(found) == len(names):
                break
            time.sleep(PAUSE_FOR_MISSING_SECONDS)
        return found

    def resolve(self, position: Position, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset of each partition that `position` stands for."""
        partitions = list(partitions)
        if position.timestamp_ms is not None:
            return self._at_timestamps(
                dict.fromkeys(partitions, position.timestamp_ms), position.when_none_is_as_new
            )
        if position.timestamps_ms:
            _check_named(position.timestamps_ms, partitions, "a timestamp")
            return self._at_timestamps(position.timestamps_ms, position.when_none_is_as_new)
        if not position.offsets:
            return self.lookup(dict.fromkeys(partitions, position.everywhere))
        _check_named(position.offsets, partitions, "an offset (-1: the end, -2: the beginning)")
        fixed = {it: offset for it, offset in position.offsets.items() if offset >= 0}
        moving = {it: offset for it, offset in position.offsets.items() if offset < 0}
        return fixed | self.lookup(moving)

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

    def queries_end(self) -> QueriesEnd | None:
        """The end of the topic of standing queries; None if there is none. Raises `ConfigError`
        unless it has one partition, in which offsets order the queries."""
        name = self._options.queries_topic
        if name is None:
            return None
        topic_id = self._queries_id(name)
        return QueriesEnd(self.latest([(name, 0)])[name, 0], topic_id)

    def _queries_id(self, name: str) -> UUID | None:
        found = self._cluster.retrying(lambda: self._cluster.refresh([name])).get(name)
        if found is None or len(found.partitions) != 1:
            problem = (
                "does not exist" if found is None else f"has {len(found.partitions)} partitions"
            )
            raise ConfigError(
                f"topic {name} of standing queries {problem}; it must have one: create it with "
                f"`millstream queries create {name}`"
            )
        return found.id

    def planned_queries_end(self, planned: QueriesEnd | None) -> int | None:
        """The end that a batch was planned with. If the topic was recreated since, its queries are
        lost: raises `DataLost`, or takes those that there are now."""
        name = self._options.queries_topic
        if planned is None or planned.topic_id is None or name is None:
            return None if planned is None else planned.end
        if self._queries_id(name) in (None, planned.topic_id):
            return planned.end
        report_loss(
            self._options,
            f"topic {name} of standing queries was deleted and recreated after a batch was planned "
            "that is to be repeated",
            "Start the query with another checkpoint",
        )
        return self.latest([(name, 0)])[name, 0]

    def log_ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The end of all records, of open transactions too."""
        return self.lookup(dict.fromkeys(partitions, LATEST), read_committed=False)

    def lookup(
        self, timestamps_ms: Mapping[TopicPartition, int], *, read_committed: bool | None = None
    ) -> Offsets:
        """Offsets by timestamp, or by EARLIEST and LATEST; -1 where no record is as new."""
        committed = self._options.read_committed if read_committed is None else read_committed
        return list_offsets(self._cluster, timestamps_ms, read_committed=committed)


def _is_internal(topic: TopicInfo) -> bool:
    """Brokers know their own; a query that read its decisions would have to make more, for ever,
    and so would one that read its status."""
    return topic.is_internal or topic.name in (DECISIONS_TOPIC, STATUS_TOPIC, COMMANDS_TOPIC)


def _check_named(
    given: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition], what: str
) -> None:
    """Neither too many nor too few: whoever names positions names them all, as in Spark."""
    for topic, number in given:
        if (topic, number) not in partitions:
            raise ConfigError(f"{what} is given for {topic}-{number}, which is not read")
    for topic, number in partitions:
        if (topic, number) not in given:
            raise ConfigError(f"{topic}-{number} is read, but is not given {what}")


class DataLost(ConfigError):
    """Records went before they were read: by retention, or with their topic."""


def report_loss(options: ReadOptions, what: str, cure: str) -> None:
    """Raise `DataLost`, or only warn where `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what}. {cure}, or set failOnDataLoss=false to go on without them")
    logger.warning("%s; going on without them, since failOnDataLoss is false", what)


def skip_deleted(options: ReadOptions, start: Offsets, earliest: Offsets) -> Offsets:
    """`start`, moved up to where the logs begin now, if what is lost so may be."""
    lost = {it: earliest[it] for it in start if start[it] < earliest.get(it, 0)}
    if lost:
        details = ", ".join(
            f"{topic}-{partition} offsets {start[topic, partition]} to {offset - 1}"
            for (topic, partition), offset in sorted(lost.items())
        )
        report_loss(
            options,
            f"records were deleted before they were read: {details}",
            "Raise retention.ms or retention.bytes of the topic",
        )
    return start | lost
