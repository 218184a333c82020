"""The answers to Nexmark's queries, by DuckDB, over all events at once.

Each query is a file in `sql/`, which says at its head what it asks and, where the benchmark leaves
a choice, which one is made here: how ties are broken, what a bound includes, what a clock is. With
these pinned an answer is one multiset of rows; rows of a stream that replace earlier ones are
compared by the last one of each `KEY`. Names of columns are those of the benchmark's sinks but for
the few that a head mentions; numbers are integers or exact decimals, times in UTC.

All windows and sessions are taken as closed: a stream that is to equal an answer has to be
told that nothing follows.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
from examples.nexmark.generator import TIME, Tables

_FILES = Path(__file__).parent / "sql"
QUERIES = tuple(f"q{number}" for number in range(23))

# By which columns a later row of a stream replaces an earlier one; in the others every row stays.
# (Rows of q6 are replaced by the auction, which its answer does not name.)
KEY = {
    "q4": ("category",),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}


def answer(query: str, tables: Tables) -> pa.Table:
    """The rows of a query, sorted by all columns."""
    with duckdb.connect(":memory:") as connection:
        for name, table in (*tables._asdict().items(), ("side_input", side_input())):
            connection.register(name, _cast_times(table, TIME, pa.timestamp("us")))
        found = connection.sql(f"SELECT * FROM ({sql_of(query)}) ORDER BY ALL")
        return _cast_times(found.to_arrow_table(), pa.timestamp("us"), TIME)


def sql_of(query: str) -> str:
    return (_FILES / f"{query}.sql").read_text(encoding="utf-8")


def side_input() -> pa.Table:
    """The table that q13 joins: keys 0 to 9999, each with itself as a text."""
    keys = pa.array(range(10_000), pa.int64())
    return pa.table({"key": keys, "value": keys.cast(pa.string())})


def _cast_times(table: pa.Table, old: pa.DataType, new: pa.DataType) -> pa.Table:
    """DuckDB reckons in UTC without being told so, if times name no zone."""
    fields = [field.with_type(new) if field.type == old else field for field in table.schema]
    return table.cast(pa.schema(fields))
