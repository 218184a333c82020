"""State in Python, stored by bucket of keys: the engine under all operators that Spark lacks.

Keys are hashed to buckets. The state of a bucket is a few tables, each in pages of columns near
1 MB. A batch reads the pages that it needs, works on whole columns, and writes the pages that
changed. Its cost grows with rows, not with keys.

    keys.py          the hash of a key, and which rows have the same key
    pages.py         a page as bytes: the format
    tables.py        rows in pages: append, select, take, expire; merging and splitting
    keyed_tables.py  tables that are looked up by key, and may be larger than memory
    stored_columns.py  the columns of a table as its pages have them
    bucket.py        a bucket: its tables, its timer, its index as bytes
    operator.py      the base class of operators
    trial.py         runs an operator without Spark, through bytes at every step: for tests
    seven_bits.py    the encoding of bytes in Spark's state store
    spark.py         runs it on Spark, as a stream or a batch

Only `spark.py` imports Spark. See docs/formats/state.md and docs/decisions/0013-bucketed-state.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.pipelines.state.bucket import END_OF_TIME, NO_WATERMARK, BucketState, InputSpec
from millstream.pipelines.state.keys import HASH, key_codes
from millstream.pipelines.state.operator import Operator
from millstream.pipelines.state.tables import StateTableSpec, Table
from millstream.pipelines.state.trial import Trial

if TYPE_CHECKING:
    from millstream.pipelines.state.spark import arrow_schema, run_operator

__all__ = [
    "END_OF_TIME",
    "HASH",
    "NO_WATERMARK",
    "BucketState",
    "InputSpec",
    "Operator",
    "StateTableSpec",
    "Table",
    "Trial",
    "arrow_schema",
    "key_codes",
    "run_operator",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): operators, and their tests, must not wait for Spark."""
    if name in ("arrow_schema", "run_operator"):
        from millstream.pipelines.state import spark

        return getattr(spark, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
