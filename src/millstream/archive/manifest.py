"""The manifest of an archived partition, and the names of its files. Pure.

    <root>/<topic>/<topic id>/partition=<n>/
        00000000000000000000-00000000000000001042-0000000003.parquet    base, end, leader epoch
        manifest-0000000003.json                                        leader epoch

**Every name has one writer**: the leader of the epoch in it. A leader writes data files first and
then its manifest, which lists all files that count. Readers use the manifest of the highest epoch.
So neither a crash nor a former leader that is still running can damage what readers see, and the
storage needs no locks and no conditional writes. docs/formats/archive.md has the fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from millstream.errors import MillstreamError

VERSION = 1
FILE_SUFFIX = ".parquet"
_FILE = re.compile(r"(\d{20})-(\d{20})-(\d{10})(?:-[0-9a-z]+)?\.parquet")
_MANIFEST = re.compile(r"manifest-(\d{10})\.json")
_PARTITION = re.compile(r"partition=(\d+)")
NO_TIMESTAMP = -1


class ArchiveError(MillstreamError):
    """The archive cannot be read or written, or is damaged."""


class ArchiveFenced(ArchiveError):
    """A later leader has written to the archive."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A data file, with the offsets [base_offset, end_offset)."""

    name: str
    base_offset: int
    end_offset: int
    records: int  # control records included
    size_bytes: int
    segment_bytes: int  # what it replaces, as counted by retention.bytes
    min_timestamp: int  # -1: there are no records
    max_timestamp: int
    last_epoch: int  # leader epoch of the last offset
    sha256: str
    source_sha256: str  # of the batches that were archived
    archived_ms: int = NO_TIMESTAMP  # when; -1: not known
    columns: str = ""  # fields of the values that are columns of their own; "": none
    key_columns: str = ""  # the same of the keys

    @property
    def newest_ms(self) -> int:
        """The age of the file for retention: records need not have timestamps."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.archived_ms

    def overlaps(
        self,
        first_offset: int = 0,
        end_offset: int | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> bool:
        """Whether it can have records in the range; `until_ms` is excluded, as `end_offset` is."""
        return (
            self.end_offset > first_offset
            and (end_offset is None or self.base_offset < end_offset)
            and (from_ms is None or self.max_timestamp >= from_ms)
            and (until_ms is None or self.min_timestamp < until_ms)
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is archived of a partition."""

    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    start_offset: int  # nothing below it is served, even if a file contains more
    files: tuple[ArchivedFile, ...] = ()

    @property
    def end_offset(self) -> int:
        """The log continues here."""
        return self.files[-1].end_offset if self.files else self.start_offset

    @property
    def max_timestamp(self) -> int:
        return max((file.max_timestamp for file in self.files), default=NO_TIMESTAMP)

    def file_for(self, offset: int) -> ArchivedFile | None:
        """The file that contains the offset, or the next one."""
        return next((file for file in self.files if file.end_offset > offset), None)

    def led_in(self, leader_epoch: int) -> Manifest:
        """The same for the leader of a later epoch. Raises `ArchiveFenced`."""
        if leader_epoch < self.leader_epoch:
            raise ArchiveFenced(
                f"the archive of {self.topic}-{self.partition} was written by the leader of epoch "
                f"{self.leader_epoch}, which is later than {leader_epoch}"
            )
        return replace(self, leader_epoch=leader_epoch)

    def with_file(self, file: ArchivedFile) -> Manifest:
        if file.base_offset < self.end_offset and self.files:
            raise ValueError(f"{file.name} overlaps what ends at {self.end_offset}")
        start = self.start_offset if self.files else max(self.start_offset, file.base_offset)
        return replace(self, start_offset=start, files=(*self.files, file))

    def replacing(self, file: ArchivedFile, by: ArchivedFile) -> Manifest:
        """With another file for the same offsets."""
        if (file.base_offset, file.end_offset) != (by.base_offset, by.end_offset):
            raise ValueError(f"{by.name} has other offsets than {file.name}")
        return replace(self, files=tuple(by if it == file else it for it in self.files))

    def starting_at(self, offset: int) -> Manifest:
        """Without the files before the offset, which is the new start if it is higher."""
        offset = max(offset, self.start_offset)
        kept = tuple(file for file in self.files if file.end_offset > offset)
        return replace(self, start_offset=offset, files=kept)

    def emptied(self) -> Manifest:
        """Without files. It still keeps earlier leaders out."""
        return replace(self, start_offset=0, files=())

    def up_to(self, end_offset: int) -> Manifest:
        """Without the files that reach past the offset: the log was truncated there."""
        kept = tuple(file for file in self.files if file.end_offset <= end_offset)
        return replace(self, start_offset=min(self.start_offset, end_offset), files=kept)

    def encode(self) -> bytes:
        value = {
            "version": VERSION,
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "leader_epoch": self.leader_epoch,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "files": [asdict(file) for file in self.files],
        }
        return json.dumps(value, indent=1).encode()


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Raises `ArchiveError` that names the place and the problem."""
    try:
        value = json.loads(content)
        if value["version"] != VERSION:
            raise ArchiveError(
                f"{where} has version {value['version']}, and only {VERSION} can be read here"
            )
        manifest = Manifest(
            topic=str(value["topic"]),
            topic_id=UUID(value["topic_id"]),
            partition=int(value["partition"]),
            leader_epoch=int(value["leader_epoch"]),
            start_offset=int(value["start_offset"]),
            files=tuple(_file(each) for each in value["files"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{where} is not a manifest: {error!r}") from None
    end = -1
    for file in manifest.files:
        if file.base_offset < end or file.end_offset < file.base_offset:
            raise ArchiveError(f"{where} lists files that overlap, at {file.name}")
        end = file.end_offset
    return manifest


def _file(value: dict[str, Any]) -> ArchivedFile:
    earlier = {"archived_ms": NO_TIMESTAMP, "columns": "", "key_columns": ""}
    known = {**earlier, **value}
    return ArchivedFile(**{name: known[name] for name in ArchivedFile.__slots__})


# Names


def partition_path(topic: str, topic_id: UUID, partition: int) -> str:
    """The directory of a partition, relative to the root."""
    return f"{topic}/{topic_id}/partition={partition}"


def file_name(base_offset: int, end_offset: int, leader_epoch: int, version: str = "") -> str:
    """`version`: of a file that was written again, without excised records."""
    name = f"{base_offset:020d}-{end_offset:020d}-{leader_epoch:010d}"
    return f"{name}-{version}{FILE_SUFFIX}" if version else f"{name}{FILE_SUFFIX}"


def manifest_name(leader_epoch: int) -> str:
    return f"manifest-{leader_epoch:010d}.json"


def newest_manifest(names: Iterable[str]) -> str | None:
    """The one that counts."""
    return max((name for name in names if _MANIFEST.fullmatch(name)), default=None)


def manifests_of(names: Iterable[str]) -> list[str]:
    """Those of all leaders."""
    return [name for name in names if _MANIFEST.fullmatch(name)]


def older_manifests(names: Iterable[str], leader_epoch: int) -> list[str]:
    """Those of earlier epochs, and half ones."""
    current = manifest_name(leader_epoch)
    found = ((name, _MANIFEST.match(name)) for name in names if name != current)
    return [name for name, match in found if match and int(match[1]) <= leader_epoch]


def orphans(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Data files that no manifest lists and no leader is writing any more."""
    listed = {file.name for file in manifest.files}
    found = ((name, _FILE.match(name)) for name in names if name not in listed)
    return [name for name, match in found if match and int(match[3]) <= manifest.leader_epoch]


def parse_partition(name: str) -> int | None:
    match = _PARTITION.fullmatch(name)
    return int(match[1]) if match else None


def parse_topic_id(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None
