from collections.abc import Callable
from typing import final

from typing_extensions import Buffer as AnyBuffer

from millstream.pipelines.reading.decoding._rows import Field, Taken
from millstream.records._columns import Memory

# operation, column, size or problem, low, high, factor, text, steps
Step = tuple[str, int, int | str, int, int, int, bytes, list[int]]

@final
class Program:
    def __init__(self, decoder: AvroDecoder, steps: list[Step]) -> None: ...

@final
class AvroDecoder:
    def __init__(
        self,
        fields: list[Field],
        find: Callable[[int], Program | tuple[str, str]] | None = None,
    ) -> None: ...
    def use(self, program: Program) -> None: ...
    def decode(
        self, count: int, validity: AnyBuffer | None, offsets: AnyBuffer, data: AnyBuffer
    ) -> tuple[int, Memory | None, list[tuple[int, str, str]], list[Taken]]: ...
