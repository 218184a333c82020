"""The Avro schema of a DataFrame."""

from __future__ import annotations

import json

import fastavro
import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.writing.encoding.avro_schema import derive_schema


def test_columns_that_may_be_null_have_null_as_default() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
    assert json.loads(derive_schema(schema))["fields"] == [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
    ]


def test_records_within_records_have_names_of_their_own() -> None:
    point = pa.struct([("x", pa.int32())])
    inner = pa.struct([("a", point), ("b", pa.list_(point)), ("c", pa.map_(pa.string(), point))])
    schema = json.loads(derive_schema(pa.schema([("a", inner), ("b", inner)])))
    fastavro.parse_schema(schema)  # which refuses two of a name


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (pa.schema([("my column", pa.int32())]), "rename it"),
        (pa.schema([("v", pa.month_day_nano_interval())]), "cast it"),
    ],
)
def test_column_that_avro_has_nothing_for_is_refused(schema: pa.Schema, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        derive_schema(schema)
