from typing import final

from typing_extensions import Buffer as AnyBuffer

from millstream.records.batch import BatchHeader, Buffer

@final
class Memory:
    size: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

TakenBinary = tuple[int, Memory | None, Memory, Memory]
TakenHeaders = tuple[Memory, TakenBinary, TakenBinary]

@final
class ColumnBuilder:
    def __init__(self, records_max: int, bytes_max: int, with_headers: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def add(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        header: BatchHeader,
        first_offset: int,
        end_offset: int,
    ) -> None: ...
    def take(
        self,
    ) -> tuple[int, Memory, Memory, Memory, TakenBinary, TakenBinary, TakenHeaders | None]: ...

@final
class BinaryColumn:
    length: int
    def __init__(
        self,
        length: int,
        offset: int,
        validity: AnyBuffer | None,
        offsets: AnyBuffer,
        data: AnyBuffer | None,
    ) -> None: ...
    def to_list(self, start: int = 0, end: int | None = None) -> list[bytes | None]: ...

@final
class HeaderColumn:
    length: int
    def __init__(
        self, length: int, offset: int, lists: AnyBuffer, names: BinaryColumn, values: BinaryColumn
    ) -> None: ...

@final
class RowEncoder:
    def __init__(
        self,
        timestamps: AnyBuffer,
        keys: BinaryColumn | None,
        values: BinaryColumn,
        headers: HeaderColumn | None = None,
    ) -> None: ...
    def encode(
        self, rows: AnyBuffer, position: int, bytes_max: int
    ) -> tuple[Memory, int, int, int]: ...
    def encode_stored(
        self,
        offsets: AnyBuffer,
        starts: AnyBuffer,
        base_offsets: AnyBuffer,
        base_timestamps: AnyBuffer,
    ) -> tuple[Memory, Memory]: ...

def partitions_of(keys: BinaryColumn, partitions: int) -> Memory: ...
def rows_by_partition(partitions: AnyBuffer, count: int) -> list[Memory]: ...
