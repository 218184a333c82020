"""How an output of two versions differs: what `differing.py` and `comparing_topics.py` find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TOLERANCE = "1e-9"  # of doubles, relative: sums depend on the order of rows
NEAR_ZERO = "1e-12"
SAMPLES = 5


@dataclass(frozen=True)
class Sample:
    """A row that differs; of one that only one version has, the other is None."""

    key: Mapping[str, Any]
    first: Mapping[str, Any] | None
    second: Mapping[str, Any] | None


@dataclass(frozen=True)
class Diff:
    """How a table or a topic differs."""

    name: str
    rows: tuple[int, int]
    open_rows: tuple[int, int] = (0, 0)
    only: tuple[int, int] = (0, 0)
    differing: int = 0
    by_column: Mapping[str, int] = field(default_factory=dict)
    columns_of_one: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    samples: tuple[Sample, ...] = ()
    time: str | None = None  # the column by which rows are final
    keyed: bool = True
    is_topic: bool = False
    deleted: tuple[int, int] = (0, 0)  # offsets of a topic that retention has deleted

    @property
    def is_equal(self) -> bool:
        return not (any(self.only) or self.differing)

    def without(self, first: int, second: int) -> Diff:
        """The same, with so many offsets deleted before they could be compared."""
        return replace(self, deleted=(first, second))
