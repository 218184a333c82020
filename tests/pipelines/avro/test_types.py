"""The columns of an Avro schema as Spark declares them, and the Avro schema of a DataFrame."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from millstream.client.schema_registry import RegistrySettings
from millstream.errors import ConfigError
from millstream.pipelines.avro.options import AvroOptions
from millstream.pipelines.avro.types import columns_of, derive_schema
from tests.peers.schema_registry import running_registry
from tests.pipelines.reading.decoding.avro_values import logical, record, text_of


def columns(schema: Any) -> str:
    return columns_of(AvroOptions(schema=text_of(schema)), "orders")


@pytest.mark.parametrize(
    ("avro_type", "expected"),
    [
        ("long", "bigint"),
        ("bytes", "binary"),
        (["null", "string"], "string"),
        (["int", "long"], "bigint"),
        (["null", "float", "double"], "double"),
        (["null", "int", "string"], "struct<member0: int, member1: string>"),
        (logical("int", "date"), "date"),
        (logical("int", "time-millis"), "int"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (logical("bytes", "decimal", precision=10, scale=2), "decimal(10,2)"),
        (logical("bytes", "decimal", precision=40, scale=2), "binary"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": "int"}, "map<string, int>"),
        (record("inner", x="int", y="string"), "struct<`x`: int, `y`: string>"),
    ],
)
def test_types_are_sparks(avro_type: Any, expected: str) -> None:
    assert columns(record(v=avro_type)) == f"`v` {expected}"


def test_value_that_is_no_record_is_one_column() -> None:
    assert columns("string") == "value string"


def test_columns_may_be_those_of_the_registry() -> None:
    with running_registry() as server:
        server.add("orders-value", record(id="long", user="string"))
        options = AvroOptions(registry=RegistrySettings((server.url,)))
        assert columns_of(options, "orders") == "`id` bigint, `user` string"
        with pytest.raises(ConfigError, match="needs columns"):
            columns_of(options, "orders,returns")


def test_record_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(ConfigError, match="contains itself"):
        columns(record("tree", next=["null", "tree"]))


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
