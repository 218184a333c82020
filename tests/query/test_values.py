"""The columns of values: where they come from, and what does not fit them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from millstream.query.fetching import QueryFailed, RangeReader
from millstream.query.values import (
    ValueColumns,
    ValueDecoder,
    given_columns,
    registry_columns,
    sampled_columns,
)
from millstream.records.columns import Columns, decode_columns
from millstream.records.record import Record, encode_batch
from millstream.testing.pytest_plugin import SharedBroker
from tests.query.scene import Sent, all_ranges, make_topic, source_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def columns_of(*values: bytes | None) -> Columns:
    return decode_columns(encode_batch([Record(it, 0, None, v) for it, v in enumerate(values)]))


def decode(decoder: ValueDecoder, columns: Columns, wanted: set[int] | None = None) -> object:
    arrays = decoder.decode("orders", 3, columns, lambda: wanted)
    return {name: array.to_pylist() for name, array in arrays.items()}


def test_only_needed_columns_are_decoded() -> None:
    columns = columns_of(b'{"id": 1, "name": "a"}', None, b'{"id": 2, "name": 5}')
    decoder = ValueDecoder(ValueColumns(SCHEMA), frozenset(["id", "_offset"]), skips_failures=False)
    assert decode(decoder, columns) == {"id": [1, None, 2]}


def test_a_record_that_does_not_fit_fails_the_query_unless_it_is_not_wanted() -> None:
    columns = columns_of(b'{"id": 1}', b"bad", b'{"id": 2}')
    decoder = ValueDecoder(ValueColumns(SCHEMA), frozenset(["id"]), skips_failures=False)
    with pytest.raises(QueryFailed, match=r"orders\[3\]@1 does not fit the schema: malformed"):
        decode(decoder, columns)
    assert decode(decoder, columns, wanted={0, 2}) == {"id": [1, None, 2]}
    with pytest.raises(QueryFailed, match="name the column _error"):
        decode(decoder, columns, wanted={1})


def test_errors_are_a_column_if_it_is_named() -> None:
    columns = columns_of(b'{"id": 1}', b'{"id": "x"}')
    named = frozenset(["id", "_error"])
    decoder = ValueDecoder(ValueColumns(SCHEMA), named, skips_failures=False)
    assert decode(decoder, columns) == {
        "id": [1, None],
        "_error": [None, "wrong type: field id is a string, not long"],
    }
    alone = ValueDecoder(ValueColumns(SCHEMA), frozenset(["_error"]), skips_failures=False)
    found = decode(alone, columns)
    assert isinstance(found, dict)
    assert found["_error"][1].startswith("wrong type")
    without = ValueDecoder(ValueColumns(), frozenset(["_error"]), skips_failures=False)
    assert decode(without, columns) == {"_error": [None, None]}


def test_searches_skip_what_does_not_fit() -> None:
    decoder = ValueDecoder(ValueColumns(SCHEMA), frozenset(["id"]), skips_failures=True)
    assert decode(decoder, columns_of(b"bad", b'{"id": 7}')) == {"id": [None, 7]}


def test_given_columns_are_checked(tmp_path: Path) -> None:
    assert given_columns("id bigint, name string").schema == SCHEMA
    with pytest.raises(ConfigError, match="every topic has a column of that name"):
        given_columns("_offset bigint")
    with pytest.raises(ConfigError, match="cannot be read from JSON"):
        given_columns("at time")
    with pytest.raises(ConfigError, match="cannot read the schema"):
        given_columns(str(tmp_path / "missing.avsc"))


def test_an_avro_schema_gives_columns(tmp_path: Path) -> None:
    import fastavro

    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    columns = given_columns(str(path))
    assert columns.schema == SCHEMA
    encoded = tmp_path / "value"
    with encoded.open("wb") as stream:
        fastavro.schemaless_writer(stream, schema, {"id": 5, "name": "x"})
    decoder = ValueDecoder(columns, frozenset(["id", "name"]), skips_failures=False)
    assert decode(decoder, columns_of(encoded.read_bytes())) == {"id": [5], "name": ["x"]}


def test_sampled_columns_come_from_the_newest_records(millstream: SharedBroker) -> None:
    records = [Sent(b'{"old": 1}') for _ in range(1100)] + [Sent(b'{"new": 1}')] * 1000
    topic = make_topic(millstream, records)
    with Cluster(millstream.bootstrap_servers) as cluster:
        reader = RangeReader(cluster, source_of(cluster, topic))
        found = sampled_columns(reader, all_ranges(cluster, topic))
    assert found.schema.names == ["new"]
    assert found.is_sampled


def test_without_a_registry_there_are_no_registered_columns() -> None:
    assert registry_columns("orders", {"bootstrap.servers": "x:1"}) is None
