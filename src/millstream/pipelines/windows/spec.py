"""The settings of a window, and when its results come: what its operators need of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column, check_choice
from millstream.pipelines.durations import duration_text
from millstream.pipelines.results import Stragglers
from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.state.tables import times_of
from millstream.pipelines.windows.aggregates import (
    ADDABLE_KINDS,
    Aggregate,
    Given,
    check_aggregates,
    parse_aggregates,
    refuse_distinct,
)
from millstream.pipelines.windows.emission import NOW, parse_emit
from millstream.pipelines.windows.kinds import Kind, Session
from millstream.pipelines.windows.ranges import Mask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    aggregates: Mapping[str, Given]
    stragglers: Stragglers
    allowed_lateness_us: int
    emit: str
    buckets: int
    count_as: str | None

    def __post_init__(self) -> None:
        check_choice("stragglers", self.stragglers, Stragglers)
        _ = self.every_us
        check_aggregates(self.aggregates)
        if self.is_kept:
            _ = self.addable
        else:
            refuse_distinct(self.aggregates)
        if self.stragglers == "correct" and not self.allowed_lateness_us:
            raise ConfigError(
                "stragglers='correct' corrects nothing without allowed_lateness: say for how long "
                'after the watermark, like allowed_lateness="1 hour"'
            )

    @property
    def every_us(self) -> int | None:
        """How often preliminary results may come; None if they do not."""
        emission, every_us = parse_emit(self.emit, ("final", "change", "every"))
        return None if emission == "final" else every_us

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

    @property
    def is_kept(self) -> bool:
        """Whether a stream's results are computed in bucketed state, and not by Spark."""
        waits = isinstance(self.kind, Session) and self.allowed_lateness_us > 0
        return self.is_revised or waits

    @property
    def addable(self) -> dict[str, Aggregate]:
        """The aggregates, as state keeps them. Raises `ConfigError`."""
        return parse_aggregates(self.aggregates, ADDABLE_KINDS)

    def key_names(self, frame: DataFrame) -> list[str]:
        return frame.select(*map(as_column, self.keys)).columns

    def time_name(self, frame: DataFrame) -> str:
        (name,) = frame.select(as_column(self.time)).columns
        return name
