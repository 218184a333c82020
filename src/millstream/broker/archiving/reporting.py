"""What is archived of the partitions that this broker leads: for metrics and DescribeArchive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.archiving.partition import NOT_LOADED, NOTHING, PartitionArchive, Totals

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition

NO_PATH = "the broker has no millstream.archive.path: nothing is archived"


class ArchivedPartition(NamedTuple):
    """A partition, as it is at a moment. `totals` are None before its manifest is loaded."""

    topic: str
    partition: int
    end_offset: int
    lag_bytes: int  # of closed segments that are not archived
    problem: str | None
    start_offset: int = 0
    local_start_offset: int = 0
    log_end_offset: int = 0
    totals: Totals | None = NOTHING


def archived_partitions(
    partitions: Iterable[Partition], *, has_path: bool
) -> Iterator[ArchivedPartition]:
    """Those with remote.storage.enable that this broker leads. `has_path`: whether it archives."""
    for partition in partitions:
        if partition.offline_error is not None or partition.is_internal:
            continue
        archive, log = partition.archive, partition.log
        if archive is None and not log.config.remote_storage_enable:
            continue
        end = 0 if archive is None else archive.end_offset
        problem = archive.problem if archive is not None else None if has_path else NO_PATH
        is_loaded = archive is not None and archive.leader_epoch != NOT_LOADED
        yield ArchivedPartition(
            partition.topic,
            partition.index,
            end,
            _lag_bytes(partition, end),
            problem,
            (archive.start_offset or 0) if archive is not None else 0,
            log.log_start_offset,
            log.log_end_offset,
            archive.totals if is_loaded and isinstance(archive, PartitionArchive) else None,
        )


def _lag_bytes(partition: Partition, end: int) -> int:
    segments = partition.log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    return sum(it.size for it, its_end in zip(segments[:-1], ends, strict=True) if its_end > end)
