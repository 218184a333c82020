from typing import Any, final

from typing_extensions import Buffer as AnyBuffer

from millstream.records._columns import Memory

Field = tuple[str, str, bool, int, int, list[Any]]  # the last: Fields
Taken = tuple[int, int, Memory | None, Memory | None, Memory | None, list[Any]]  # the last: Takens

@final
class RowDecoder:
    def __init__(self, grammar: str, fields: list[Field], dialect: bytes = b',"\\') -> None: ...
    def decode(
        self, count: int, validity: AnyBuffer | None, offsets: AnyBuffer, data: AnyBuffer
    ) -> tuple[int, Memory | None, list[tuple[int, str, str]], list[Taken]]: ...
