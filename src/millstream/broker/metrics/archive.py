"""Metrics of archived partitions that this broker leads: how far the archive is behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.broker.services import Services
from millstream.metrics.exposition import Family, gauge, labels


class ArchivedPartition(NamedTuple):
    """A partition, as it is at a scrape."""

    topic: str
    partition: int
    end_offset: int
    lag_bytes: int  # of closed segments that are not archived
    problem: str | None


def families(services: Services) -> Iterator[Family]:
    if services.archiving.archiver is not None:
        yield from gauges(list(archived_partitions(services)))


def archived_partitions(services: Services) -> Iterator[ArchivedPartition]:
    for partition in services.partitions:
        archive, log = partition.archive, partition.log
        if archive is None or partition.offline_error is not None:
            continue
        end = archive.end_offset
        closed = log.segments[:-1]
        ends = [*(segment.base_offset for segment in log.segments[1:])]
        lag = sum(it.size for it, its_end in zip(closed, ends, strict=True) if its_end > end)
        yield ArchivedPartition(partition.topic, partition.index, end, lag, archive.problem)


def gauges(found: list[ArchivedPartition]) -> Iterator[Family]:
    placed = [(labels(topic=it.topic, partition=it.partition), it) for it in found]
    yield gauge(
        "millstream_archive_end_offset",
        "All below it is archived.",
        ((text, it.end_offset) for text, it in placed),
    )
    yield gauge(
        "millstream_archive_lag_bytes",
        "Bytes of closed segments that are not archived yet.",
        ((text, it.lag_bytes) for text, it in placed),
    )
    yield gauge(
        "millstream_archive_failing",
        "Whether the last attempt to archive failed.",
        ((text, int(it.problem is not None)) for text, it in placed),
    )
