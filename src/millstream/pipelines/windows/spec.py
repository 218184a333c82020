"""The settings of a window, and when its results come: what its operators need of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column
from millstream.pipelines.durations import duration_text, duration_us
from millstream.pipelines.results import Stragglers
from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.state.tables import times_of
from millstream.pipelines.windows.aggregates import EXAMPLE, Aggregate
from millstream.pipelines.windows.kinds import Kind
from millstream.pipelines.windows.ranges import Mask
from millstream.pipelines.windows.sliding import EVERY, NOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EMISSIONS = 'emit: choose "final", "change" or "every 10 seconds"'


class Timing(NamedTuple):
    """When results come: final at `settling_us` behind the watermark, changes until `kept_us`."""

    settling_us: int
    kept_us: int
    every_us: int | None  # between preliminary results; None: there are none

    def show(self, may_come: Mask, shown: Numbers, new: pa.RecordBatch) -> Mask:
        """Which of them have a preliminary result now; notes it in `shown`."""
        if self.every_us is None:
            return np.zeros(len(may_come), np.bool_)
        now_us = int(times_of(new, NOW).max())
        due: Mask = may_come & (now_us - shown >= self.every_us)
        shown[due] = now_us
        return due

    @property
    def kept_text(self) -> str:
        waiting = f"{duration_text(self.kept_us)} after " if self.kept_us else ""
        return f"until {waiting}the watermark has passed its end"


@dataclass(frozen=True)
class WindowSpec:
    """The settings of a window, checked. Make one with `tumbling` and its like."""

    kind: Kind
    keys: tuple[str | Column, ...]
    time: str | Column
    aggregates: Mapping[str, str | Column | Aggregate]
    stragglers: Stragglers
    allowed_lateness_us: int
    emit: str
    buckets: int
    count_as: str | None

    def __post_init__(self) -> None:
        if self.stragglers not in get_args(Stragglers):
            choices = ", ".join(get_args(Stragglers))
            raise ConfigError(f"stragglers={self.stragglers!r}: choose one of {choices}")
        _ = self.every_us
        if not self.aggregates:
            raise ConfigError(f"a window without aggregates has no result: {EXAMPLE}")
        if self.stragglers == "correct" and not self.allowed_lateness_us:
            raise ConfigError(
                "stragglers='correct' corrects nothing without allowed_lateness: say for how long "
                'after the watermark, like allowed_lateness="1 hour"'
            )

    @property
    def every_us(self) -> int | None:
        """How often preliminary results may come; None if they do not."""
        if self.emit == "final":
            return None
        if self.emit == "change":
            return 0
        if isinstance(self.emit, str) and self.emit.startswith(EVERY):
            return duration_us(self.emit.removeprefix(EVERY), "emit")
        raise ConfigError(f"{_EMISSIONS}, not {self.emit!r}")

    @property
    def metric(self) -> str:
        """Where the query's progress counts late rows that are dropped."""
        return self.count_as or f"late.{self.kind.label}"

    @property
    def timing(self) -> Timing:
        """When results come that may come more than once."""
        settling_us = 0 if self.stragglers == "correct" else self.allowed_lateness_us
        return Timing(settling_us, self.allowed_lateness_us, self.every_us)

    @property
    def is_revised(self) -> bool:
        """Whether results of a window may come more than once."""
        return self.stragglers == "correct" or self.emit != "final"

    def key_names(self, frame: DataFrame) -> list[str]:
        return frame.select(*map(as_column, self.keys)).columns

    def time_name(self, frame: DataFrame) -> str:
        (name,) = frame.select(as_column(self.time)).columns
        return name
