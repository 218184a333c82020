"""State in Python, kept per bucket of keys: the engine under all operators that Spark lacks.

Keys are hashed to buckets. A bucket's state is a few tables, each in pages of columns near 1 MB; a
batch reads the pages it needs, works on whole columns, and writes the pages that changed. What it
costs grows with rows, not with keys.

    keys.py      the hash of a key, and which rows have the same one
    pages.py     a page as bytes: the format
    tables.py    rows in pages: append, select, take, expire; merging and splitting
    runs.py      tables that are looked up by key, and may be larger than memory
    bucket.py    a bucket: its tables, its timer, its index as bytes
    operator.py  what an author of an operator writes: a pure class
    trial.py     runs an operator without Spark, through bytes at every step: for tests
    seven_bits.py    bytes as they lie in Spark's state store
    spark.py     runs it on Spark, as a stream or a batch

Only `spark.py` knows Spark. See docs/formats/state.md and docs/decisions/0013-bucketed-state.md.
"""

from millstream.pipelines.state.bucket import END_OF_TIME, NO_WATERMARK, BucketState, InputSpec
from millstream.pipelines.state.operator import Operator
from millstream.pipelines.state.tables import Table, TableSpec

__all__ = [
    "END_OF_TIME",
    "NO_WATERMARK",
    "BucketState",
    "InputSpec",
    "Operator",
    "Table",
    "TableSpec",
]
