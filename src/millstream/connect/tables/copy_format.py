"""Arrow columns as the stream of PostgreSQL's `COPY ... (FORMAT BINARY)`, without a loop over rows.

    header    "PGCOPY\\n\\377\\r\\n\\0", int32 flags = 0, int32 length of extension = 0
    row       int16 number of fields, then for each: int32 length (-1: null), the value, big-endian
    trailer   int16 -1

A row is a sequence of pieces, each a column of bytes: fixed-width fields that lie beside each other
are one matrix, a string is its length and the value. Arrow then joins the pieces of every row. It
is ten times cheaper than formatting text here, and four times cheaper for the server to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connect.tables.rows import Rows, json_texts
from millstream.connect.tables.schema import Column, Layout

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_ROWS_PER_PIECE = 50_000
_EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01, where PostgreSQL counts from
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_FORMATS = {
    "boolean": ("boolean", "u1"),
    "byte": ("smallint", ">i2"),
    "short": ("smallint", ">i2"),
    "int": ("integer", ">i4"),
    "long": ("bigint", ">i8"),
    "float": ("real", ">f4"),
    "double": ("double precision", ">f8"),
    "date": ("date", ">i4"),
    "timestamp": ("timestamp with time zone", ">i8"),
    "timestamp_ntz": ("timestamp without time zone", ">i8"),
}


def staged_type(column: Column) -> str:
    """The type that a column travels as: decimals and JSON as text, cast when they are merged."""
    if column.kind == "binary":
        return "bytea"
    return _FORMATS[column.kind][0] if column.kind in _FORMATS else "text"


def copy_stream(rows: Rows, layout: Layout) -> Iterator[Any]:
    """What to send: the layout's columns and, if the table has a delete column, its marks."""
    yield _HEADER
    for start in range(0, rows.count, _ROWS_PER_PIECE):
        piece = rows.table.slice(start, _ROWS_PER_PIECE).combine_chunks()
        deleted = None if rows.deleted is None else rows.deleted[start : start + _ROWS_PER_PIECE]
        yield _encode(piece, deleted, layout)
    yield _TRAILER


def _encode(table: pa.Table, deleted: Any, layout: Layout) -> pa.Buffer:
    count = table.num_rows
    fields = len(layout.columns) + (deleted is not None)
    row = _RowPieces(count)
    row.add_matrix(np.full(count, fields, ">i2").view("u1").reshape(count, 2))
    for column in layout.columns:
        values = pa.concat_arrays(table.column(column.name).chunks)
        if column.kind in _FORMATS:
            _add_fixed(row, values, column)
        else:
            _add_variable(row, values, column)
    if deleted is not None:
        row.add_matrix(_prefixed(deleted.astype("u1")))
    return row.joined()


class _RowPieces:
    """The pieces of all rows; matrices that follow each other become one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._matrices: list[Any] = []
        self._pieces: list[pa.Array] = []

    def add_matrix(self, matrix: Any) -> None:
        """One row of bytes for each row."""
        self._matrices.append(matrix)

    def add_binary(self, values: pa.Array) -> None:
        """Bytes of any length; null is none."""
        self._close_matrix()
        self._pieces.append(values)

    def joined(self) -> pa.Buffer:
        self._close_matrix()
        nothing = pa.scalar(b"", pa.large_binary())
        rows = pc.binary_join_element_wise(
            *self._pieces, nothing, null_handling="replace", null_replacement=b""
        )
        return rows.buffers()[2]

    def _close_matrix(self) -> None:
        if self._matrices:
            self._pieces.append(binary_rows(np.concatenate(self._matrices, axis=1)))
            self._matrices = []


def binary_rows(matrix: Any, validity: pa.Buffer | None = None) -> pa.Array:
    """A matrix of bytes as an Arrow column of binaries."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)


def _add_fixed(row: _RowPieces, values: pa.Array, column: Column) -> None:
    present = None if not values.null_count else values.is_valid()
    numbers = _numbers(values, column).astype(_FORMATS[column.kind][1])
    if present is None:
        row.add_matrix(_prefixed(numbers))
        return
    width = numbers.itemsize
    row.add_matrix(_lengths(np.where(present.to_numpy(zero_copy_only=False), width, -1)))
    row.add_binary(binary_rows(_as_bytes(numbers), present.buffers()[1]))


def _numbers(values: pa.Array, column: Column) -> Any:
    if column.kind == "boolean":
        values = values.cast(pa.uint8())
    elif column.kind == "date":
        values = pc.subtract(values.cast(pa.int32()), pa.scalar(_EPOCH_DAYS, pa.int32()))
    elif column.kind in ("timestamp", "timestamp_ntz"):
        micros = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        values = pc.subtract(micros, pa.scalar(_EPOCH_US, pa.int64()))
    return values.fill_null(0).to_numpy() if values.null_count else values.to_numpy()


def _add_variable(row: _RowPieces, values: pa.Array, column: Column) -> None:
    if column.kind == "json":
        values = json_texts(values, column)
    elif column.kind == "decimal":
        values = values.cast(pa.string())
    lengths = pc.binary_length(values).fill_null(-1)
    row.add_matrix(_lengths(lengths.to_numpy()))
    kind = pa.large_string() if pa.types.is_string(values.type) else pa.large_binary()
    row.add_binary(values.cast(kind).view(pa.large_binary()))


def _lengths(lengths: Any) -> Any:
    return _as_bytes(lengths.astype(">i4"))


def _prefixed(numbers: Any) -> Any:
    """Every number with its length before it."""
    width = numbers.itemsize
    prefix = np.broadcast_to(np.frombuffer(width.to_bytes(4, "big"), "u1"), (len(numbers), 4))
    return np.concatenate([prefix, _as_bytes(numbers)], axis=1)


def _as_bytes(numbers: Any) -> Any:
    return np.ascontiguousarray(numbers).view("u1").reshape(len(numbers), numbers.itemsize)
