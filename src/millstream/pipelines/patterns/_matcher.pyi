from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

MATCH: int
UNMATCHED: int
TIMED_OUT: int
TOO_LONG: int
EXCLUDED: int

_Bounds = npt.NDArray[np.int32]
_Longs = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

def open_since(data: bytes | _Bytes, bounds: _Bounds, closed: int) -> _Longs: ...

@final
class Machine:
    def __init__(
        self,
        instructions: Sequence[tuple[int, int, int]],
        labels: Sequence[int],
        conditions: Sequence[tuple[int, int]],
        code: Sequence[tuple[int, int]],
        registers: Sequence[tuple[int, int, int, int, int]],
        value_count: int,
        always: int,
        within: int,
        max_rows: int,
        skip: int,
        skip_register: int,
        wants_unmatched: bool,
        keeps_always: bool,
        wants_time_outs: bool,
    ) -> None: ...
    def scan(
        self,
        bounds: _Longs,
        mask: _Longs,
        times: _Longs,
        values: _Longs,
        nulls: _Bytes,
        state_data: bytes | _Bytes,
        state_bounds: _Bounds,
        first_numbers: _Longs,
        watermark_us: int,
        at_end: bool,
    ) -> tuple[_Longs, bytes, _Bounds, _Longs, _Longs, _Longs]: ...
    def label(
        self,
        mask: _Longs,
        times: _Longs,
        values: _Longs,
        nulls: _Bytes,
        starts: _Longs,
        ends: _Longs,
        kinds: _Longs,
        is_first: _Bytes,
        is_last: _Bytes,
    ) -> _Bytes: ...
