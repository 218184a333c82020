"""The loop of a sink: read committed records, decode them, apply them with their positions.

The positions are in the target and nowhere else. So the runner has no state of its own to lose: it
starts where the target is, also after a crash at any point, and also if the target is an older copy
that was restored. If a write finds the target elsewhere than expected, the runner reads the
positions again and continues from there.

Two runners of one sink may run at once: each record is applied by one of them. The other one waits
longer and longer between its attempts, and takes over when the first one ends.

The runner stops with an error if it cannot keep the target in step, for example because records
were deleted before they were applied: see `checks.py`. It checks whenever it begins, also after a
lost connection or a change of leaders. `rebuild` fills a second target beside the first one from
the beginning of the topics, and then switches to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.client.cluster import Cluster
from millstream.client.fetching import log_start_offset
from millstream.client.schema_registry import registry_for
from millstream.connect.dead_letters import compose, partition_count, send_letters
from millstream.connect.sinks.changes import Changes, Failure, decode_changes, fill_unchanged
from millstream.connect.sinks.checks import (
    refuse_divergence,
    refuse_loss,
    refuse_lost_deletes,
    refuse_other_topic,
    refuse_partial,
)
from millstream.connect.sinks.config import SinkConfig, TopicConfig
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.reading import (
    Fetched,
    delete_retention_seconds,
    fetch,
    pairs,
    stable_end,
)
from millstream.connect.sinks.sink import (
    Part,
    RowsRefused,
    Run,
    Sink,
    SinkUnavailable,
    Target,
    Write,
)
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.records.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

WAIT_MS = 500
EMPTY_ANSWERS_MAX = 3  # a log may end in a hole that compaction left
TOUCH_SECONDS_MAX = 3_600.0  # a target in step is marked as such at least so often
REFRESH_SECONDS = 30.0  # new partitions are found after this time
BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 2.0
_TOPIC_GONE = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class BadRecordFound(MillstreamError):
    """A record cannot be applied, and `bad_records` is "fail"."""


@dataclass
class Progress:
    """What a runner has done so far: counts since it was started, and its present lag."""

    records: int = 0
    writes: int = 0
    bad: int = 0
    conflicts: int = 0  # writes that another runner was faster with
    lag: int = 0  # committed records that are not applied yet, as of the last answers


class _Chunk(NamedTuple):
    """Some records of one partition, and where they lead to."""

    place: Place
    answer: Fetched
    columns: Columns
    records: Sequence[tuple[bytes | None, bytes | None]]
    offsets: Sequence[int]
    first_row: int
    after: int


class SinkRunner:
    """See the module.

    SinkRunner(load_config(Path("sink.toml"))).run(once=True)
    """

    def __init__(
        self,
        config: SinkConfig,
        *,
        report: Callable[[Progress], None] = lambda progress: None,
        stop: Event | None = None,
    ) -> None:
        self.config = config
        self.progress = Progress()
        self.stop = stop or Event()
        self._report = report
        self._topics: Mapping[str, TopicConfig] = {it.topic: it for it in config.topics}
        self._cluster = Cluster(
            config.broker,
            client_id=f"millstream-connect-{config.name}",
            security=dict(config.kafka) or None,
            timeout_seconds=10.0,
        )
        self._letters = Cluster(
            config.broker,
            client_id=f"millstream-connect-{config.name}-letters",
            security=dict(config.kafka) or None,
        )

    def run(self, *, once: bool = False) -> Progress:
        """Apply records until `stop` is set; with `once`, those that are committed now."""
        sink = open_sink(self.config)
        try:
            self._follow(sink, once=once)
        finally:
            self._close(sink)
        return self.progress

    def rebuild(self) -> Progress:
        """Fill a target beside the current one, from the beginning of the topics, and switch.

        Another runner may follow the topics into the current target meanwhile; it continues with
        the rebuilt one.
        """
        sink = open_sink(self.config)
        beside: Sink | None = None
        try:
            sink.open()
            beside = sink.rebuilt()
            self._follow(beside, once=True)
            if not self.stop.is_set():
                sink.switch(beside)
        finally:
            if beside is not None:
                beside.close()
            self._close(sink)
        return self.progress

    @cached_property
    def parse(self) -> Callable[[bytes], Any] | None:
        """Of contents; None: they are JSON."""
        if self.config.registry is None:
            return None
        from millstream.connect.sinks.avro import AvroReader

        return AvroReader(registry_for(self.config.registry))

    def _close(self, sink: Sink) -> None:
        sink.close()
        self._cluster.close()
        self._letters.close()

    def _follow(self, sink: Sink, *, once: bool) -> None:
        turn = _Turn(self, sink)
        patience = _Patience(self.config.patience_seconds, self.stop)
        ends: dict[Place, int] | None = None
        is_open = False
        while not self.stop.is_set():
            try:
                if not is_open:
                    turn.begin()
                    is_open = True
                if once and ends is None:
                    ends = {place: stable_end(self._cluster, place) for place in turn.reached}
                if ends is not None and turn.has_reached(ends):
                    turn.flush()
                    return
                turn.advance(wait_ms=WAIT_MS if ends is None else 50)
                patience.renew()
                if ends is None and sink.pause_seconds:
                    self.stop.wait(sink.pause_seconds)
            except PositionMoved as moved:
                logger.info("%s", moved)
                self.progress.conflicts += 1
                is_open = False
                patience.back_off()
            except SinkUnavailable as error:
                is_open = False
                patience.wait(error)
            except (OSError, ApiError) as error:
                self._explain(error, turn)
                self._cluster.forget_all()
                is_open = False  # the log may be another one, or have lost records
                patience.wait(error)
            self._report(self.progress)

    def _explain(self, error: OSError | ApiError, turn: _Turn) -> None:
        """Raise if waiting does not help."""
        if not isinstance(error, ApiError):
            return
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            turn.refuse_lost_records()
        elif not error.code.retriable and not _is_about_topics(error):
            raise error


def _is_about_topics(error: OSError | ApiError) -> bool:
    return isinstance(error, ApiError) and error.code in _TOPIC_GONE


class _Turn:
    """Where a runner is with one sink."""

    def __init__(self, runner: SinkRunner, sink: Sink) -> None:
        self._runner, self._sink = runner, sink
        self._cluster, self._topics = runner._cluster, runner._topics
        self._committed: dict[Place, Position | None] = {}
        self.reached: dict[Place, Position] = {}
        self._empty_answers = 0
        self._refreshed_at = 0.0
        self._targets: dict[str, Target] = {}
        self._touch_seconds: float | None = None  # with compacted topics
        self._touched_at = 0.0
        # Columns that no row has lacked yet, by topic.
        self._present = {it.topic: set(it.names or ()) for it in sink.targets}

    def begin(self) -> None:
        """Open the sink and continue where it is."""
        self._sink.open()
        self._targets = {it.topic: it for it in self._sink.targets}
        self._committed, self.reached = {}, {}
        stored = self._sink.positions()
        for name in self._topics:
            self._find_partitions(name, stored)
        self._refreshed_at = time.monotonic()
        self._refuse_lost_deletes()

    def _refuse_lost_deletes(self) -> None:
        """Raise if compaction may have removed tombstones that were not applied."""
        self._touch_seconds = None
        for name in self._topics:
            kept = delete_retention_seconds(self._cluster, name)
            if kept is None:
                continue
            self._touch_seconds = min(kept / 4, self._touch_seconds or TOUCH_SECONDS_MAX)
            written = self._sink.written_at(self._targets[name])
            if written is None or time.time() - written <= kept:
                continue
            for place, position in self._committed.items():
                if place.topic == name and position is not None:
                    refuse_lost_deletes(self._cluster, place, position, written, kept)
        self._touched_at = time.monotonic()

    def _find_partitions(self, name: str, stored: Mapping[Place, Position]) -> None:
        info = self._cluster.topic(name, seconds_old_max=0.0)
        for partition in info.partitions:
            place = Place(name, partition.number)
            if place in self.reached:
                refuse_other_topic(place, self.reached[place], str(info.id))
                continue
            found = stored.get(place)
            self._committed[place] = found
            self.reached[place] = self._beginning(place, found, str(info.id))

    def _beginning(self, place: Place, stored: Position | None, topic_id: str) -> Position:
        """The position to read from; raises if the target cannot follow the log from there."""
        if stored is not None:
            refuse_other_topic(place, stored, topic_id)
            refuse_loss(self._cluster, place, stored)
            refuse_divergence(self._cluster, place, stored)
            return stored
        start = log_start_offset(self._cluster, *place)
        if not self._topics[place.topic].allow_partial:
            refuse_partial(self._cluster, place, start)
        return Position(topic_id, start)

    def refuse_lost_records(self) -> None:
        """Raise if a partition does not contain the next record any more."""
        for place, position in self.reached.items():
            refuse_loss(self._cluster, place, position)

    def has_reached(self, ends: Mapping[Place, int]) -> bool:
        return all(self.reached[place].offset >= end for place, end in ends.items())

    def advance(self, wait_ms: int) -> None:
        """Read and apply what is there, or wait for it a little."""
        if time.monotonic() - self._refreshed_at > REFRESH_SECONDS:
            for name in self._topics:
                self._find_partitions(name, {})
            self._refreshed_at = time.monotonic()
        answers = fetch(self._cluster, self.reached, wait_ms=wait_ms)
        self._runner.progress.lag = sum(it.end_offset - it.next_offset for it in answers)
        if all(it.columns is None for it in answers):
            self._skip_holes(answers)
            self._touch()
            self._sink.rest()
            return
        self._empty_answers = 0
        for chunks in in_writes(answers, self._sink.rows_max):
            self._apply(chunks)
        for it in answers:
            self._reach(it, it.next_offset)
        if self._runner.progress.lag == 0:
            self._sink.rest()

    def _skip_holes(self, answers: Sequence[Fetched]) -> None:
        self._empty_answers += 1
        if self._empty_answers >= EMPTY_ANSWERS_MAX:
            for it in answers:
                self._reach(it, max(it.next_offset, it.end_offset))

    def _touch(self) -> None:
        """Write the time at which the target is in step, also if nothing changes for long."""
        if (
            self._touch_seconds is not None
            and self._runner.progress.lag == 0
            and time.monotonic() - self._touched_at > self._touch_seconds
        ):
            places = self.reached.items()
            steps = [Step(place, self._committed[place], reached) for place, reached in places]
            self._sink.apply(Write(tuple(steps), {}))
            self._committed |= self.reached
            self._touched_at = time.monotonic()

    def _reach(self, answer: Fetched, offset: int) -> None:
        before = self.reached[answer.place]
        if offset != before.offset:
            self.reached[answer.place] = answer.position(before.topic_id, offset)

    def flush(self) -> None:
        """Write positions that no row came with: after markers and aborted records."""
        if any(self._committed[place] != it for place, it in self.reached.items()):
            self._write({})

    def _apply(self, chunks: Sequence[_Chunk]) -> None:
        parts: dict[str, Part] = {}
        by_topic: dict[str, list[_Chunk]] = {}
        for chunk in chunks:
            by_topic.setdefault(chunk.place.topic, []).append(chunk)
        for topic, found in by_topic.items():
            part = self._decode(self._topics[topic], found)
            if part.changes.clear or part.changes.changes:
                parts[topic] = part
        for chunk in chunks:
            self._reach(chunk.answer, chunk.after)
        while parts:
            try:
                self._write(parts)
                break
            except RowsRefused as refused:
                parts = self._without(parts, by_topic, refused.failures)
        self._runner.progress.records += sum(len(chunk.records) for chunk in chunks)

    def _write(self, parts: Mapping[str, Part]) -> None:
        steps = tuple(
            Step(place, self._committed[place], reached)
            for place, reached in self.reached.items()
            if self._committed[place] != reached
        )
        self._sink.apply(Write(steps, parts))
        self._runner.progress.writes += 1
        for place, _, after in steps:
            self._committed[place] = after

    def _decode(self, topic: TopicConfig, chunks: Sequence[_Chunk]) -> Part:
        records = [pair for chunk in chunks for pair in chunk.records]
        partitions = sum(place.topic == topic.topic for place in self.reached)
        changes = decode_changes(
            records,
            topic.key,
            topic.format,
            may_truncate=partitions == 1,
            parse=self._runner.parse,
            parse_key=self._runner.parse,
        )
        self._fill_unchanged(self._targets[topic.topic], changes)
        rows = self._rows(topic, changes)
        if changes.failures:
            self._handle_bad(topic, chunks, changes.failures)
        part = Part(changes, rows, [Run(it.place.partition, it.offsets) for it in chunks])
        self._warn_of_missing(topic.topic, part)
        return part

    def _warn_of_missing(self, topic: str, part: Part) -> None:
        """Once for each column: it may have another name in the source now."""
        present = self._present[topic]
        for change in part.changes.changes:
            if change.row is None or present <= change.row.keys():
                continue
            partition, offset = part.origin(change.record)
            for name in present - change.row.keys() - set(change.unchanged):
                present.discard(name)
                logger.warning(
                    "%s-%s offset %s: the row has no %r, which sink %s declares, and becomes null "
                    "there. If it was renamed in the source, declare its new name and run with "
                    "--rebuild",
                    topic, partition, offset, name, self._sink.name,
                )  # fmt: skip

    def _fill_unchanged(self, target: Target, changes: Changes) -> None:
        keys = [it.key for it in changes.changes if it.unchanged]
        if keys and not self._sink.keeps_history:
            stored = self._sink.stored_rows(target, list(dict.fromkeys(keys)))
            fill_unchanged(changes, stored, target.names)

    def _without(
        self,
        parts: Mapping[str, Part],
        chunks: Mapping[str, Sequence[_Chunk]],
        refused: Mapping[str, Sequence[Failure]],
    ) -> dict[str, Part]:
        """The parts without the records that the target refuses, which are bad records."""
        left = dict(parts)
        for topic, failures in refused.items():
            self._handle_bad(self._topics[topic], chunks[topic], failures)
            bad = {it.record for it in failures}
            changes = parts[topic].changes
            changes.changes = [it for it in changes.changes if it.record not in bad]
            left[topic] = replace(parts[topic], rows=self._rows(self._topics[topic], changes))
        return left

    def _rows(self, topic: TopicConfig, changes: Changes) -> pa.Table | None:
        columns = self._targets[topic.topic].columns
        if columns is None:
            return None
        from millstream.connect.sinks.columns import to_arrow

        return to_arrow(changes, columns, topic.key)

    def _handle_bad(
        self, topic: TopicConfig, chunks: Sequence[_Chunk], found: Sequence[Failure]
    ) -> None:
        self._runner.progress.bad += len(found)
        begin = 0
        for chunk in chunks:
            end = begin + len(chunk.records)
            failures = [
                Failure(it.record - begin + chunk.first_row, it.reason, it.message)
                for it in found
                if begin <= it.record < end
            ]
            begin = end
            if failures and topic.bad_records == "fail":
                offset = memoryview(chunk.columns.offsets).cast("q")[failures[0].record]
                raise BadRecordFound(
                    f"{chunk.place} offset {offset}: {failures[0].reason}: {failures[0].message}"
                )
            if failures and topic.bad_records == "deadletter":
                self._send_letters(topic, chunk, failures)

    def _send_letters(self, topic: TopicConfig, chunk: _Chunk, failures: Sequence[Failure]) -> None:
        name = self._runner.config.name
        letters = list(compose(*chunk.place, chunk.columns, failures, name))
        cluster = self._runner._letters
        partition = chunk.place.partition % partition_count(cluster, topic.dead_letters)
        send_letters(cluster, topic.dead_letters, partition, letters)


def in_writes(answers: Sequence[Fetched], rows_max: int) -> Iterator[list[_Chunk]]:
    """The records in pieces of at most `rows_max`."""
    chunks: list[_Chunk] = []
    room = rows_max
    for answer in answers:
        place, columns, next_offset = answer.place, answer.columns, answer.next_offset
        if columns is None or not columns.row_count:
            continue
        records, offsets = pairs(columns), memoryview(columns.offsets).cast("q")
        start = 0
        while start < len(records):
            end = min(start + room, len(records))
            after = next_offset if end == len(records) else offsets[end - 1] + 1
            chunk = _Chunk(
                place, answer, columns, records[start:end], offsets[start:end], start, after
            )
            chunks.append(chunk)
            room -= end - start
            start = end
            if room == 0:
                yield chunks
                chunks, room = [], rows_max
    if chunks:
        yield chunks


class _Patience:
    """Waits between attempts, longer and longer, until its time is up."""

    def __init__(self, seconds: float, stop: Event) -> None:
        self._seconds, self._stop = seconds, stop
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + self._seconds
        self._backoff = BACKOFF_SECONDS
        self._logged = ""

    def wait(self, error: Exception) -> None:
        if time.monotonic() + self._backoff > self._deadline:
            raise error
        if str(error) != self._logged:  # not with every attempt
            self._logged = str(error)
            logger.warning("trying again for %.0f seconds: %s", self._seconds, error)
        self.back_off()

    def back_off(self) -> None:
        self._stop.wait(self._backoff)
        self._backoff = min(2 * self._backoff, BACKOFF_SECONDS_MAX)
