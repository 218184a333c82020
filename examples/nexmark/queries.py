"""All 23 queries by name: what each reads, how its answer comes, and who can run it.

QUERIES["q5"].ask({"bid": bids})        the answer, as a DataFrame
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from examples.nexmark.library import LIBRARY
from examples.nexmark.native import NATIVE
from examples.nexmark.oracle import KEY
from pyspark.sql import DataFrame

Answer = Literal["appended", "updated", "changes"]
ANSWERS: Mapping[str, Answer] = {
    **dict.fromkeys(("q4", "q15", "q16", "q17", "q18", "q19"), "updated"),
    "q6": "changes",  # with _weight
}
WAITING = ("q4", "q5", "q6", "q7", "q8", "q9", "q11", "q12")


class Query(NamedTuple):
    name: str
    function: Callable[..., DataFrame]
    answer: Answer

    @property
    def tables(self) -> list[str]:
        """What it reads: person, auction, bid, side_input."""
        return list(inspect.signature(self.function).parameters)

    @property
    def clock(self) -> str:
        """The column that bears the watermark."""
        return "arrival" if self.name == "q12" else "dateTime"

    @property
    def output_mode(self) -> str:
        return "update" if self.answer == "updated" else "append"

    @property
    def waits(self) -> bool:
        """Whether it answers when the watermark has passed: its last rows need a last event."""
        return self.name in WAITING

    @property
    def plain(self) -> Query | None:
        """The query as plain Spark answers it, if it does."""
        return self._replace(function=NATIVE[self.name]) if self.name in NATIVE else None

    def ask(self, tables: Mapping[str, DataFrame]) -> DataFrame:
        return self.function(**{name: tables[name] for name in self.tables})

    def settle(
        self, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
    ) -> Counter[tuple[Any, ...]]:
        """The answer: what is left of the rows that a stream said, one after the other."""
        if self.answer == "appended":
            return Counter(rows)
        if self.answer == "updated":
            key = [columns.index(name) for name in KEY[self.name]]
            return Counter({tuple(row[it] for it in key): row for row in rows}.values())
        total: Counter[tuple[Any, ...]] = Counter()
        weight = columns.index("_weight")
        for row in rows:
            total[row[:weight] + row[weight + 1 :]] += row[weight]
        if any(count < 0 for count in total.values()):
            raise ValueError(f"{self.name} took a row away that it had not said")
        return +total


QUERIES = {
    name: Query(name, function, ANSWERS.get(name, "appended"))
    for name, function in sorted((NATIVE | LIBRARY).items(), key=lambda it: int(it[0][1:]))
}
