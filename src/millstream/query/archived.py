"""Topics whose archive is read directly: the option `archive` of queries.

Brokers serve archived offsets where the topic asks for it, and then a query needs no archive. With
the option, a query reads the files itself, with all bandwidth of a bucket, and also what the
brokers no longer serve. From the offset on at which the archive ends, records come from the
brokers: each one comes once, however the archive grows meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Event
from uuid import UUID

from millstream.archive.manifest import ArchivedFile, ArchiveError
from millstream.archive.reading import PartitionArchive, open_archive
from millstream.errors import MillstreamError
from millstream.pipelines.reading.archived import to_columns
from millstream.query.fetching import QueryFailed, RangeReader, Source, Step
from millstream.query.ranges import ScanRange, joined

_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value")

Archives = Mapping[int, PartitionArchive]  # by partition


def archives_of(path: str | None, topic: str, topic_id: UUID | None) -> Archives:
    """What is archived of the topic with this id."""
    if path is None or topic_id is None:
        return {}
    archive = open_archive(path)
    if str(topic_id) not in archive.place.list(topic):
        return {}
    return archive.topic(topic, topic_id).partitions


def with_archived(ranges: Sequence[ScanRange], archives: Archives) -> list[ScanRange]:
    """All offsets that can be read: those of the brokers' logs, and those of the archive."""
    found = list(ranges)
    for it in ranges:
        part = archives.get(it.partition)
        if part is not None:
            end = min(part.end_offset, it.end)
            found.append(ScanRange(it.partition, min(part.start_offset, end), end))
    return list(joined(found))


def first_as_new(part: PartitionArchive, first_ms: int) -> int | None:
    """Where a record of this time or a later one may be in the archive; None: nowhere."""
    files = part.select(from_ms=first_ms)
    return max(files[0].base_offset, part.start_offset) if files else None


class ArchivedReader:
    """Reads ranges as `RangeReader` does, what is archived from the archive."""

    def __init__(
        self,
        brokers: RangeReader,
        source: Source,
        archives: Archives,
        *,
        with_headers: bool = False,
        stop: Event | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._brokers, self._source, self._archives = brokers, source, archives
        self._columns = [*_COLUMNS, *(["headers"] if with_headers else [])]
        self._stop = stop or Event()
        self._warn = warn

    def read(self, wanted: ScanRange) -> Iterator[Step]:
        """The records of the range. A file that is gone, or damaged, is named, and is not the end:
        brokers may have its offsets, and say which are missing if they do not."""
        position = wanted.first
        part = self._archives.get(wanted.partition)
        if part is not None and part.start_offset <= position < part.end_offset:
            end = min(part.end_offset, wanted.end)
            for file in part.select(position, end):
                if self._stop.is_set():
                    return
                until = min(file.end_offset, end)
                yield from self._file(part, file, replace(wanted, first=position, end=until))
                position = until
        if position < wanted.end and not self._stop.is_set():
            yield from self._brokers.read(replace(wanted, first=position))

    def _file(
        self, part: PartitionArchive, file: ArchivedFile, wanted: ScanRange
    ) -> Iterator[Step]:
        position = wanted.first
        try:
            for step in self._archived(part, file, position, wanted.end):
                position = step.next_offset
                yield step
        except ArchiveError as error:
            topic = self._source.topic
            problem = (
                f"archived file {part.path_of(file)} cannot be read: {error}. Its offsets from "
                f"{position} to {wanted.end - 1} of {topic}-{wanted.partition} are read from the "
                f"brokers. See: millstream archive verify {part.place.root} --topic {topic}"
            )
            self._warn(problem)
            try:
                yield from self._brokers.read(replace(wanted, first=position))
            except MillstreamError as missing:
                raise QueryFailed(f"{problem}. The brokers: {missing}") from missing

    def _archived(
        self, part: PartitionArchive, file: ArchivedFile, first: int, end: int
    ) -> Iterator[Step]:
        committed = self._source.read_committed
        for rows in part.read_file(file, first, end, self._columns, committed=committed):
            if self._stop.is_set():
                return
            if rows.num_rows:
                columns = to_columns(rows)
                yield Step(columns, columns.next_offset, rows.nbytes)
        yield Step(None, end, 0)
