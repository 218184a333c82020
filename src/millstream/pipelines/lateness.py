"""Late rows: the policy of an operator, and the rule on Arrow columns.

    Lateness("drop", 0, "late.as_of")

A row is late for a result if its deadline, and the allowed lateness after it, is at or behind the
watermark. A row without a time is late. `stragglers` says what happens to late rows:

    drop       they are counted in the query's progress, under the name `count_as`
    divert     they are emitted, as an output of their own or as rows with `_kind` = late
    correct    results become final when the watermark reaches them. Rows that arrive within the
               allowed lateness after that correct them, and later ones are diverted

Windows, analytics and joins share this policy. times/lateness.py has the rule on Spark's columns,
and results.py the count of dropped rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.pipelines.columns import check_choice
from millstream.pipelines.durations import Duration, duration_text, duration_us

Stragglers: TypeAlias = Literal["drop", "divert", "correct"]
DropOrDivert: TypeAlias = Literal["drop", "divert"]  # of operators that emit each result once


@dataclass(frozen=True)
class Lateness:
    """How late rows may be, and what happens to those that are later."""

    stragglers: Stragglers = "drop"
    allowed_us: int = 0
    count_as: str = "late"  # the name of the count of dropped rows in the query's progress

    def __post_init__(self) -> None:
        check_choice("stragglers", self.stragglers, Stragglers)
        if self.corrects and not self.allowed_us:
            raise ConfigError(
                "stragglers='correct' corrects nothing without allowed_lateness: set for how long "
                'after the watermark, like allowed_lateness="1 hour"'
            )

    @classmethod
    def of(
        cls,
        stragglers: object,
        allowed: Duration | None,
        count_as: str,
        choices: Any = Stragglers,
        instead: str = "",
    ) -> Lateness:
        """The policy of these arguments; `instead` is what to do if "correct" is not among the
        choices. Raises `ConfigError`."""
        if stragglers == "correct" and choices is DropOrDivert:
            raise ConfigError(
                "stragglers='correct': each result is emitted once here, and cannot be corrected. "
                + (instead or 'Choose "drop", which counts late rows, or "divert"')
            )
        check_choice("stragglers", stragglers, choices)
        allowed_us = 0
        if allowed is not None:
            allowed_us = duration_us(allowed, "allowed_lateness", zero_allowed=True)
        return cls(stragglers, allowed_us, count_as)  # type: ignore[arg-type]  # checked

    @property
    def corrects(self) -> bool:
        return self.stragglers == "correct"

    @property
    def final_us(self) -> int:
        """How far behind the watermark a result is final."""
        return 0 if self.corrects else self.allowed_us

    @property
    def kept_text(self) -> str:
        """How long a window is kept."""
        waiting = f"{duration_text(self.allowed_us)} after " if self.allowed_us else ""
        return f"until {waiting}the watermark has passed its end"


def is_late(rows: pa.RecordBatch, time: str, late_us: int) -> pa.Array:
    """Whether each row is at or before `late_us`, or has no time."""
    return pc.fill_null(pc.less_equal(rows.column(time).view(pa.int64()), late_us), True)


def split_late(
    rows: pa.RecordBatch, time: str, late_us: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows that are on time, and late rows."""
    late = is_late(rows, time, late_us)
    if not pc.any(late).as_py():
        return rows, rows.slice(0, 0)
    return rows.filter(pc.invert(late)), rows.filter(late)


def seconds_behind(rows: pa.RecordBatch, time: str, watermark_us: int) -> pa.Array:
    """How far each row is behind the watermark; null without a time."""
    behind_us = pc.subtract(watermark_us, rows.column(time).view(pa.int64()))
    # Beyond 2^53 microseconds, 285 years, a double rounds, which a safe cast refuses.
    return pc.divide(behind_us.cast(pa.float64(), safe=False), 1e6)
