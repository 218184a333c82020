"""The columns of rows as they are stored, and as they pass through Spark: in fewer bytes.

    _hash               left out if it follows from a key of numbers or times
    integers, times     of 64 bits, without nulls: the difference from the smallest one, in as few
                        bytes as the largest needs
    others              as they are

A hash is quickly computed again, and does not compress. Of differences, the metadata of the field
has the smallest value (`millstream.base`) and the type (`millstream.type`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, HASH_FIELD, key_hashes, with_hash
from millstream.pipelines.state.pages import check_same

_BASE, _TYPE = b"millstream.base", b"millstream.type"


def to_page(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Rows with the hash of their key, for a page."""
    return narrowed(rows.drop_columns([HASH]) if _hash_follows(rows, keys) else rows)


def from_page(page: pa.RecordBatch, schema: pa.Schema, keys: Sequence[str]) -> pa.RecordBatch:
    """The rows of a page with their hash, and with the columns that its table has now: those that
    it had not are null, and what it no longer has is dropped."""
    if HASH in page.schema.names:
        return widened(page, pa.schema([HASH_FIELD, *schema]))
    return with_hash(widened(page, schema), keys)


def narrowed(rows: pa.RecordBatch) -> pa.RecordBatch:
    pairs = [_narrow(*it) for it in zip(rows.schema, rows.columns, strict=True)]
    schema = pa.schema([field for field, _ in pairs])
    return pa.RecordBatch.from_arrays([column for _, column in pairs], schema=schema)


def widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(rows, it) for it in schema], schema=schema)


def _hash_follows(rows: pa.RecordBatch, keys: Sequence[str]) -> bool:
    """Whether the hash is that of the stored key: another table's key may have another type."""
    columns = [rows.column(name) for name in keys]
    is_quick = all(pa.types.is_primitive(column.type) for column in columns)
    return is_quick and np.array_equal(key_hashes(columns, rows.num_rows), rows.column(HASH))


def _narrow(field: pa.Field, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    is_long = pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
    if not is_long or column.null_count or not len(column):
        return field, column
    numbers = column.view(pa.int64()).to_numpy()
    base = int(numbers.min())
    width = np.min_scalar_type(int(numbers.max()) - base)
    if width.itemsize == numbers.itemsize:
        return field, column
    differences = np.empty(len(numbers), width)
    np.subtract(numbers, base, out=differences, casting="unsafe")
    narrow = pa.array(differences)
    metadata = {_BASE: str(base), _TYPE: str(field.type)}
    return pa.field(field.name, narrow.type, metadata=metadata), narrow


def _column(page: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = page.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(page.num_rows, field.type)
    stored, column = page.schema.field(place), page.column(place)
    metadata = stored.metadata or {}
    what = f"type of {field.name}"
    if _BASE not in metadata:
        if stored.type != field.type:
            check_same(what, str(stored.type), str(field.type))
        return column
    check_same(what, metadata[_TYPE].decode(), str(field.type))
    numbers = np.add(column.to_numpy(), int(metadata[_BASE]), dtype=np.int64)
    return pa.array(numbers).view(field.type)
