"""Tables that only grow, made small again now and then.

A change is a row that is appended, beside what it replaces: a batch writes no more than what is new
in it. What has been replaced goes when the table has twice the rows that it had after it was
last tidied. So a row is rewritten once or twice in its life, and a table is at most twice its size.

How many rows were left is state, too: a table of one row beside the table. Nothing may depend on
whether a table has been tidied yet, except its size.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from millstream.pipelines.state import BucketState, TableSpec
from millstream.pipelines.state.keys import with_hash

TIDY_ROWS_MIN = 4096
_LEFT_OVER = "rows"
_SCHEMA = pa.schema([(_LEFT_OVER, pa.int64())])


def tidied_tables(name: str, spec: TableSpec) -> dict[str, TableSpec]:
    """The table, and the one that remembers how large it was."""
    return {name: spec, _note_of(name): TableSpec(_SCHEMA, (_LEFT_OVER,), None)}


def tidy(
    state: BucketState,
    name: str,
    reduce: Callable[[pa.RecordBatch], pa.RecordBatch],
    rows_min: int = TIDY_ROWS_MIN,
) -> None:
    """Replace all rows of a table by what `reduce` leaves of them, if it has doubled."""
    table, note = state[name], state[_note_of(name)]
    noted = note.select()
    left_over = noted.column(_LEFT_OVER)[0].as_py() if noted.num_rows else 0
    if table.row_count < max(rows_min, 2 * left_over):
        return
    rows = reduce(table.take(table.select()))
    table.append(rows)
    note.take(noted)
    if rows.num_rows:
        new = pa.RecordBatch.from_pydict({_LEFT_OVER: [rows.num_rows]}, schema=_SCHEMA)
        note.append(with_hash(new, (_LEFT_OVER,)))


def _note_of(name: str) -> str:
    return f"{name}_tidied"
