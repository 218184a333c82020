from typing import Final, final

from millstream.records.batch import BatchHeader, Buffer

NULL_KEY: Final[int]
TIMESTAMP_OUT_OF_RANGE: Final[int]

WALK_DONE: Final[int]
WALK_OPAQUE: Final[int]
WALK_FULL: Final[int]

def check_records(
    buffer: Buffer,
    start: int,
    end: int,
    header: BatchHeader,
    earliest: int,
    latest: int,
    keys_required: bool,
) -> tuple[int, list[tuple[int, int]]]: ...
def check_small_batch(
    buffer: Buffer, now_ms: int, before_max_ms: int, after_max_ms: int, keys_required: bool
) -> tuple[int, ...] | None: ...
def compute_crc(buffer: Buffer, *, with_tables: bool = False) -> int: ...
def stamp_batch(buffer: Buffer, base_offset: int, leader_epoch: int) -> bytes: ...
def find_timestamp(
    buffer: Buffer, start: int, end: int, header: BatchHeader, timestamp: int
) -> tuple[int, int] | None: ...
def index_points(
    buffer: Buffer,
    end: int,
    interval_bytes: int,
    bytes_since_point: int,
    max_timestamp: int,
    max_timestamp_offset: int,
) -> tuple[list[tuple[int, int, int, int]], int, int, int]: ...
def hash_key(key: bytes, secret: bytes) -> bytes: ...

@final
class OffsetMap:
    capacity: int
    count: int
    def __init__(
        self, size_bytes: int, load_factor: float = 0.9, secret: bytes | None = None
    ) -> None: ...
    @property
    def utilization(self) -> float: ...
    def index_batches(
        self, buffer: Buffer, position: int, end: int, start_offset: int
    ) -> tuple[int, int, int]: ...
    def index_records(
        self, buffer: Buffer, start: int, end: int, header: BatchHeader, start_offset: int
    ) -> bool: ...
    def get(self, key: bytes) -> int: ...

@final
class RecordFilter:
    def __init__(
        self,
        map: OffsetMap,
        *,
        latest_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
        kept_ends: object,
        all_tombstones: bool = False,
    ) -> None: ...
    def filter_batches(
        self,
        buffer: Buffer,
        position: int,
        end: int,
        output: bytearray | memoryview,
        output_position: int,
    ) -> tuple[int, int, int, int, int]: ...
    def filter_records(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        header: BatchHeader,
        keep_all: bool = False,
        set_horizon: bool = False,
    ) -> tuple[int, int, int | None, bytes | None]: ...
