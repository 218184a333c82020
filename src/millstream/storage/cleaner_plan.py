"""Selects the next log to clean, and the range to clean.

A compacted log has a clean part, with one record per key, and a dirty part after it:

    log start        first dirty offset          first uncleanable offset            log end
        |---- clean --------|---- dirty, cleanable -------|---- dirty, not yet -----------|

Not yet cleanable are the active segment, what is past the last stable offset, and segments with a
record younger than `min.compaction.lag.ms`. A log is cleaned when the cleanable dirty part is more
than `min.cleanable.dirty.ratio` of what a cleaning would read, or when a record in it is older than
`max.compaction.lag.ms`.

The first dirty offset is stored in `cleaner-offset-checkpoint`. It is only a hint: if it is lost,
the log is cleaned from its start.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from millstream.config.topic import TopicConfig
from millstream.storage.index import RELATIVE_OFFSET_MAX
from millstream.storage.log import Log
from millstream.storage.segment import Segment

logger = logging.getLogger(__name__)

_NEVER_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """A cleaning, as planned on the owner's thread."""

    log: Log
    generation: int
    config: TopicConfig
    now_ms: int
    # All segments before the first uncleanable offset, clean ones included.
    segments: tuple[Segment, ...]
    first_dirty_offset: int
    upper_bound: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    # Last offsets of batches that hold the last sequence of a producer, sorted.
    producer_ends: array[int] = field(default_factory=lambda: array("q"))
    # Producers with only a marker, which contains their epoch.
    marker_epochs: dict[int, int] = field(default_factory=dict)

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (
            self.is_overdue or self.dirty_ratio > self.config.min_cleanable_dirty_ratio
        )


class Survey(NamedTuple):
    """What the compacted logs need."""

    chosen: CleaningPlan | None  # for the dirtiest log that is due
    dirty_ratio_max: float  # also of logs that are not due


def plan_filthiest(
    logs: Iterable[tuple[Log, int]], first_dirty_offsets: dict[tuple[str, int], int], now_ms: int
) -> Survey:
    """Look at the compacted logs, each given with its last stable offset."""
    plans = [
        plan_cleaning(log, first_dirty_offsets.get((log.topic, log.partition)), stable, now_ms)
        for log, stable in logs
        if log.config.compact
    ]
    due = [plan for plan in plans if plan.is_due]
    chosen = max(due, key=lambda plan: plan.dirty_ratio, default=None)
    return Survey(chosen, max((plan.dirty_ratio for plan in plans), default=0.0))


def plan_cleaning(
    log: Log, checkpoint_offset: int | None, stable_offset: int, now_ms: int
) -> CleaningPlan:
    """The plan for cleaning this log now."""
    first_dirty_offset = _first_dirty_offset(log, checkpoint_offset)
    segments, upper_bound = _cleanable(log, first_dirty_offset, stable_offset, now_ms)
    dirty = [
        segment
        for segment, end in zip(segments, _ends(segments, upper_bound), strict=True)
        if end > first_dirty_offset
    ]
    dirty_bytes = sum(segment.size for segment in dirty)
    return CleaningPlan(
        log=log,
        generation=log.generation,
        config=log.config,
        now_ms=now_ms,
        segments=tuple(segments),
        first_dirty_offset=first_dirty_offset,
        upper_bound=upper_bound,
        clean_bytes=sum(segment.size for segment in segments) - dirty_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=_is_overdue(dirty, log.config, now_ms),
        producer_ends=_producer_ends(log),
        marker_epochs=_marker_epochs(log),
    )


def _first_dirty_offset(log: Log, checkpoint_offset: int | None) -> int:
    start = log.log_start_offset
    if checkpoint_offset is None or checkpoint_offset < start:
        return start
    if checkpoint_offset > log.log_end_offset:
        logger.warning(
            "%s-%d: first dirty offset %d is past the log's end %d; cleaning from the start",
            log.topic,
            log.partition,
            checkpoint_offset,
            log.log_end_offset,
        )
        return start
    return checkpoint_offset


def _cleanable(
    log: Log, first_dirty_offset: int, stable_offset: int, now_ms: int
) -> tuple[list[Segment], int]:
    """The segments up to the first that may not be cleaned, and the offset where they end."""
    limit = min(stable_offset, log.active_segment.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    cleanable: list[Segment] = []
    upper_bound = log.segments[0].base_offset
    for segment, following in pairwise(log.segments):
        end = following.base_offset
        if end > limit:
            break
        if lag_ms > 0 and end > first_dirty_offset and _newest_ms(segment) > now_ms - lag_ms:
            break
        cleanable.append(segment)
        upper_bound = end
    return cleanable, upper_bound


def _ends(segments: list[Segment], upper_bound: int) -> list[int]:
    return [segment.base_offset for segment in segments[1:]] + [upper_bound] * bool(segments)


def _newest_ms(segment: Segment) -> int:
    segment.load_timestamps()
    assert segment.max_timestamp is not None
    return segment.max_timestamp


def _is_overdue(dirty: list[Segment], config: TopicConfig, now_ms: int) -> bool:
    if config.max_compaction_lag_ms == _NEVER_MS:
        return False
    oldest = [timestamp for segment in dirty if (timestamp := _oldest_ms(segment)) > 0]
    return bool(oldest) and min(oldest) < now_ms - config.max_compaction_lag_ms


def _oldest_ms(segment: Segment) -> int:
    """About the oldest timestamp, as in Kafka: the first batch's largest. -1 if it is not known."""
    return -1 if segment.first_timestamp is None else segment.first_timestamp


def load_timestamps(log: Log) -> None:
    """Read what `plan_cleaning` needs to know of sealed segments. In any thread; blocks."""
    for segment in log.segments[:-1]:
        if log.config.min_compaction_lag_ms > 0:
            segment.load_timestamps()
        if log.config.max_compaction_lag_ms != _NEVER_MS and segment.first_timestamp is None:
            segment.load_first_timestamp()


def _producer_ends(log: Log) -> array[int]:
    last_batches = (log.producers[producer_id].batches for producer_id in log.producers)
    return array("q", sorted(batches[-1].last_offset for batches in last_batches if batches))


def _marker_epochs(log: Log) -> dict[int, int]:
    return {
        producer_id: log.producers[producer_id].epoch
        for producer_id in log.producers
        if not log.producers[producer_id].batches
    }


def group_segments(
    segments: list[Segment], upper_bound: int, config: TopicConfig
) -> list[tuple[list[Segment], int]]:
    """Neighbours that fit into one segment, to be cleaned into one, each group with its end."""
    groups: list[tuple[list[Segment], int]] = []
    group: list[Segment] = []
    size = index_size = 0
    for segment, end in zip(segments, _ends(segments, upper_bound), strict=True):
        segment_index_size = segment.index_size_bytes()
        if group and (
            size + segment.size > config.segment_bytes
            or index_size + segment_index_size > config.segment_index_bytes
            or end - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append((group, segment.base_offset))
            group, size, index_size = [], 0, 0
        group.append(segment)
        size += segment.size
        index_size += segment_index_size
    if group:
        groups.append((group, upper_bound))
    return groups
