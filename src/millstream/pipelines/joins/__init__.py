"""Joins of streams and tables. Each module starts with what its join does to which rows.

    from millstream.pipelines import joins

    as_of.py         the version that was valid at the time of the event
    table_table.py   two changing tables, joined as a changing table
    stream_table.py  a stream, enriched from the current rows of a table
    interval.py      two streams whose events are close in time (Spark's own join)
    lookup.py        a stream, enriched from an external system
    changes.py       a table's changelog as rows with weights, the input of joins of tables

    matching.py      which rows have the same key, and which of them is the newest
    external.py      batched calls of an external system, with a cache and retries
    weights.py       rows with weights: tables and their changes
    frames.py        the arguments of joins, checked

Operators are pure and do not import Spark; only the functions that take DataFrames do. Use what
this package exports; its modules are private.
"""

from millstream.pipelines.joins.as_of import as_of_join
from millstream.pipelines.joins.changes import changes
from millstream.pipelines.joins.interval import interval_join, late_rows
from millstream.pipelines.joins.lookup import lookup, split_failed
from millstream.pipelines.joins.stream_table import enrich
from millstream.pipelines.joins.table_table import table_join

__all__ = [
    "as_of_join",
    "changes",
    "enrich",
    "interval_join",
    "late_rows",
    "lookup",
    "split_failed",
    "table_join",
]
