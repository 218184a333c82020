"""What a batch reads, and what each micro-batch of a stream reads: from where to where.

The brokers' logs move while a query stands still. Partitions and topics are added: those are read
from their beginning. Retention deletes records that were not read, topics are deleted and
recreated: that is data lost, an error unless `failOnDataLoss` is false. Then a
stream goes on with what there is: at the new beginning of the log.

A topic that was recreated is recognised by its id, while the query runs, and in pipelines, whose
offsets have ids, also after a restart; otherwise by its end, if that is before the stream's place.

Where the first batch began is in no checkpoint. Spark asks for it again when it repeats that batch,
and "latest" may lie behind its end by then: nothing of it is read, rather than all that is older.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from uuid import UUID

from millstream.clock import Clock
from millstream.errors import ConfigError
from millstream.partitions import TopicPartition
from millstream.pipelines.offsets import (
    OffsetRange,
    Offsets,
    count_between,
    limit_total,
    plan_tasks,
)
from millstream.pipelines.reading.cuts import Cut, read_cut
from millstream.pipelines.reading.idleness import IdleWatch
from millstream.pipelines.reading.load_first import Hold
from millstream.pipelines.reading.options import ReadOptions
from millstream.pipelines.reading.positions import Positions, report_loss, skip_deleted

logger = logging.getLogger(__name__)

# A broker that has just started may not know for a moment how far its log is committed.
CONFIRM_ATTEMPTS = 10
CONFIRM_PAUSE_SECONDS = 0.2

_NO_IDS: Mapping[str, UUID] = {}
_GONE = "Restore the topic, start the query with another checkpoint"


def plan_batch(options: ReadOptions, positions: Positions) -> list[OffsetRange]:
    """The tasks of a batch query."""
    known = positions.partitions()
    start = positions.resolve(options.starting, known)
    end = positions.resolve(options.ending, known)
    if options.ending.offsets:
        latest = positions.latest(known)
        for (topic, partition), offset in sorted(end.items()):
            if offset > latest[topic, partition]:
                raise ConfigError(
                    f"endingOffsets of {topic}-{partition} is {offset}, but what can be read ends "
                    f"at {latest[topic, partition]}"
                )
    if options.starting.offsets:
        start = _within_logs(options, start, positions)
    return _tasks(options, skip_deleted(options, start, positions.earliest(known)), end)


def _within_logs(options: ReadOptions, start: Offsets, positions: Positions) -> Offsets:
    """No place beyond the end of its partition."""
    ends = positions.log_ends(start)
    for (topic, partition), offset in sorted(start.items()):
        end = ends[topic, partition]
        if offset > end:
            report_loss(
                options,
                f"startingOffsets of {topic}-{partition} is {offset}, but its log ends at {end}",
                "Check the option, and whether the topic was recreated",
            )
            start = start | {(topic, partition): end}
    return start


def _differing(one: Mapping[str, UUID | None], other: Mapping[str, UUID | None]) -> set[str]:
    """The topics that have another id, if both are known."""
    return {
        name
        for name, topic_id in one.items()
        if topic_id is not None and other.get(name) not in (None, topic_id)
    }


def _tasks(options: ReadOptions, start: Offsets, end: Offsets) -> list[OffsetRange]:
    ranges = [
        OffsetRange(topic, partition, start[topic, partition], offset)
        for (topic, partition), offset in sorted(end.items())
    ]
    return plan_tasks(ranges, options.min_partitions, options.max_records_per_partition)


class StreamPlanner:
    """Decides where micro-batches end and what they read; lives in the driver, with the query."""

    def __init__(self, options: ReadOptions, positions: Positions, clock: Clock) -> None:
        self._options = options
        self._positions = positions
        self._clock = clock
        self._target: Offsets | None = None  # where availableNow ends
        self._idle = (
            None if options.idle_after_ms is None else IdleWatch(options.idle_after_ms, clock)
        )
        self._hold = Hold(options.checkpoint_location or "", options.load_first)
        self._halt_file = None if options.halt_file is None else Path(options.halt_file)
        self._last_batch_ms: int | None = None
        self._topic_ids: dict[str, UUID | None] = {}
        self._recreated: set[TopicPartition] = set()
        self._reported: set[UUID | None] = set()  # the ids of recreated topics
        self._last_looked_at: tuple[Offsets, Offsets, set[TopicPartition]] = ({}, {}, set())
        self._initial: Offsets = {}  # where it may be another one each time it is asked for
        self.latest: Offsets = {}  # when last asked

    def initial(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        known = self._positions.partitions()
        start = self._positions.resolve(self._options.starting, known)
        if self._options.starting.offsets:
            return _within_logs(self._options, start, self._positions)
        self._initial = start
        return start

    def fix_target(self) -> None:
        """Read up to what there is now, and then no further."""
        found, _ = self._positions.find()
        self._target = self._positions.latest(found)

    def next_end(
        self,
        start: Offsets,
        *,
        without_limit: bool = False,
        topic_ids: Mapping[str, UUID] = _NO_IDS,
    ) -> Offsets:
        """Where the next batch ends; `start` itself where there is nothing to do yet.

        `topic_ids` are those of the topics that `start` is in.
        """
        begin, latest, again = self._begin_and_latest(start, topic_ids)
        self.latest = latest
        if not self._hold.is_over():
            return start
        if not without_limit and self._waits_for_more(begin, latest):
            return start
        cut = self._cut()
        if cut is not None:
            latest = cut.limit(begin, latest)
            if latest == start:
                return start
        self._recreated |= again  # not while it waits: a leader's metadata may only be stale
        if without_limit:
            return latest
        most = self._options.max_offsets_per_trigger
        return latest if most is None else limit_total(begin, latest, most)

    def idle_until_ms(self, start: Offsets, last_ms: int | None) -> int | None:
        """The time up to which the source has been idle. Called after `next_end` with the same
        `start`; `last_ms` is what it was before."""
        if self._idle is None or self._target is not None or self._cut() is not None:
            return last_ms
        is_at_end = self._hold.is_over() and all(
            start.get(it) == offset for it, offset in self.latest.items()
        )
        tick_ms = self._idle.next_tick_ms(last_ms, is_at_end=is_at_end)
        if tick_ms is None or self._positions.log_ends(self.latest) != self.latest:
            return last_ms  # nothing is due, or an open transaction has records
        return tick_ms

    def _cut(self) -> Cut | None:
        """Where the stream has to stop now. Read after the ends of the topics: see `cuts.py`."""
        ending = self._options.ending.offsets
        halt = read_cut(self._halt_file)
        if ending and (halt is None or halt.ends is not None):
            ends = {} if halt is None else halt.ends or {}
            return Cut({it: min(end, ends.get(it, end)) for it, end in ending.items()})
        return halt

    def tasks(
        self,
        start: Offsets,
        end: Offsets,
        start_ids: Mapping[str, UUID] = _NO_IDS,
        end_ids: Mapping[str, UUID] = _NO_IDS,
    ) -> list[OffsetRange]:
        """What a batch between these offsets reads; also one that was planned before a crash.

        The ids are those of the topics of these offsets.
        """
        if not end.keys() <= self.latest.keys():  # else it was just looked at
            found, _ = self._positions.find()
            self._check_gone({it for it in end if end[it] > start.get(it, 0)} - set(found))
            end = {it: end[it] for it in end if it in found}
        gone = _differing(end_ids, self._positions.topic_ids)
        for name in sorted(gone):
            self._report_recreated(name)
        end = {it: offset for it, offset in end.items() if it[0] not in gone}
        again = self._from_the_beginning(start, end, _differing(start_ids, end_ids))
        begin = {it: start[it] for it in end if it not in again} | self._positions.earliest(again)
        busy = [it for it in end if end[it] > begin[it]]
        begin |= skip_deleted(
            self._options, {it: begin[it] for it in busy}, self._positions.earliest(busy)
        )
        return _tasks(self._options, begin, self._cut_back(begin, end))

    def _from_the_beginning(
        self, start: Offsets, end: Offsets, recreated: Collection[str]
    ) -> set[TopicPartition]:
        """The partitions that the batch reads from their beginning: new, or of a recreated topic.

        The same each time it is asked about a batch: Spark asks for every scan of the source.
        """
        if self._last_looked_at[:2] == (start, end):
            return self._last_looked_at[2]
        again = {it for it in end if it not in start or it in self._recreated}
        again |= {it for it in end if it[0] in recreated}
        self._recreated.clear()
        back = {it for it in set(end) - again if end[it] < start[it]}
        left_out = {it for it in back if start[it] == self._initial.get(it)}
        self._warn_of_first_batch({it: end[it] for it in left_out})
        again |= back - left_out
        self._last_looked_at = (start, end, again)
        return again

    def _begin_and_latest(
        self, start: Offsets, topic_ids: Mapping[str, UUID]
    ) -> tuple[Offsets, Offsets, set[TopicPartition]]:
        """Where to begin in each partition that there is, where they end, and which of those that
        were read before are others now."""
        found, _ = self._positions.find()
        self._check_gone(set(start) - set(found))
        latest = self._target if self._target is not None else self._positions.latest(found)
        latest = {it: latest[it] for it in found if it in latest}
        self._check_ids(start, topic_ids)
        behind = self._confirm({it: start[it] for it in latest if start.get(it, 0) > latest[it]})
        # Where the log goes on beyond an open transaction, a reader of uncommitted records was
        # here before: nothing is to be read, and nothing lost.
        latest |= {it: start[it] for it in latest if start.get(it, 0) > latest[it]} | behind
        again = (set(behind) | self._recreated) & set(latest)
        begin = {it: start[it] for it in latest if it in start and it not in again}
        added = [it for it in latest if it not in begin]
        earliest = self._positions.earliest(added)
        self._check_added({it: earliest[it] for it in added if it not in again})
        return begin | earliest, latest, again

    def _check_gone(self, gone: Iterable[TopicPartition]) -> None:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(gone))
        if names:
            report_loss(
                self._options, f"{names}: deleted, perhaps before all records were read", _GONE
            )

    def _check_ids(self, start: Offsets, topic_ids: Mapping[str, UUID]) -> None:
        """Detect topics that were recreated since `start`, or since the last call."""
        known = {**self._topic_ids, **topic_ids}
        for name in sorted(_differing(known, self._positions.topic_ids)):
            self._report_recreated(name)
            self._recreated |= {it for it in start if it[0] == name}
        self._topic_ids |= self._positions.topic_ids

    def _report_recreated(self, name: str) -> None:
        """Once for each new id."""
        topic_id = self._positions.topic_ids[name]
        if topic_id not in self._reported:
            report_loss(
                self._options,
                f"topic {name} was deleted and recreated, perhaps before all records were read",
                _GONE,
            )
            self._reported.add(topic_id)

    def _confirm(self, ahead: Offsets) -> Offsets:
        """The ends of those partitions whose log ends before these places, for good."""
        for _ in range(CONFIRM_ATTEMPTS):
            ends = self._positions.log_ends(ahead)
            ahead = {it: offset for it, offset in ahead.items() if ends[it] < offset}
            if not ahead:
                return {}
            # Nothing announces that a leader has caught up with what another broker reported.
            time.sleep(CONFIRM_PAUSE_SECONDS)
        details = ", ".join(
            f"{topic}-{partition} ends at {ends[topic, partition]}, the query is at {offset}"
            for (topic, partition), offset in sorted(ahead.items())
        )
        report_loss(self._options, f"topics were recreated or truncated: {details}", _GONE)
        return self._positions.latest(ahead)

    def _check_added(self, earliest: Offsets) -> None:
        late = ", ".join(
            f"{topic}-{partition} begins at {offset}"
            for (topic, partition), offset in sorted(earliest.items())
            if offset > 0
        )
        if late:
            report_loss(
                self._options,
                f"new partitions have lost records before they were read: {late}",
                "Raise retention.ms or retention.bytes of the topic",
            )

    def _warn_of_first_batch(self, ends: Offsets) -> None:
        for (topic, partition), end in sorted(ends.items()):
            logger.warning(
                "the first batch, which was cut off, ends at %d in %s-%d; where it began is not "
                "known any more, and it is left out. To be safe from this, start a query with "
                "startingOffsets that name offsets",
                end,
                topic,
                partition,
            )

    def _cut_back(self, begin: Offsets, end: Offsets) -> Offsets:
        """`end`, where a replayed batch was planned beyond what the log has now, cut to that."""
        unseen = {it: end[it] for it in end if end[it] > self.latest.get(it, -1) and it in begin}
        if not unseen:
            return end
        return end | {
            it: max(min(end[it], latest), begin[it]) for it, latest in self._confirm(unseen).items()
        }

    def _waits_for_more(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether `minOffsetsPerTrigger` are not there yet, and the last batch is not long ago."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        last_ms = self._last_batch_ms
        waited = last_ms is None or now_ms - last_ms >= self._options.max_trigger_delay_ms
        if not waited and count_between(begin, latest) < least:
            return True
        self._last_batch_ms = now_ms
        return False
