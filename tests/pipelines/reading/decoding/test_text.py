"""Values as strings."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from tests.pipelines.reading.decoding.values import decode, decoder_for, schema_of

TEXT = schema_of(line=pa.string())


def test_text_is_read_as_it_is() -> None:
    decoded = decode(TEXT, "é😀\n".encode(), b"", None, b'{"a": 1}', value_format="text")
    assert decoded.batch.column(0).to_pylist() == ["é😀\n", "", None, '{"a": 1}']
    assert decoded.rows is None


def test_text_that_is_not_utf8_is_malformed() -> None:
    decoded = decode(TEXT, b"plain", b"long enough \xe9", b"more", value_format="text")
    assert decoded.batch.column(0).to_pylist() == ["plain", "more"]
    assert [(it.row, it.reason) for it in decoded.failures] == [(1, "malformed")]
    assert decoded.failures[0].message == "not UTF-8 at byte 12"


def test_text_without_a_value_is_missed_where_it_must_be_there() -> None:
    decoded = decode(schema_of(("line",), line=pa.string()), None, b"x", value_format="text")
    assert [it.reason for it in decoded.failures] == ["missing field"]


def test_schema_of_anything_but_one_string_is_refused() -> None:
    for schema in (schema_of(), schema_of(v=pa.int64()), schema_of(a=pa.string(), b=pa.string())):
        with pytest.raises(ConfigError, match="one column of type string for the value"):
            decoder_for(schema, "text")
