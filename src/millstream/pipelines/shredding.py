"""Encrypts and decrypts a column of a pipeline with subjects' keys: see `millstream.shredding`.

    orders = decrypt_column(orders, topic="orders", keys="/secure/keys")

Both work on streams and on tables. The store of keys must be reachable from every executor. Readers
and writers of `format("millstream")` do the same by options: see `reading/shredded.py` and
`writing/options.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.shredding.opening import open_keys
from millstream.shredding.shredder import Forgotten, Shredder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@lru_cache(maxsize=8)
def shredder_of(keys: str) -> Shredder:
    """One per Python worker, so that it keeps its keys for a while."""
    return Shredder(open_keys(keys))


def encrypt_column(
    rows: DataFrame, *, subject: str, topic: str, keys: str, column: str = "value"
) -> DataFrame:
    """The rows with a binary column encrypted with the keys of the subjects that another column
    names, as `topic` will have it. Rows without a subject stay as they are."""

    def change(batch: pa.RecordBatch) -> list[bytes | None]:
        shredder = shredder_of(keys)
        return [
            value
            if value is None or name is None
            else shredder.encrypt(value, subject=str(name), topic=topic)
            for value, name in zip(
                batch.column(column).to_pylist(), batch.column(subject).to_pylist(), strict=True
            )
        ]

    return _changed(rows, column, change)


def decrypt_column(rows: DataFrame, *, topic: str, keys: str, column: str = "value") -> DataFrame:
    """The rows with a binary column as it was before; null where the subject was forgotten."""

    def change(batch: pa.RecordBatch) -> list[bytes | None]:
        shredder = shredder_of(keys)
        values = batch.column(column).to_pylist()
        return [None if it is None else _decrypt(shredder, it, topic) for it in values]

    return _changed(rows, column, change)


def _decrypt(shredder: Shredder, value: bytes, topic: str) -> bytes | None:
    try:
        return shredder.decrypt(value, topic=topic)
    except Forgotten:
        return None


def _changed(rows: DataFrame, column: str, change: Callable[[Any], list[Any]]) -> DataFrame:
    if column not in rows.columns:
        raise ValueError(f"there is no column {column!r}; there are {', '.join(rows.columns)}")

    shown = show_watermark(rows)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            position = batch.schema.get_field_index(column)
            values = pa.array(change(batch), batch.schema.field(position).type)
            yield batch.set_column(position, batch.schema.field(position), values)

    return hide_again(shown.mapInArrow(run, shown.schema), rows)
