"""A compiled pattern as plain data, and the machine that is made of it.

`_matcher.pyx` has the machine; workers make theirs from the data, which is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.pipelines.patterns._matcher import Machine
from millstream.pipelines.patterns.conditions import Code, label_bits
from millstream.pipelines.patterns.program import Program

SKIP_PAST_LAST, SKIP_TO_NEXT, SKIP_TO_ROW = range(3)
NO_LIMIT = 2**62
Skip: TypeAlias = Literal["past last row", "to next row", "to first", "to last"]


@dataclass(frozen=True)
class Compiled:
    """All that the machine needs. `always` are the bits of variables without a condition."""

    program: Program
    code: Code
    always: int
    within_us: int = NO_LIMIT
    max_rows: int = NO_LIMIT
    skip: Skip = "past last row"
    wants_unmatched: bool = False
    keeps_always: bool = False
    wants_time_outs: bool = False

    def machine(self) -> Machine:
        skip = {"past last row": SKIP_PAST_LAST, "to next row": SKIP_TO_NEXT}
        return Machine(
            self.program.instructions,
            [label_bits(name) for name in self.program.variables],
            self.code.ranges,
            self.code.operations,
            self.code.registers,
            len(self.code.values),
            self.always,
            self.within_us,
            self.max_rows,
            skip.get(self.skip, SKIP_TO_ROW),
            self.code.skip_register,
            self.wants_unmatched,
            self.keeps_always,
            self.wants_time_outs,
        )


class StateBytes(NamedTuple):
    """What is undecided of keys: the bytes of key `i` are `data[bounds[i]:bounds[i + 1]]`, none if
    it has nothing."""

    data: bytes | npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.BinaryArray) -> StateBytes:
        """As they are stored; null is nothing."""
        filled = column.fill_null(b"") if column.null_count else column
        _, bounds, data = filled.buffers()
        offsets = np.frombuffer(bounds, np.int32) if len(filled) else np.zeros(1, np.int32)
        offsets = offsets[filled.offset : filled.offset + len(filled) + 1]
        return cls(b"" if data is None else np.frombuffer(data, np.uint8), offsets)

    def column(self) -> pa.BinaryArray:
        is_there = np.packbits(self.bounds[1:] > self.bounds[:-1], bitorder="little")
        buffers = [pa.py_buffer(it) for it in (is_there, self.bounds, self.data)]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self.bounds) - 1, buffers)
