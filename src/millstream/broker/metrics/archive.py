"""Metrics of archived partitions that this broker leads: how far the archive is behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.broker.services import Services
from millstream.metrics.exposition import Family, gauge, labels

if TYPE_CHECKING:
    from millstream.broker.archiving.reporting import ArchivedPartition


def families(services: Services) -> Iterator[Family]:
    if services.archiving.archiver is not None:
        from millstream.broker.archiving.reporting import archived_partitions

        yield from gauges(list(archived_partitions(services.partitions, has_path=True)))


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
