"""A compiled pattern as plain data, and the machine that is made of it.

`_matcher.pyx` has the machine; workers make theirs from the data, which is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
