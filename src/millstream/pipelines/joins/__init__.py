"""Joins of streams and tables. Each module opens with what its join does to which rows.

    from millstream.pipelines import joins

    as_of.py         the version that was valid at the time of the event
    table_table.py   two tables that change, joined as a table that changes
    stream_table.py  a stream, enriched from a table as it is now
    interval.py      two streams whose events lie near each other in time (Spark's own join)
    lookup.py        a stream, enriched from a system outside
    changes.py       a table's change log as rows with weights, which joins of tables take

    matching.py      which rows have the same key, and which of them is the newest
    asking.py        a system outside, asked in batches and with patience
    weights.py       rows with weights: tables and their changes
    frames.py        what these joins check of DataFrames before anything runs

Operators are pure and know no Spark; only the functions that take DataFrames do. Use what this
package exports; its modules are private.
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
