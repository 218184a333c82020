"""The generations of the columns of a pipeline's state: which start has added each of them.

A column that is added gets a number that no column of the checkpoint had before; a column that has
been there stays what it was. Buckets get the numbers with every call, and do not find the values of
a column that was removed and comes back (state/stored_columns.py). The owner file of the checkpoint
has, under "columns":

    {"batch": 17, "newest": 2,
     "now": {"[\\"changes by _position\\", 16, {...}]": {"rows": {"name": 0, "country": 2}}},
     "before": {...}}

"now" are the columns from "batch" on, and "before" those until then: a definition that was started
and has not completed a batch has changed nothing. "newest" is the greatest number. An operator is
identified by what its state depends on, and by its place among equal ones. Operators and tables
that are gone are kept, because their state may be, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from millstream.pipelines.plans import BucketedOperator
from millstream.pipelines.state.stored_columns import Generations

ByOperator: TypeAlias = Mapping[str, Generations]


@dataclass(frozen=True)
class StateColumns:
    """See the module."""

    batch: int = 0
    newest: int = 0
    now: ByOperator = field(default_factory=dict)
    before: ByOperator = field(default_factory=dict)

    @classmethod
    def of_json(cls, found: Mapping[str, Any] | None) -> StateColumns:
        return cls(**(found or {}))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def from_batch(self, batch: int, operators: Sequence[BucketedOperator]) -> StateColumns:
        """The columns if these operators run from this batch on."""
        kept = self.now if self.batch < batch else self.before
        number = self.newest + 1
        now = dict(kept)
        for name, operator in named(operators):
            tables = kept.get(name, {})
            now[name] = {
                **tables,
                **{
                    table: generations_of(columns, tables.get(table), number)
                    for table, columns in operator.columns.items()
                },
            }
        if now == self.now and kept is self.now:
            return self
        return StateColumns(batch, max([self.newest, *_numbers(now)]), now, kept)

    def of_operators(self, operators: Sequence[BucketedOperator]) -> dict[int, Generations]:
        """What tasks need: by the number of the operator, generations other than 0."""
        found = {
            operator.number: {
                table: {column: it for column, it in self.now[name][table].items() if it}
                for table in operator.columns
            }
            for name, operator in named(operators)
        }
        return {number: tables for number, tables in found.items() if any(tables.values())}


def named(operators: Iterable[BucketedOperator]) -> Iterator[tuple[str, BucketedOperator]]:
    """The operators by a name that is the same at every start."""
    seen: Counter[str] = Counter()
    for it in operators:
        place = seen[it.kept]
        seen[it.kept] += 1
        yield (f"{it.kept} {place}" if place else it.kept), it


def generations_of(
    columns: Iterable[str], kept: Mapping[str, int] | None, number: int
) -> dict[str, int]:
    """The generations of a table's columns; without a record of it, they are the first ones."""
    if kept is None:
        return dict.fromkeys(columns, 0)
    return {column: kept.get(column, number) for column in columns}


def _numbers(found: ByOperator) -> Iterator[int]:
    for tables in found.values():
        for columns in tables.values():
            yield from columns.values()
