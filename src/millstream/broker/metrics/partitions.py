"""Metrics of topics and partitions.

All partitions are read once per scrape, a few at a time (`survey`); the families are written from
what was read. Counters of a partition that this broker no longer has are kept for its topic as long
as that exists, and for all topics for ever: a counter of Prometheus must not fall.

As in Kafka, counters of topics come once without a label, for all topics, and once per topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from millstream.broker.counters import Counters
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import Services
from millstream.coordination.cluster import RECOVERING, ClusterImage, PartitionImage
from millstream.metrics.exposition import Family, Sample, counter, escape, gauge, labels

PARTITIONS_AT_ONCE = 100
LATE_TRANSACTION_MS = 300_000  # past its maximum timeout, as in Kafka


class Traffic:
    """Counters of a topic."""

    __slots__ = ("appends", "bytes_in", "bytes_out", "fetches", "records_in")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.appends = 0
        self.fetches = 0

    def add(self, partition: Partition) -> None:
        leadership = partition.leadership
        self.records_in += leadership.records_in
        self.bytes_in += leadership.bytes_in
        self.appends += leadership.appends
        self.bytes_out += partition.bytes_out
        self.fetches += partition.fetches

    def add_all(self, other: Traffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Row(NamedTuple):
    """A partition at the time of the scrape."""

    labels: str
    topic: str
    is_led: bool
    size_bytes: int
    start_offset: int
    end_offset: int
    high_watermark: int
    segments: int
    stable_lag: int
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    is_offline: bool


class Survey:
    """What was read of all partitions."""

    def __init__(self) -> None:
        self.topics: dict[str, Traffic] = {}
        self.all_topics = Traffic()
        self.rows: list[Row] = []
        self.partitions = 0
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.offline = 0
        self.producer_ids = 0
        self.late_transactions = 0

    def count(self, row: Row) -> None:
        self.partitions += 1
        self.led += row.is_led
        self.under_replicated += row.under_replicated
        self.under_min_isr += row.under_min_isr
        self.at_min_isr += row.at_min_isr
        self.offline += row.is_offline


class PartitionMetrics:
    """Reads the partitions of this broker, and remembers the counters of those that are gone."""

    def __init__(self, services: Services, counters: Counters) -> None:
        self._services = services
        self._counters = counters
        self._removed: dict[UUID, tuple[str, Traffic]] = {}  # by topic
        self._removed_topics = Traffic()
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.unclean_elections = 0
        services.partitions.on_remove.append(self._partition_removed)
        services.metadata.subscribe(self._metadata_changed)

    def _partition_removed(self, partition: Partition) -> None:
        if partition.topic_id is None:
            self._removed_topics.add(partition)
            return
        _, traffic = self._removed.setdefault(partition.topic_id, (partition.topic, Traffic()))
        traffic.add(partition)

    def _metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        me = self._services.broker_id
        changes = now.changed_topics(before)
        for earlier, later in changes.changed:
            for old, new in zip(earlier.partitions, later.partitions, strict=False):
                self._count_change(old, new, me)
        for topic in changes.deleted:
            if topic.name not in now.topics:
                self._counters.topic_is_gone(topic.name)

    def _count_change(self, old: PartitionImage, new: PartitionImage, me: int) -> None:
        if new.leader == me == old.leader and old.isr != new.isr:
            if len(new.isr) < len(old.isr):
                self.isr_shrinks += 1
            elif len(new.isr) > len(old.isr):
                self.isr_expands += 1
        # An election outside the in-sync set loses records. Changes may come as one: this broker
        # may have joined the in-sync set, and then become its leader.
        is_unclean = me not in old.isr and new.leader_recovery_state == RECOVERING
        if new.leader == me != old.leader and is_unclean:
            self.unclean_elections += 1

    async def survey(self, *, now_ms: int, with_rows: bool) -> Survey:
        """Read all partitions; other work is done in between."""
        found = Survey()
        image = self._services.metadata.image
        self._begin(found, image)
        late_ms = self._services.config.transaction_max_timeout_ms + LATE_TRANSACTION_MS
        partitions = list(self._services.partitions)
        for position, partition in enumerate(partitions):
            if position % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
                await asyncio.sleep(0)
            found.topics.setdefault(partition.topic, Traffic()).add(partition)
            found.all_topics.add(partition)
            found.producer_ids += len(partition.log.producers)
            if partition.last_stable_offset < partition.high_watermark:
                found.late_transactions += _has_late_transaction(partition, now_ms - late_ms)
            row = _row(partition, image, self._services)
            found.count(row)
            if with_rows:
                found.rows.append(row)
        return found

    def _begin(self, found: Survey, image: ClusterImage) -> None:
        for topic_id, (name, traffic) in list(self._removed.items()):
            if topic_id in image.topics_by_id:
                found.topics.setdefault(name, Traffic()).add_all(traffic)
                found.all_topics.add_all(traffic)
            else:
                self._removed_topics.add_all(traffic)
                del self._removed[topic_id]
        found.all_topics.add_all(self._removed_topics)

    # Families

    def families(self, survey: Survey) -> Iterator[Family]:
        yield from self._topic_families(survey)
        yield from self._replica_families(survey)
        yield from _log_families(survey.rows)

    def _topic_families(self, survey: Survey) -> Iterator[Family]:
        described = (
            ("messagesin", "Records appended here", "records_in"),
            ("bytesin", "Bytes appended here", "bytes_in"),
            ("bytesout", "Bytes of records sent to clients", "bytes_out"),
            ("totalfetchrequests", "Reads of partitions by clients", "fetches"),
        )
        for name, help, field in described:
            yield counter(
                f"kafka_server_brokertopicmetrics_{name}_total",
                f"{help}; without a topic: of all topics.",
                _per_topic(survey.all_topics, survey.topics.items(), field),
            )
        failures = self._counters
        yield counter(
            "kafka_server_brokertopicmetrics_totalproducerequests_total",
            "Appends to partitions, also those that were refused; without a topic: of all topics.",
            self._appends(survey),
        )
        for name, help, field in (
            ("failedproducerequests", "Appends that failed", "failed_produces"),
            ("failedfetchrequests", "Reads that failed", "failed_fetches"),
            ("bytesrejected", "Bytes refused because they are too large", "rejected_bytes"),
        ):
            yield counter(
                f"kafka_server_brokertopicmetrics_{name}_total",
                f"{help}; without a topic: of all topics.",
                _per_topic(failures.all_topics, list(failures.topics.items()), field),
            )

    def _appends(self, survey: Survey) -> Iterator[Sample]:
        refused = self._counters.topics
        yield "", survey.all_topics.appends + self._counters.all_topics.refused_appends
        for name, traffic in survey.topics.items():
            more = refused[name].refused_appends if name in refused else 0
            yield f'{{topic="{escape(name)}"}}', traffic.appends + more

    def _replica_families(self, survey: Survey) -> Iterator[Family]:
        prefix = "kafka_server_replicamanager"
        for name, help, value in (
            ("partitioncount", "Partitions with a replica here.", survey.partitions),
            ("leadercount", "Partitions that this broker leads.", survey.led),
            (
                "underreplicatedpartitions",
                "Of these, those with a replica that is not in sync.",
                survey.under_replicated,
            ),
            (
                "underminisrpartitioncount",
                "Of these, those with fewer in-sync replicas than min.insync.replicas.",
                survey.under_min_isr,
            ),
            (
                "atminisrpartitioncount",
                "Of these, those with as many in-sync replicas as min.insync.replicas.",
                survey.at_min_isr,
            ),
            (
                "offlinereplicacount",
                "Replicas in failed log directories.",
                survey.offline,
            ),
            ("produceridcount", "Producer ids with state, of all replicas.", survey.producer_ids),
            (
                "partitionswithlatetransactionscount",
                "Partitions with a transaction open for longer than producers may ask for.",
                survey.late_transactions,
            ),
        ):
            yield gauge(f"{prefix}_{name}", help, value)
        yield counter(
            f"{prefix}_isrshrinks_total", "In-sync sets that have shrunk.", self.isr_shrinks
        )
        yield counter(
            f"{prefix}_isrexpands_total", "In-sync sets that have grown.", self.isr_expands
        )


def _per_topic(
    everything: object, topics: Iterable[tuple[str, object]], field: str
) -> Iterator[Sample]:
    yield "", getattr(everything, field)
    for name, one in topics:
        yield f'{{topic="{escape(name)}"}}', getattr(one, field)


def _row(partition: Partition, image: ClusterImage, services: Services) -> Row:
    log = partition.log
    known = image.partition(partition.topic, partition.index)
    is_led = partition.is_led_here and (known is None or known.leader == services.broker_id)
    missing = at_least = 0
    if known is not None and is_led:
        missing = len(known.replicas) - len(known.isr)
        needed = min(log.config.min_insync_replicas, len(known.replicas))
        at_least = len(known.isr) - needed
    return Row(
        labels=labels(topic=partition.topic, partition=partition.index),
        topic=partition.topic,
        is_led=is_led,
        size_bytes=log.size_bytes,
        start_offset=log.log_start_offset,
        end_offset=log.log_end_offset,
        high_watermark=partition.high_watermark,
        segments=len(log.segments),
        stable_lag=partition.high_watermark - partition.last_stable_offset,
        under_replicated=missing > 0,
        under_min_isr=is_led and at_least < 0,
        at_min_isr=is_led and at_least == 0 and known is not None,
        is_offline=log.directory.failure is not None,
    )


def _has_late_transaction(partition: Partition, before_ms: int) -> bool:
    return any(
        state.transaction_start_offset >= 0 and state.last_timestamp < before_ms
        for state in partition.producer_states()
    )


def _log_families(rows: list[Row]) -> Iterator[Family]:
    led = [row for row in rows if row.is_led]

    def of(chosen: list[Row], value: Callable[[Row], int]) -> Iterator[Sample]:
        return ((row.labels, value(row)) for row in chosen)

    described: tuple[tuple[str, str, list[Row], Callable[[Row], int]], ...] = (
        ("kafka_log_log_size", "Bytes of the log.", rows, lambda row: row.size_bytes),
        ("kafka_log_log_logstartoffset", "First offset.", rows, lambda row: row.start_offset),
        ("kafka_log_log_logendoffset", "Next offset.", rows, lambda row: row.end_offset),
        ("kafka_log_log_numlogsegments", "Segments of the log.", rows, lambda row: row.segments),
        (
            "kafka_cluster_partition_underreplicated",
            "Whether a replica is not in sync.",
            led,
            lambda row: int(row.under_replicated),
        ),
        (
            "kafka_cluster_partition_underminisr",
            "Whether there are fewer in-sync replicas than min.insync.replicas.",
            led,
            lambda row: int(row.under_min_isr),
        ),
        (
            "kafka_cluster_partition_atminisr",
            "Whether one more replica that falls behind stops producers.",
            led,
            lambda row: int(row.at_min_isr),
        ),
        (
            "kafka_cluster_partition_laststableoffsetlag",
            "Records that consumers of committed records cannot read yet.",
            led,
            lambda row: row.stable_lag,
        ),
        (
            "kafka_topic_partition_current_offset",
            "Next offset that consumers will read.",
            led,
            lambda row: row.high_watermark,
        ),
        (
            "kafka_topic_partition_oldest_offset",
            "First offset that consumers can read.",
            led,
            lambda row: row.start_offset,
        ),
    )
    for name, help, chosen, value in described:
        yield gauge(name, help, of(chosen, value))
