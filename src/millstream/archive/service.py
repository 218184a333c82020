"""What a broker does with its archive: load and save manifests, write files, read batches.

Runs in a child process of the broker (`child.py`), which keeps pyarrow and its work out of the
broker's process. In tests it also runs without one. Safe in several threads; one partition's files
are written by one caller at a time.

Imports pyarrow.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from millstream.archive.deleting import delete_topic
from millstream.archive.excising import excise_file
from millstream.archive.files import DataFile, Range, write_file
from millstream.archive.manifest import (
    NO_TIMESTAMP,
    ArchivedFile,
    ArchiveFenced,
    Manifest,
    manifest_name,
    newest_manifest,
    older_manifests,
    orphans,
    partition_path,
)
from millstream.archive.places import Place
from millstream.archive.reading import load_manifest
from millstream.archive.rows import Aborted, rebuild
from millstream.archive.typed import Extension
from millstream.config.excised import ExcisedOffsets
from millstream.records.batch import Buffer

OPEN_FILES_MAX = 32
GROUPS_CACHED_BYTES_MAX = 64 * 1024 * 1024

Value = TypeVar("Value")


class Batches(NamedTuple):
    """Whole batches, and the aborted transactions in them."""

    records: bytes
    aborted: list[Aborted]


class FoundRecord(NamedTuple):
    """A record by its timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


def directory_of(manifest: Manifest) -> str:
    return partition_path(manifest.topic, manifest.topic_id, manifest.partition)


def save_manifest(place: Place, manifest: Manifest) -> None:
    """Raises `ArchiveFenced` if a later leader has saved one. That is only an early notice: its
    manifest counts anyway."""
    directory = directory_of(manifest)
    newest = newest_manifest(place.list(directory))
    if newest is not None and newest > manifest_name(manifest.leader_epoch):
        raise ArchiveFenced(
            f"{place.path_of(directory)}/{newest} is that of a later leader than epoch "
            f"{manifest.leader_epoch}"
        )
    with place.create(f"{directory}/{manifest_name(manifest.leader_epoch)}") as output:
        output.write(manifest.encode())


class ArchiveService:
    """The archive at one place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._files: _Cache[DataFile] = _Cache(OPEN_FILES_MAX)
        self._groups: _Cache[_Group] = _Cache(GROUPS_CACHED_BYTES_MAX)

    def load(self, directory: str) -> Manifest | None:
        return load_manifest(self.place, directory)

    def write(
        self, manifest: Manifest, end_offset: int, aborted: tuple[Aborted, ...], source: Source
    ) -> Manifest:
        """Archive the records from `source.first_offset` to the offset. The manifest, which is
        that of the leader that archives, is saved last; returns the new one."""
        wanted = Range(
            topic=manifest.topic,
            topic_id=manifest.topic_id,
            partition=manifest.partition,
            first_offset=source.first_offset,
            end_offset=end_offset,
            leader_epoch=manifest.leader_epoch,
            aborted=aborted,
            archived_ms=source.archived_ms,
            last_epoch=source.last_epoch,
        )
        file = write_file(self.place, wanted, source.chunks, source.extension)
        after = manifest.with_file(file)
        save_manifest(self.place, after)
        return after

    def excise(self, manifest: Manifest, names: Iterable[str], offsets: ExcisedOffsets) -> Manifest:
        """Write these files again without the records at these offsets, those that have some. The
        manifest is saved, then the old files are deleted; returns the new one."""
        after, replaced = manifest, []
        for file in manifest.files:
            if file.name not in names:
                continue
            again = excise_file(self.place, manifest, file, offsets)
            if again is not None:
                after = after.replacing(file, again)
                replaced.append(file.name)
        if replaced:
            self.save(after, replaced)
        return after

    def empty(self, directory: str, leader_epoch: int) -> Manifest | None:
        """Delete what is archived of a partition, as the leader of that epoch. Returns the manifest
        that is left; None if there was none."""
        manifest = self.load(directory)
        if manifest is None:
            return None
        after = manifest.led_in(leader_epoch).emptied()
        if after != manifest:
            save_manifest(self.place, after)
        self.clean_up(after)
        self._forget(directory)
        return after

    def delete_topic(self, topic: str, topic_id: UUID) -> None:
        delete_topic(self.place, topic, topic_id)
        self._forget(f"{topic}/{topic_id}/")

    def _forget(self, directory: str) -> None:
        """Files that are open keep their space on the disk."""
        for cache in (self._files, self._groups):
            cache.drop(lambda key: key[0].startswith(directory))

    def save(self, manifest: Manifest, dropped: Iterable[str] = ()) -> None:
        """Save a manifest, then delete the files that it no longer lists."""
        save_manifest(self.place, manifest)
        directory, dropped = directory_of(manifest), set(dropped)
        for name in dropped:
            self.place.delete(f"{directory}/{name}")
        for cache in (self._files, self._groups):
            cache.drop(lambda key: key[0] == directory and key[1] in dropped)

    def clean_up(self, manifest: Manifest) -> list[str]:
        """Delete what earlier leaders and crashes have left. Returns the names."""
        directory = directory_of(manifest)
        names = self.place.list(directory)
        left = orphans(names, manifest) + older_manifests(names, manifest.leader_epoch)
        for name in left:
            self.place.delete(f"{directory}/{name}")
        return left

    # Reading

    def read(self, directory: str, entry: ArchivedFile, offset: int, max_bytes: int) -> Batches:
        """Whole batches from the one that contains the offset on, or the next one: as many as fit,
        at least one. Nothing if the rest of the file has no records. Raises `ArchiveError`."""
        file = self._open(directory, entry)
        number = file.group_for(offset)
        while number is not None and number < file.group_count:
            key = (directory, entry.name, number)
            group = self._groups.get(key, partial(_rebuild_group, file, number))
            first = bisect_left(group.last_offsets, offset)
            if first < len(group.last_offsets):
                return self._some_of(group, first, offset, max_bytes, file.aborted)
            number += 1  # what was left of this group are gaps
        return Batches(b"", [])

    def _some_of(
        self, group: _Group, first: int, offset: int, max_bytes: int, aborted: tuple[Aborted, ...]
    ) -> Batches:
        start = group.starts[first]
        count = max(bisect_right(group.starts, start + max_bytes) - 1, first + 1)
        end_offset = group.last_offsets[count - 1] + 1
        found = [
            each
            for each in aborted
            if each.first_offset < end_offset and each.last_offset >= offset
        ]
        return Batches(group.records[start : group.starts[count]], found)

    def find(
        self, directory: str, entry: ArchivedFile, timestamp: int, first_offset: int
    ) -> FoundRecord | None:
        """The first record of the file from `first_offset` on that is as new as that or newer."""
        file = self._open(directory, entry)
        for number in file.groups(first_offset, entry.end_offset, timestamp, None):
            rows = file.read_group(number, ["offset", "timestamp", "leader_epoch"])
            moments = rows.column("timestamp").cast(pa.int64())
            fits = pc.and_(
                pc.greater_equal(moments, timestamp),
                pc.greater_equal(rows.column("offset"), first_offset),
            )
            position = pc.index(fits, True).as_py()
            if position >= 0:
                return FoundRecord(
                    rows.column("offset")[position].as_py(),
                    moments[position].as_py(),
                    rows.column("leader_epoch")[position].as_py(),
                )
        return None

    def _open(self, directory: str, entry: ArchivedFile) -> DataFile:
        return self._files.get(
            (directory, entry.name), lambda: DataFile(self.place, directory, entry)
        )


class Source(NamedTuple):
    """What is archived: whole batches."""

    first_offset: int
    chunks: Iterable[Buffer]
    archived_ms: int = NO_TIMESTAMP
    last_epoch: int | None = None  # of the last offset; None: that of the last record
    extension: Extension | None = None  # typed columns


class _Group:
    """A row group as batches."""

    def __init__(self, batches: Iterable[tuple[Any, bytes]]) -> None:
        self.last_offsets: list[int] = []
        self.starts = [0]  # of each batch, and the end of the last
        parts = []
        for header, batch in batches:
            self.last_offsets.append(header.last_offset)
            self.starts.append(self.starts[-1] + len(batch))
            parts.append(batch)
        self.records = b"".join(parts)

    def __len__(self) -> int:
        return len(self.records)


def _rebuild_group(file: DataFile, number: int) -> _Group:
    return _Group(rebuild(file.read_group(number)))


class _Cache(Generic[Value]):
    """The most recently used values, up to a total cost: their length, or 1."""

    def __init__(self, cost_max: int) -> None:
        self._cost_max = cost_max
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._cost = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value, made once: threads that want it meanwhile wait."""
        with self._lock:
            value = self._find(key)
            if value is not None:
                return value
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                value = self._find(key)
                if value is not None:
                    return value
            try:
                value = make()
                self._keep(key, value)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return value

    def _find(self, key: Hashable) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def _keep(self, key: Hashable, value: Value) -> None:
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._cost += _cost_of(value)
            while self._cost > self._cost_max and len(self._values) > 1:
                # Not closed: another thread may be reading. It is closed with its last reference.
                _, oldest = self._values.popitem(last=False)
                self._cost -= _cost_of(oldest)

    def drop(self, is_gone: Callable[[Any], bool]) -> None:
        with self._lock:
            for key in [key for key in self._values if is_gone(key)]:
                self._cost -= _cost_of(self._values.pop(key))


def _cost_of(value: object) -> int:
    return len(value) if isinstance(value, _Group) else 1
