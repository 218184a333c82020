"""What is archived of one partition, and reading it for consumers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.archive.manifest import ArchivedFile, ArchiveError, Manifest
from millstream.errors import ApiError, ErrorCode
from millstream.storage.lookup import TimestampOffset
from millstream.storage.transactions import AbortedTransaction

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.config.excised import OffsetRanges

logger = logging.getLogger("millstream.archive")

NOT_LOADED = -1
REPORT_MS = 10_000  # how often a failing read is reported


class Reader(Protocol):
    """The part of the archive process that reads."""

    def read(
        self, manifest: Manifest, file: ArchivedFile, offset: int, max_bytes: int
    ) -> tuple[bytes | bytearray, list[tuple[int, int, int]]]: ...

    def find(
        self, manifest: Manifest, file: ArchivedFile, timestamp: int, first_offset: int
    ) -> tuple[int, int, int] | None: ...


class Totals(NamedTuple):
    """What the files of a manifest are together; times are -1 if there are none."""

    files: int
    records: int
    size_bytes: int
    segment_bytes: int  # of the segments that they replace
    newest_ms: int  # of the records
    archived_ms: int  # when the last file was written


NOTHING = Totals(0, 0, 0, 0, -1, -1)


class PartitionArchive:
    """Belongs to the event loop's thread, but for what `replicas/archived.py` says."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self.manifest: Manifest | None = None
        self.leader_epoch = NOT_LOADED
        self.problem: str | None = None  # why nothing is archived at the moment
        self.is_clean = False  # whether what earlier leaders have left was removed
        self.is_outdated = False  # whether the saved manifest may be newer than this one
        self.is_continued = False  # whether the log has what is archived, so that it goes on there
        self.divergence: str | None = None  # why not
        self._floor = 0  # nothing below it is served: DeleteRecords
        self.lock = asyncio.Lock()  # held while the manifest is changed
        self._reported_ms = -REPORT_MS
        # By the name of a file: the setting for which excised records were removed from it.
        self._excised: dict[str, tuple[str, ...]] = {}
        self._totals: tuple[Manifest | None, Totals] = (None, NOTHING)

    def to_excise(self, setting: tuple[str, ...], offsets: OffsetRanges) -> list[str]:
        """The files that may have records at these offsets, which the setting names."""
        files = () if self.manifest is None else self.manifest.files
        return [
            file.name
            for file in files
            if offsets.overlaps(file.base_offset, file.end_offset - 1)
            and self._excised.get(file.name) != setting
        ]

    def excised(self, setting: tuple[str, ...]) -> None:
        """The files of the manifest have none of these records."""
        assert self.manifest is not None
        self._excised = dict.fromkeys((file.name for file in self.manifest.files), setting)

    def is_excised(self, setting: tuple[str, ...], offsets: OffsetRanges) -> bool:
        return self.leader_epoch != NOT_LOADED and not self.to_excise(setting, offsets)

    def loaded(self, manifest: Manifest) -> None:
        """This broker leads in the epoch of the manifest."""
        self.leader_epoch = manifest.leader_epoch
        self.is_clean = self.is_continued = self.is_outdated = False
        self.divergence = None
        self.adopt(manifest)

    def adopt(self, manifest: Manifest) -> None:
        """A new manifest of the same leader. Its start may have been moved while it was made."""
        is_moved = manifest.files and self._floor > manifest.start_offset
        self.manifest = manifest.starting_at(self._floor) if is_moved else manifest

    @property
    def start_offset(self) -> int | None:
        manifest = self.manifest
        return manifest.start_offset if manifest is not None and manifest.files else None

    @property
    def end_offset(self) -> int:
        return 0 if self.manifest is None else self.manifest.end_offset

    @property
    def deletable_offset(self) -> int:
        return self.end_offset if self.is_continued else 0

    @property
    def last_epoch(self) -> int:
        manifest = self.manifest
        return manifest.files[-1].last_epoch if manifest is not None and manifest.files else -1

    @property
    def totals(self) -> Totals:
        """Counted once for each manifest: it may list thousands of files."""
        manifest = self.manifest
        if manifest is not self._totals[0]:
            self._totals = manifest, _totals(manifest) if manifest is not None else NOTHING
        return self._totals[1]

    def move_start(self, offset: int) -> None:
        self._floor = max(self._floor, offset)
        if self.manifest is not None:
            self.adopt(self.manifest)

    def read(
        self, offset: int, max_bytes: int
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        manifest = self.manifest
        assert manifest is not None
        while (file := manifest.file_for(offset)) is not None:
            try:
                records, aborted = self._reader.read(manifest, file, offset, max_bytes)
            except ArchiveError as error:
                raise self._failed(manifest, error) from error
            if records:
                return records, [AbortedTransaction(*each, each[2]) for each in aborted]
            offset = file.end_offset  # compaction left nothing at the end of it
        return b"", []

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        manifest = self.manifest
        if manifest is None:
            return None
        for file in manifest.files:
            if file.base_offset >= end_offset:
                break
            if file.max_timestamp < timestamp_ms:
                continue
            try:
                found = self._reader.find(manifest, file, timestamp_ms, manifest.start_offset)
            except ArchiveError as error:
                raise self._failed(manifest, error) from error
            if found is not None:
                offset, timestamp, leader_epoch = found
                if offset >= end_offset:
                    break
                return TimestampOffset(timestamp, offset, leader_epoch)
        return None

    def max_timestamp(self, end_offset: int) -> int:
        files = self.manifest.files if self.manifest is not None else ()
        below = (file.max_timestamp for file in files if file.base_offset < end_offset)
        return max(below, default=-1)

    def _failed(self, manifest: Manifest, error: ArchiveError) -> ApiError:
        """What consumers get: they try again."""
        now_ms = self._clock.monotonic_ms()
        name = f"{manifest.topic}-{manifest.partition}"
        if now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            logger.warning("archived records of %s cannot be read: %s", name, error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the archive of {name}: {error}")


def _totals(manifest: Manifest) -> Totals:
    return Totals(
        len(manifest.files),
        sum(file.records for file in manifest.files),
        sum(file.size_bytes for file in manifest.files),
        sum(file.segment_bytes for file in manifest.files),
        manifest.max_timestamp,
        max((file.archived_ms for file in manifest.files), default=-1),
    )
