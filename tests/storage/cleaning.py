"""A compacted log for the tests of the cleaner: keyed records in, what a reader sees out."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from millstream.config.topic import TopicConfig
from millstream.records.batch import BatchHeader, iterate_headers
from millstream.records.compression import Compression
from millstream.records.record import Record, encode_batch
from millstream.storage.cleaner import Cleaner, CleanerSettings, CleaningStats
from millstream.storage.cleaner_plan import CleaningPlan, plan_cleaning
from millstream.storage.log import Log
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import Store, read_all

Write = tuple[bytes | None, bytes | None]

DAY_MS = 86_400_000


def compacted(**changes: object) -> TopicConfig:
    """Small segments, so that a few records fill several."""
    fields = {
        "cleanup_policy": frozenset({"compact"}),
        "segment_bytes": 400,
        "index_interval_bytes": 100,
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": DAY_MS,
    } | changes
    return TopicConfig(**fields)  # type: ignore[arg-type]


class PowerCut(BaseException):
    """The machine is off; no handler may tidy up after it."""


class MortalFileSystem(MemoryFileSystem):
    """Loses power after so many operations."""

    operations_left: int | None = None

    def _note(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        super()._note(name, path, position, size)
        if self.operations_left is not None:
            self.operations_left -= 1
            self._check(path)

    def _check(self, path: str) -> None:
        super()._check(path)
        if self.operations_left is not None and self.operations_left <= 0:
            raise PowerCut

    def crash(self, random: Random | None = None) -> None:
        self.operations_left = None
        super().crash(random)


class CompactedStore(Store):
    """A `Store` with one compacted log and a cleaner."""

    def __init__(
        self,
        *,
        config: TopicConfig | None = None,
        fs: MemoryFileSystem | None = None,
        settings: CleanerSettings | None = None,
    ) -> None:
        super().__init__(config=config or compacted(), fs=fs)
        self.cleaner = Cleaner(settings or CleanerSettings(io_buffer_bytes=150))
        self.first_dirty_offset: int | None = None
        self.written: dict[int, Record] = {}

    def write(
        self,
        *writes: Write,
        compression: Compression = Compression.NONE,
        producer_id: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> None:
        """Append one batch."""
        now_ms = self.clock.now_ms()
        records = [Record(i, now_ms + i, key, value) for i, (key, value) in enumerate(writes)]
        batch = encode_batch(
            records,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        first_offset = self.append_batch(batch).first_offset
        for i, record in enumerate(records):
            stored = Record(first_offset + i, record.timestamp, record.key, record.value)
            self.written[stored.offset] = stored

    def write_each(self, writes: Iterable[Write]) -> None:
        """Append one batch per write."""
        for write in writes:
            self.write(write)

    def seal(self) -> None:
        """Make all that was written cleanable."""
        self.log().roll(self.clock.now_ms())
        self.flush()

    def plan(self) -> CleaningPlan:
        log = self.log()
        stable = log.producers.first_open_offset
        return plan_cleaning(
            log,
            self.first_dirty_offset,
            log.log_end_offset if stable is None else stable,
            self.clock.now_ms(),
        )

    def clean(self) -> CleaningStats:
        stats = self.cleaner.clean(self.plan())
        self.first_dirty_offset = stats.next_dirty_offset
        return stats

    def read(self) -> list[Record]:
        return read_all(self.log())

    def values(self) -> dict[bytes | None, bytes | None]:
        """What a reader from the start ends up with."""
        return {record.key: record.value for record in self.read()}


def headers_of(log: Log) -> list[BatchHeader]:
    """The headers of every batch of a log."""
    headers = []
    for segment in log.segments:
        data = segment.read_at(segment.size, 0, may_block=True)
        headers += [header for _, header in iterate_headers(data)]
    return headers
