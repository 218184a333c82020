from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

from millstream.config.topic import TopicConfig
from millstream.records.batch import BatchHeader, Buffer
from millstream.storage.directory import LogDirectory
from millstream.storage.index import OffsetIndex, TimeIndex
from millstream.storage.journal import DataEntry
from millstream.storage.log import Log
from millstream.storage.segment import Segment

COPIED_BYTES_MAX: Final[int]
COPIES_BYTES_MAX: Final[int]
DATA: Final[int]
ENTRY_OVERHEAD_BYTES: Final[int]

@final
class FileHandle:
    fd: int
    pins: int
    used: bool
    discarded: bool
    path: str
    def __init__(self, path: str, *, discarded: bool = False) -> None: ...

@final
class JournalCopies:
    def add(self, buffers: list[Buffer], size: int) -> None: ...
    def take(self, start: int, end: int) -> bytes | None: ...
    def restart(self, position: int) -> None: ...

class SegmentCore:
    base_offset: int
    size: int
    synced_bytes: int
    durable_bytes: int
    first_timestamp: int | None
    max_timestamp: int | None
    max_timestamp_offset: int
    created_ms: int
    roll_jitter_ms: int
    _bytes_since_index: int
    handle: FileHandle
    copies: JournalCopies
    index: OffsetIndex | None
    time_index: TimeIndex | None
    def age_ms(self, now_ms: int, max_timestamp: int) -> int: ...
    def note_durable(self, end: int, synced: bool) -> None: ...

class LogCore:
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    recovery_point: int
    last_flush_ms: int
    generation: int
    names_changed: int
    names_synced: int
    is_new: bool
    is_deleted: bool
    is_truncating: bool
    directory: LogDirectory
    log_id: tuple[bytes, int] | None
    _segments: list[Segment]
    versions: VersionTable | None
    def remember(
        self, segment: SegmentCore, offset: int, position: int, generation: int
    ) -> None: ...
    def recall(self, segment: SegmentCore, offset: int) -> int: ...
    def forget_positions(self) -> None: ...
    @property
    def accepts_small_appends(self) -> bool: ...
    def accept_small_appends(
        self,
        segment: SegmentCore,
        leader_epoch: int,
        config: TopicConfig,
        pwritev: Callable[[int, Sequence[Buffer], int], int],
    ) -> None: ...
    def refuse_small_appends(self) -> None: ...
    def append_small(self, buffer: Buffer, leader_epoch: int, now_ms: int) -> int: ...

NO_KEY: Final[int]
NO_HEADER: Final[int]
BAD_HEADER_VALUE: Final[int]
CONFLICT: Final[int]
HELD: Final[int]
TABLE_FULL: Final[int]
VERSION_DIGITS_MAX: Final[int]
OFFSET_DIGITS_MAX: Final[int]

@final
class VersionTable:
    def __init__(self, secret: bytes | None = None, *, keys_max: int = ...) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def end_number(self) -> int: ...
    @property
    def secret(self) -> bytes: ...
    @property
    def held_count(self) -> int: ...
    def check(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        header: BatchHeader,
        base_offset: int,
        start_offset: int,
        producer_id: int = -1,
    ) -> tuple[int, int, int, int, int] | None: ...
    def keep(self) -> None: ...
    def roll_back(self) -> None: ...
    def find_repeat(
        self, buffer: Buffer, start: int, end: int, header: BatchHeader, start_offset: int
    ) -> int: ...
    def end_transaction(self, producer_id: int, committed: bool) -> None: ...
    def get(self, key: bytes, start_offset: int = 0) -> tuple[int, int]: ...
    def replay_batches(
        self, buffer: Buffer, position: int, end: int, from_offset: int
    ) -> tuple[bool, int]: ...
    def replay_records(self, buffer: Buffer, header: BatchHeader, from_offset: int) -> None: ...
    def encode(self, first: int, end: int, start_offset: int) -> bytes: ...
    def held(self) -> list[tuple[int, int, int, int, int, int]]: ...
    def load(self, buffer: Buffer) -> None: ...
    def load_held(
        self, producer_id: int, low: int, high: int, version: int, offset: int, event: int
    ) -> None: ...

def check_offsets(
    buffer: Buffer, start: int, end: int, header: BatchHeader, base_offset: int
) -> tuple[int, int, int] | None: ...

@final
class FlushTarget:
    @property
    def log(self) -> Log: ...
    @property
    def generation(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def names_changed(self) -> int | None: ...
    @property
    def ranges(self) -> list[tuple[Segment, int, int, bytes | None]]: ...

@final
class DirtyLogs:
    @property
    def directory(self) -> LogDirectory: ...
    @property
    def targets(self) -> list[FlushTarget]: ...
    @property
    def range_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def new_count(self) -> int: ...

def collect_dirty(logs: Iterable[Log], to_segments: bool) -> list[DirtyLogs]: ...
def journal_entries(targets: list[FlushTarget]) -> list[DataEntry] | None: ...
def note_flushed(targets: list[FlushTarget], now_ms: int, synced: bool) -> None: ...
def encode_entries(entries: Sequence[DataEntry], seed: int) -> bytes: ...
