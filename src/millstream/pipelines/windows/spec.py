"""The settings of a window: the part of a definition that its operators need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.pipelines.columns import as_column
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.keys import check_buckets
from millstream.pipelines.windows.aggregates import (
    ADDABLE_KINDS,
    Aggregate,
    Given,
    check_aggregates,
    parse_aggregates,
    refuse_distinct,
)
from millstream.pipelines.windows.emission import parse_emit
from millstream.pipelines.windows.kinds import Kind, Session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class WindowSpec:
    """The settings of a window, checked. Make one with `tumbling`, `hopping`, `calendar` or
    `session`."""

    kind: Kind
    keys: tuple[str | Column, ...]
    time: str | Column
    aggregates: Mapping[str, Given]
    lateness: Lateness
    emit: str
    buckets: int

    def __post_init__(self) -> None:
        _ = self.every_us
        check_aggregates(self.aggregates)
        check_buckets(self.buckets)
        if self.is_kept:
            _ = self.addable
        else:
            refuse_distinct(self.aggregates)

    @property
    def every_us(self) -> int | None:
        """How often preliminary results may come; None if they do not."""
        emission, every_us = parse_emit(self.emit, ("final", "change", "every"))
        return None if emission == "final" else every_us

    @property
    def is_revised(self) -> bool:
        """Whether results of a window may come more than once."""
        return self.lateness.corrects or self.emit != "final"

    @property
    def is_kept(self) -> bool:
        """Whether a stream's results are computed in bucketed state, and not by Spark."""
        waits = isinstance(self.kind, Session) and self.lateness.allowed_us > 0
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
