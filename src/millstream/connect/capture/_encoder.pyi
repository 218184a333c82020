from collections.abc import Callable, Sequence
from typing import final

from millstream.connect.capture.envelope import EnvelopeSettings
from millstream.connect.capture.tables import Table
from millstream.connect.capture.types import ValueType
from millstream.records._columns import Memory, TakenBinary, TakenHeaders

@final
class StreamContext:
    xid: int
    commit_lsn: int
    commit_time_us: int
    now_us: int
    ordinal: int
    last_commit_lsn: int | None
    def __init__(self, last_commit_lsn: int | None = None) -> None: ...
    def begin(
        self, *, xid: int, commit_lsn: int, commit_time_us: int, now_us: int, skip: int = 0
    ) -> None: ...
    def commit(self, end_lsn: int) -> tuple[int, list[tuple[str, int]]]: ...
    def count(self, collection: str) -> tuple[int, int] | None: ...
    def count_event(self, collection: str) -> tuple[int, int]: ...
    @property
    def is_skipping(self) -> bool: ...
    @property
    def transaction_id(self) -> str: ...

@final
class ChangeBuffer:
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None: ...
    def clear(self) -> None: ...
    def take(self) -> tuple[int, Memory, TakenBinary, TakenBinary, TakenHeaders | None]: ...

class Envelope: ...

class JsonEnvelope(Envelope):
    def __init__(
        self,
        table: Table,
        settings: EnvelopeSettings,
        value_types: Sequence[ValueType],
        unavailable: list[bytes],
        version: str,
        connector: str,
    ) -> None: ...

class AvroEnvelope(Envelope):
    def __init__(
        self,
        table: Table,
        settings: EnvelopeSettings,
        value_types: Sequence[ValueType],
        version: str,
        connector: str,
        schema_id: Callable[[bool, bool], int],
    ) -> None: ...

class TableEncoder:
    table: Table
    def __init__(
        self,
        table: Table,
        settings: EnvelopeSettings,
        envelope: Envelope,
        context: StreamContext,
        buffer: ChangeBuffer,
    ) -> None: ...
    def change(self, message: bytes) -> None: ...
    def truncate(self, lsn: int) -> None: ...
    def copy(
        self,
        rows: bytes | list[bytes],
        *,
        flag: str,
        lsn: int | None,
        xid: int | None,
        snapshot_time_us: int,
        now_us: int,
    ) -> int: ...

@final
class ChangeFeed:
    def register(self, encoder: TableEncoder) -> None: ...
    def feed(self, messages: list[bytes], position: int = 0) -> int: ...
