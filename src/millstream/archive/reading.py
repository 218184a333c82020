"""Reading an archive: which topics and files it has, and their records as Arrow.

    archive = open_archive("/var/archive")                     # or s3://bucket/prefix?region=...
    orders = archive.topic("orders")
    for rows in orders.partitions[0].read(from_ms=..., columns=["offset", "value"]):
        ...

What is read is what the manifests list when the archive is opened; `PartitionArchive.end_offset` is
where the log continues. pyarrow is imported with the first records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.archive.manifest import (
    ArchivedFile,
    ArchiveError,
    Manifest,
    decode_manifest,
    newest_manifest,
    parse_partition,
    parse_topic_id,
    partition_path,
)
from millstream.archive.places import Place, open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.archive.selecting import Selection

_OFFSET_MAX = 2**63 - 1
_ATTEMPTS = 10


def open_archive(path: str) -> Archive:
    """Connects to nothing yet. Raises `ConfigError` for a path that cannot be one."""
    return Archive(open_place(path))


class Archive:
    """All that is archived at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` in which `PartitionArchive.path_of` is a path."""
        return self.place.arrow_filesystem()

    def topics(self) -> dict[str, list[TopicArchive]]:
        """By name; a topic that was deleted and created again has one for each of its ids."""
        found = {}
        for name in self.place.list(""):
            ids = map(parse_topic_id, self.place.list(name))
            archives = [self._open(name, each) for each in ids if each is not None]
            archives = [each for each in archives if each.partitions]
            if archives:
                found[name] = sorted(archives, key=lambda each: each.newest_ms)
        return found

    def topic(self, name: str, topic_id: UUID | None = None) -> TopicArchive:
        """The topic with that id or, without one, with the newest records. Raises
        `ArchiveError` if it has no archive."""
        if topic_id is not None:
            found = self._open(name, topic_id)
            if not found.partitions:
                raise ArchiveError(f"{self.place.root} has no archive of {name} with id {topic_id}")
            return found
        ids = map(parse_topic_id, self.place.list(name))
        archives = [self._open(name, each) for each in ids if each is not None]
        archives = [each for each in archives if each.partitions]
        if not archives:
            raise ArchiveError(f"{self.place.root} has no archive of the topic {name}")
        return max(archives, key=lambda each: each.newest_ms)

    def _open(self, name: str, topic_id: UUID) -> TopicArchive:
        partitions = {}
        for directory in self.place.list(f"{name}/{topic_id}"):
            number = parse_partition(directory)
            if number is not None:
                manifest = self._load(partition_path(name, topic_id, number))
                if manifest is not None:
                    partitions[number] = PartitionArchive(self.place, manifest)
        return TopicArchive(name, topic_id, dict(sorted(partitions.items())))

    def _load(self, directory: str) -> Manifest | None:
        return load_manifest(self.place, directory)


def load_manifest(place: Place, directory: str) -> Manifest | None:
    """The manifest that counts; None if nothing is archived. Raises `ArchiveError`."""
    for _ in range(_ATTEMPTS):
        name = newest_manifest(place.list(directory))
        if name is None:
            return None
        try:
            content = place.read(f"{directory}/{name}")
        except FileNotFoundError:
            continue  # a later leader has replaced it
        return decode_manifest(content, place.path_of(f"{directory}/{name}"))
    raise ArchiveError(f"{place.path_of(directory)} lists manifests that cannot be found")


@dataclass(frozen=True)
class TopicArchive:
    """A topic, by its id."""

    topic: str
    topic_id: UUID
    partitions: dict[int, PartitionArchive]

    @property
    def newest_ms(self) -> int:
        return max((each.manifest.max_timestamp for each in self.partitions.values()), default=-1)


@dataclass(frozen=True)
class PartitionArchive:
    """The offsets [start_offset, end_offset) of a partition."""

    place: Place
    manifest: Manifest

    @property
    def start_offset(self) -> int:
        return self.manifest.start_offset

    @property
    def end_offset(self) -> int:
        return self.manifest.end_offset

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        """By offset."""
        return self.manifest.files

    @property
    def directory(self) -> str:
        manifest = self.manifest
        return partition_path(manifest.topic, manifest.topic_id, manifest.partition)

    def path_of(self, file: ArchivedFile) -> str:
        """For readers of Parquet; see `Archive.filesystem`."""
        return self.place.path_of(f"{self.directory}/{file.name}")

    def select(
        self,
        first_offset: int = 0,
        end_offset: int | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> list[ArchivedFile]:
        """The files that can have records in these ranges, whose ends are excluded."""
        first_offset = max(first_offset, self.start_offset)
        return [it for it in self.files if it.overlaps(first_offset, end_offset, from_ms, until_ms)]

    def read(
        self,
        first_offset: int = 0,
        end_offset: int | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The records in these ranges, by offset, with these columns, or all that the files have.
        `committed` leaves out control records and aborted transactions, as a read-committed
        consumer does. Raises `ArchiveError`."""
        from millstream.archive.selecting import find_fields, read_file

        selection = self._selection(first_offset, end_offset, from_ms, until_ms, committed)
        files = self.select(first_offset, end_offset, from_ms, until_ms)
        fields = find_fields(self.files, columns)
        for file in files:
            yield from read_file(self.place, self.directory, file, selection, fields)

    def read_file(
        self,
        file: ArchivedFile,
        first_offset: int,
        end_offset: int,
        columns: Sequence[str],
        *,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The same of one file, however many there are."""
        from millstream.archive.selecting import find_fields, read_file

        selection = self._selection(first_offset, end_offset, None, None, committed)
        fields = find_fields([file], columns)
        yield from read_file(self.place, self.directory, file, selection, fields)

    def _selection(
        self,
        first_offset: int,
        end_offset: int | None,
        from_ms: int | None,
        until_ms: int | None,
        committed: bool,
    ) -> Selection:
        from millstream.archive.selecting import Selection

        return Selection(
            max(first_offset, self.start_offset),
            _OFFSET_MAX if end_offset is None else end_offset,
            from_ms,
            until_ms,
            committed,
        )
