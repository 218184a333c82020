"""Whether a stream's rows and a batch's are the same, and if not, where they differ.

What "the same" means depends on what a sink makes of the rows:

    without a key     all rows, whatever their order, as often as they come
    with a key        the last row of each key; gone, if its `delete` column says so
    mode="replace"    of each key, all its rows in the last batch that has it
    `_weight`         the sum of the weights of each row: a change log

Doubles may differ by a small share (sums depend on the order), those near zero by a thousandth of
that (of what adds up to nothing, the rounding is left), and columns can be left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from millstream.errors import ConfigError
from millstream.testing.streams.case import value_text

Values: TypeAlias = tuple[Any, ...]
TOLERANCE = 1e-9  # relative
NEAR_ZERO_SHARE = 1e-3  # of the tolerance: the difference, as such, that does not count
WEIGHT, OP = "_weight", "_op"
REVISED = ("_kind", "_old")  # columns that tell how a row came to be, not what it says
NOT_A_NUMBER = "nan"
SHOWN_ROWS_MAX = 20


@dataclass(frozen=True)
class Comparison:
    """How an output's rows are compared; see the head of this module."""

    key: tuple[str, ...] = ()
    ignore: frozenset[str] = frozenset()
    delete: str | None = None
    is_replaced: bool = False
    tolerance: float = TOLERANCE

    def table(self, batches: Iterable[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        """What the rows of all batches, one after another, amount to."""
        batches = [*batches]
        rows = [row for batch in batches for row in batch]
        if rows and WEIGHT in rows[0] and self.delete in (None, WEIGHT):
            return _add_up(rows)
        return self._by_key(batches) if self.key else rows

    def _by_key(self, batches: Iterable[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        latest: dict[Values, list[Mapping[str, Any]]] = {}
        for batch in batches:
            found: dict[Values, list[Mapping[str, Any]]] = {}
            for row in batch:
                missing = [name for name in self.key if name not in row]
                if missing:
                    raise ConfigError(
                        f"there is no column {', '.join(missing)}, which is part of the key, in "
                        f"the result: {', '.join(row)}"
                    )
                rows = found.setdefault(tuple(canonical(row[name]) for name in self.key), [])
                if not self.is_replaced:
                    rows.clear()
                rows.append(row)
            latest |= found
        return [
            row
            for rows in latest.values()
            for row in rows
            if self.delete is None or not row[self.delete]
        ]

    def compare(
        self, stream: Sequence[Mapping[str, Any]], batch: Sequence[Mapping[str, Any]]
    ) -> Difference | None:
        """Of two tables; None if they are the same."""
        columns = self._columns(stream, batch)
        ours, theirs = (
            Counter(tuple(canonical(row.get(name)) for name in columns) for row in rows)
            for rows in (stream, batch)
        )
        only_stream = list((ours - theirs).elements())
        only_batch = list((theirs - ours).elements())
        only_stream, only_batch = _without_close(only_stream, only_batch, self.tolerance)
        if not only_stream and not only_batch:
            return None
        return Difference(columns, _sorted(only_stream), _sorted(only_batch))

    def _columns(self, *tables: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        revised = REVISED if self.key else ()
        left_out = {*self.ignore, *revised, *([self.delete] if self.delete else [])}
        found = dict.fromkeys(name for rows in tables for row in rows[:1] for name in row)
        return tuple(name for name in found if name not in left_out)


@dataclass(frozen=True)
class Difference:
    """Rows that only one of the two has."""

    columns: tuple[str, ...]
    only_stream: list[Values]
    only_batch: list[Values]

    def lines(
        self, first: str = "only in the stream", second: str = "only in the batch"
    ) -> list[str]:
        """As a table."""
        shown = [
            *((first, it) for it in self.only_stream[:SHOWN_ROWS_MAX]),
            *((second, it) for it in self.only_batch[:SHOWN_ROWS_MAX]),
        ]
        cells = [["", *self.columns], *([side, *map(_cell, it)] for side, it in shown)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        left_out = len(self.only_stream) + len(self.only_batch) - len(shown)
        return lines + ([f"... and {left_out} more"] if left_out else [])


def canonical(value: Any) -> Any:
    """A value that can be compared and hashed, and equals what means the same."""
    if isinstance(value, float):
        return NOT_A_NUMBER if math.isnan(value) else value + 0.0  # -0.0 is 0.0
    if isinstance(value, Mapping):
        return frozenset((canonical(key), canonical(it)) for key, it in value.items())
    if isinstance(value, list | tuple):  # also Spark's rows
        return tuple(map(canonical, value))
    if isinstance(value, bytearray):
        return bytes(value)
    return value.normalize() if isinstance(value, Decimal) else value


def _add_up(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each row once, with the sum of its weights."""
    totals: Counter[Values] = Counter()
    shown: dict[Values, Mapping[str, Any]] = {}
    for row in rows:
        named = {name: it for name, it in row.items() if name not in (WEIGHT, OP)}
        values = tuple(map(canonical, named.values()))
        shown[values] = named
        totals[values] += 1 if row[WEIGHT] is None else row[WEIGHT]
    return [{**shown[it], WEIGHT: total} for it, total in totals.items() if total]


def _without_close(
    ours: list[Values], theirs: list[Values], tolerance: float
) -> tuple[list[Values], list[Values]]:
    """Without pairs of rows that differ in nothing but the last digits of doubles."""
    left = list(theirs)
    alone = []
    for row in ours:
        twin = next((it for it in left if _is_close(row, it, tolerance)), None)
        if twin is None:
            alone.append(row)
        else:
            left.remove(twin)
    return alone, left


def _is_close(one: Any, two: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        limit = tolerance * NEAR_ZERO_SHARE
        return math.isclose(one, two, rel_tol=tolerance, abs_tol=limit)
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(
            _is_close(a, b, tolerance) for a, b in zip(one, two, strict=True)
        )
    return bool(one == two)


def _sorted(rows: list[Values]) -> list[Values]:
    return sorted(rows, key=lambda row: [(it is not None, str(it)) for it in row])


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    return repr(value) if isinstance(value, float) else value_text(value).strip("'")
