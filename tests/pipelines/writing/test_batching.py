"""Which columns make records, and what is said of those that do not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.writing.batching import Layout
from millstream.pipelines.writing.options import parse_write_options

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "topic": "out"}


def layout(schema: pa.Schema, **options: str) -> Layout:
    return Layout(parse_write_options(LEAST | options, streaming=False), schema)


def test_layout_of_raw_rows_is_the_connectors() -> None:
    found = layout(pa.schema({"key": pa.binary(), "value": pa.string(), "offset": pa.int64()}))
    assert found.columns == {"key": "key"}
    assert found.value_columns == ["value"]


def test_layout_of_json_takes_all_columns_but_the_readers_own() -> None:
    schema = pa.schema({"id": pa.int64(), "key": pa.string(), "_key": pa.binary()})
    found = layout(schema, valueFormat="json")
    assert found.columns == {"key": "_key"}
    assert found.value_columns == ["id", "key"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"id": pa.int64()}),
        pa.schema({"value": pa.int64()}),
        pa.schema({"value": pa.binary(), "price": pa.float64()}),
        pa.schema({"value": pa.binary(), "partition": pa.string()}),
    ],
)
def test_layout_refuses_columns_that_make_no_records(schema: pa.Schema) -> None:
    with pytest.raises(ConfigError):
        layout(schema)
