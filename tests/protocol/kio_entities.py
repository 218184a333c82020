"""Hypothesis strategies for kio's classes, made from their fields."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from tests.peers.wire import nested_class

_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
    "uuid": st.uuids(),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(lambda it: timedelta(milliseconds=it)),
    "timedelta_i64": st.integers(0, 2**40).map(lambda it: timedelta(milliseconds=it)),
}


def entities(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any entity of the class."""
    hints = get_type_hints(cls)
    fields = {field.name: _values(field, hints[field.name]) for field in dataclasses.fields(cls)}
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


def _values(field: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    nested, is_array = nested_class(hint)
    kind = field.metadata.get("kafka_type")
    values = entities(nested) if nested is not None else _KINDS[str(kind)]
    if is_array:
        values = st.lists(values, max_size=2).map(tuple)
    # A tagged field that is null is left out, so it comes back as its default.
    if type(None) in get_args(hint) and "tag" not in field.metadata:
        values = st.none() | values
    return values
