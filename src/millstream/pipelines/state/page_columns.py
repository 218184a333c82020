"""The columns of a table as its pages store them: fewer bytes to pack, and to pass through Spark.

_hash               left out if it follows from a key of numbers or times: it is quickly
                    computed again, and hashes do not compress
integers, times     of 64 bits: the difference from the smallest one of the page, in as few
                    bytes as the largest needs; the field's metadata has the smallest one
                        (`millstream.base`) and the type (`millstream.type`)
others              as they are, and so are columns with nulls
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.pipelines.state.keys import HASH, key_hashes, with_hash
from millstream.pipelines.state.pages import check_same
from millstream.pipelines.state.tables import StateTableSpec

_BASE, _TYPE = b"millstream.base", b"millstream.type"


def to_page(spec: StateTableSpec, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a table for a page."""
    fields, columns = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name != HASH or not _hash_follows(spec, rows):
            narrow_field, narrow = _narrow(field, column)
            fields.append(narrow_field)
            columns.append(narrow)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def from_page(spec: StateTableSpec, page: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a page with the columns that its table has now; those that it had not are null,
    and what it no longer has is dropped."""
    columns = [_column(page, field) for field in spec.schema]
    if HASH not in page.schema.names:
        return with_hash(pa.RecordBatch.from_arrays(columns, schema=spec.schema), spec.keys)
    columns.insert(0, page.column(HASH))
    return pa.RecordBatch.from_arrays(columns, schema=spec.page_schema)


def _hash_follows(spec: StateTableSpec, rows: pa.RecordBatch) -> bool:
    """Whether the hash is that of the stored key: another table's key may have another type."""
    columns = [rows.column(name) for name in spec.keys]
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
    kind = metadata[_TYPE].decode() if _TYPE in metadata else str(stored.type)
    check_same(f"type of {field.name}", kind, str(field.type))
    if _BASE not in metadata:
        return column
    numbers = np.add(column.to_numpy(), int(metadata[_BASE]), dtype=np.int64)
    return pa.array(numbers).view(field.type)
