from collections.abc import Callable, Generator
from typing import Any, Self, final

from millstream.broker.deferred import Buffers
from millstream.broker.replicas.flushing import Flusher
from millstream.broker.replicas.leadership import Leadership, LedLog
from millstream.broker.replicas.partition import Partition, Watcher
from millstream.clock import Clock
from millstream.errors import ApiError
from millstream.protocol.wire import Buffer
from millstream.storage.log import Log

class Completion:
    is_done: bool
    def when_done(self, callback: Callable[[Self], None]) -> None: ...
    def finish(self) -> None: ...
    def __await__(self) -> Generator[Any, None, Self]: ...

class PendingAppend(Completion):
    first_offset: int
    next_offset: int
    log_append_time_ms: int
    bytes_before: int
    waits_for_all: bool
    error: ApiError | None
    def __init__(self, first_offset: int, next_offset: int) -> None: ...
    def fail(self, error: ApiError) -> None: ...

class Deferred(Completion):
    exclusive: bool
    on_cancel: Callable[[], None] | None
    body: Buffers | None
    def __init__(self, *, exclusive: bool = False) -> None: ...
    def complete(self, body: Buffers | None) -> None: ...
    def cancel(self) -> None: ...

@final
class DeferredAppend(Deferred):
    def __init__(self, pending: PendingAppend, template: TemplateCore) -> None: ...

class LeadershipCore:
    _log: LedLog
    _changed: Callable[[], None] | None
    epoch: int
    high_watermark: int
    last_stable_offset: int
    visible_bytes: int
    stable_bytes: int
    is_alone: bool
    _appended_bytes: int
    records_in: int
    bytes_in: int
    appends: int
    _is_held_back: bool
    _unflushed: list[PendingAppend]
    _duplicates: list[tuple[PendingAppend, int]]
    def appended(
        self, pending: PendingAppend, size_bytes: int, *, acks: int, must_flush: bool
    ) -> bool: ...
    def flushed(self) -> bool: ...
    def _advance(self, high_watermark: int, visible_bytes: int) -> None: ...

class PartitionCore:
    topic: str
    index: int
    log: Log
    leadership: Leadership
    offline_error: ApiError | None
    fetches: int
    bytes_out: int
    _flusher: Flusher
    _clock: Clock
    _watchers: set[Watcher]
    @property
    def log_start_offset(self) -> int: ...
    def flushed(self) -> None: ...

def notify_flushed(partitions: list[PartitionCore]) -> None: ...

class TemplateCore:
    @property
    def version(self) -> int: ...
    @property
    def partition(self) -> Partition: ...
    def __init__(
        self, version: int, partition: Partition, records_start: int, head: bytes, tail: bytes
    ) -> None: ...
    def records_of(self, body: Buffer) -> Buffer | None: ...
    def encode(self, pending: PendingAppend) -> bytes: ...

def request_prefix(version: int, body: Buffer) -> bytes | None: ...
