"""The columns of JSON values, from a sample of them. Pure.

A field whose values have one type in the whole sample becomes a column. Fields of several types,
except whole and other numbers, are left out: they can be read from `_value`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from millstream.query.columns import RECORD_COLUMNS

DEPTH_MAX = 8
COLUMNS_MAX = 500
_INT64 = range(-(2**63), 2**63)


def infer_columns(values: Iterable[bytes | None]) -> pa.Schema:
    """The columns of these values; none unless most of them are JSON objects."""
    objects: list[dict[str, Any]] = []
    others = 0
    for value in values:
        if value is None:
            continue
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict):
            objects.append(decoded)
        else:
            others += 1
    if len(objects) <= others:
        return pa.schema([])
    return pa.schema(_fields(objects, 0, RECORD_COLUMNS))


def _fields(objects: Sequence[dict[str, Any]], depth: int, taken: Iterable[str]) -> list[Any]:
    by_name: dict[str, list[Any]] = {}
    for it in objects:
        for name, value in it.items():
            by_name.setdefault(name, []).append(value)
    fields = []
    used = {name.lower() for name in taken}
    for name, found in by_name.items():
        kind = _type(found, depth)
        if kind is None or name.lower() in used or not name:
            continue  # SQL compares names without case
        used.add(name.lower())
        fields.append(pa.field(name, kind))
    return fields[:COLUMNS_MAX]


def _type(values: Sequence[Any], depth: int) -> Any:
    """The type of all values; None if there is none."""
    there = [it for it in values if it is not None]
    kinds = {type(it) for it in there}
    if not kinds:
        return pa.string()
    if kinds <= {int, float}:
        is_whole = kinds == {int} and all(it in _INT64 for it in there)
        return pa.int64() if is_whole else pa.float64()
    if len(kinds) > 1:
        return None
    (kind,) = kinds
    if kind is bool:
        return pa.bool_()
    if kind is str:
        return pa.string()
    if depth >= DEPTH_MAX:
        return None
    if kind is list:
        inner = _type([it for each in there for it in each], depth + 1)
        return None if inner is None else pa.list_(inner)
    fields = _fields(there, depth + 1, ())
    return pa.struct(fields) if fields else None
