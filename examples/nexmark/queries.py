"""All 23 queries by name: what each reads, how its answer comes, and who can run it.

QUERIES["q5"].ask({"bid": bids})        the answer, as a DataFrame
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from examples.nexmark.library import LIBRARY
from examples.nexmark.native import NATIVE
from pyspark.sql import DataFrame

Answer = Literal["appended", "updated", "changes"]
ANSWERS: Mapping[str, Answer] = {
    **dict.fromkeys(("q4", "q15", "q16", "q17", "q18", "q19"), "updated"),
    "q6": "changes",  # with _weight
}


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
    def is_native(self) -> bool:
        """Whether plain Spark answers it."""
        return self.name in NATIVE

    def ask(self, tables: Mapping[str, DataFrame]) -> DataFrame:
        return self.function(**{name: tables[name] for name in self.tables})


QUERIES = {
    name: Query(name, function, ANSWERS.get(name, "appended"))
    for name, function in sorted((NATIVE | LIBRARY).items(), key=lambda it: int(it[0][1:]))
}
