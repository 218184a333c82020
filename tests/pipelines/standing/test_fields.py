"""Names of columns and of fields of structs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.standing.fields import column_at, kinds_in, name_of, parts_of, value_at

INNER = pa.struct([("b", pa.int32()), ("c.d", pa.string())])
SCHEMA = pa.schema([("a", INNER), ("a.b", pa.string())])


@pytest.mark.parametrize("parts", [("a",), ("a", "b"), ("a.b",), ("a`", ".", "c d"), ("",)])
def test_name_has_its_parts(parts: tuple[str, ...]) -> None:
    assert parts_of(name_of(parts)) == parts


def test_columns_and_fields_have_different_names() -> None:
    expected = {"a": None, "a.b": "integer", "a.`c.d`": "text", "`a.b`": "text"}
    assert kinds_in(SCHEMA) == expected
    with pytest.raises(ConfigError, match="the same name"):
        kinds_in(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_field_is_null_where_its_struct_is() -> None:
    rows = [{"a": {"b": 1, "c.d": "x"}, "a.b": "y"}, {"a": None, "a.b": None}, {"a": {"b": None}}]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    assert column_at(batch, "a.b").to_pylist() == [1, None, None]
    assert column_at(batch.slice(1), "a.`c.d`").to_pylist() == [None, None]
    assert column_at(batch, "`a.b`").to_pylist() == ["y", None, None]
    found = [value_at(it, "a.b") for it in rows]
    assert found == [1, None, None]
