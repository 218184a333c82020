from typing import final

from typing_extensions import Buffer as AnyBuffer

from millstream.records._columns import Memory

class Unencodable(ValueError): ...

@final
class Part:
    path: str
    def __init__(
        self,
        operation: str,
        path: str,
        branches: tuple[int, int] = ...,
        length: int = 0,
        offset: int = 0,
        validity: AnyBuffer | None = None,
        values: AnyBuffer | None = None,
        data: AnyBuffer | None = None,
        width: int = 0,
        size: int = -1,
        low: int = 0,
        high: int = 0,
        factor: int = 1,
        children: list[Part] = ...,
    ) -> None: ...

def encode_rows(record: Part, count: int, prefix: bytes) -> tuple[Memory, Memory]: ...
