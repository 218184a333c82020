"""Columns of records as Arrow arrays, on the decoder's buffers as they are.

The only module of this package that imports pyarrow, which is in extras.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

from millstream.records.columns import BinaryBuffers, Columns

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
CONSTANT_ROOM_MIN = 1024
CONSTANTS_KEPT = 16


def binary_array(buffers: BinaryBuffers, count: int, kind: Any = None) -> pa.Array:
    """An array of binary values, or of `kind` if the caller knows that they are."""
    validity = None if buffers.validity is None else pa.py_buffer(buffers.validity)
    return pa.Array.from_buffers(
        kind or pa.binary(),
        count,
        [validity, pa.py_buffer(buffers.offsets), pa.py_buffer(buffers.data)],
        buffers.null_count,
    )


def number_array(kind: Any, memory: Any, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(memory)], 0)


def header_parts(columns: Columns, names_kind: Any = None) -> tuple[pa.Array, pa.Array]:
    """The names and the values of all headers, of all records one after the other."""
    headers = columns.headers
    assert headers is not None
    total = len(headers.names.offsets) // 4 - 1
    return binary_array(headers.names, total, names_kind), binary_array(headers.values, total)


def header_lists(columns: Columns, kind: Any, pairs: pa.Array) -> pa.Array:
    """Each record's list of `pairs`, which are those of all records one after the other."""
    assert columns.headers is not None
    lists = [None, pa.py_buffer(columns.headers.offsets)]
    return pa.Array.from_buffers(pa.list_(kind), columns.row_count, lists, 0, children=[pairs])


def header_array(columns: Columns) -> pa.Array:
    """Lists of (key, value); the names are taken for UTF-8."""
    names, values = header_parts(columns, pa.string())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    return header_lists(columns, HEADER_TYPE, pairs)


def constant_array(value: object, kind: Any, count: int) -> pa.Array:
    """`value`, so many times: the beginning of a longer array, which is kept."""
    room = max(CONSTANT_ROOM_MIN, 1 << (count - 1).bit_length())
    return _repeated(value, kind, room).slice(0, count)


@lru_cache(maxsize=CONSTANTS_KEPT)
def _repeated(value: object, kind: Any, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)
