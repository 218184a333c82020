"""From the writer's schema to the reader's: names, aliases, defaults, promotions, ids."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from millstream.client.schema_registry import RegistryError
from millstream.errors import ConfigError
from tests.peers.schema_registry import SchemaRegistry, running_registry
from tests.pipelines.reading.decoding.avro_values import avro, framed, record, text_of
from tests.pipelines.reading.decoding.values import columns_of, decode, decoder_for, schema_of

COLORS = ["RED", "GREEN"]


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "color", "symbols": list(symbols), **more}


def rows(writer: Any, reader: Any, schema: pa.Schema, value: Any) -> Any:
    """The row, or what is said instead."""
    decoded = decode(
        schema,
        avro(writer, value),
        value_format="avro",
        avroSchema=text_of(reader),
        avroWriterSchema=text_of(writer),
    )
    if decoded.failures:
        return f"{decoded.failures[0].reason}: {decoded.failures[0].message}"
    return decoded.batch.to_pylist()[0]


def test_fields_are_found_by_name_in_any_order() -> None:
    writer = record(a="int", b="string", c="double")
    schema = schema_of(c=pa.float64(), a=pa.int64(), d=pa.string())
    assert rows(writer, writer, schema, {"a": 1, "b": "x", "c": 0.5}) == {
        "c": 0.5,
        "a": 1,
        "d": None,
    }


def test_field_that_is_missing_is_a_failure_where_it_is_required() -> None:
    schema = schema_of(["b"], a=pa.int32(), b=pa.int32())
    found = rows(record(a="int"), record(a="int"), schema, {"a": 1})
    assert found == "missing field: field b is missing, and may not be null"


def test_aliases_of_the_reader_are_names_of_the_writer() -> None:
    reader = record(user={"type": "string", "aliases": ["name", "login"]})
    assert rows(record(login="string"), reader, schema_of(user=pa.string()), {"login": "ann"}) == {
        "user": "ann"
    }


def test_defaults_of_the_reader_stand_in() -> None:
    address = record("address", city="string", zip={"type": "string", "default": "?"})
    home = {"type": address, "default": {"city": "Bonn"}}
    reader = record(a="int", b={"type": ["null", "int"], "default": None}, home=home)
    kind = pa.struct([("city", pa.string()), ("zip", pa.string())])
    schema = schema_of(["home"], a=pa.int32(), b=pa.int32(), home=kind)
    assert rows(record(a="int"), reader, schema, {"a": 1}) == {
        "a": 1,
        "b": None,
        "home": {"city": "Bonn", "zip": "?"},
    }


def test_symbol_that_the_reader_lacks_is_its_default_or_a_failure() -> None:
    writer = record(v=enum(*COLORS, "BLUE"))
    schema = schema_of(v=pa.string())
    with_default = record(v=enum(*COLORS, default="RED"))
    assert rows(writer, with_default, schema, {"v": "BLUE"}) == {"v": "RED"}
    without = record(v=enum(*COLORS))
    assert rows(writer, without, schema, {"v": "GREEN"}) == {"v": "GREEN"}
    assert rows(writer, without, schema, {"v": "BLUE"}) == (
        "wrong type: field v is BLUE, a symbol that avroSchema does not have"
    )


@pytest.mark.parametrize(
    ("writer", "reader", "kind", "value", "expected"),
    [
        ("int", "long", pa.int64(), 5, 5),
        ("int", ["null", "long"], pa.int64(), 5, 5),
        (["null", "int"], "long", pa.int64(), 5, 5),
        ("float", "double", pa.float64(), 0.5, 0.5),
        ("string", "bytes", pa.binary(), "a", b"a"),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, pa.int64(), 5, 5),
    ],
)
def test_types_promote_by_avros_rules(
    writer: Any, reader: Any, kind: Any, value: Any, expected: Any
) -> None:
    found = rows(record(v=writer), record(v=reader), schema_of(v=kind), {"v": value})
    assert found == {"v": expected}


def test_logical_type_may_be_the_readers() -> None:
    reader = {"type": "long", "logicalType": "timestamp-millis"}
    schema = schema_of(v=pa.timestamp("us", tz="UTC"))
    found = rows(record(v="long"), record(v=reader), schema, {"v": 5})
    assert found["v"].microsecond == 5000


@pytest.mark.parametrize(
    ("writer", "reader", "kind"),
    [
        ("long", "int", pa.int64()),
        ("double", "float", pa.float64()),
        ("string", ["null", "int"], pa.string()),
        (
            {"type": "fixed", "name": "f", "size": 2},
            {"type": "fixed", "name": "f", "size": 3},
            pa.binary(),
        ),
    ],
)
def test_types_that_do_not_promote_are_refused(writer: Any, reader: Any, kind: Any) -> None:
    with pytest.raises(ConfigError, match="and avroSchema says"):
        decode(
            schema_of(v=kind),
            value_format="avro",
            avroSchema=text_of(record(v=reader)),
            avroWriterSchema=text_of(record(v=writer)),
        )


# By the id of the writer's schema


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as server:
        yield server


def test_many_schemas_in_one_topic_become_rows_of_one(registry: SchemaRegistry) -> None:
    versions = [
        (record(id="int"), lambda n: {"id": n}),
        (record(id="long", user="string"), lambda n: {"id": n, "user": f"u{n}"}),
        (record(user=["null", "string"], id="long"), lambda n: {"id": n, "user": None}),
    ]
    ids = [registry.add("orders-value", schema) for schema, _ in versions]
    schema = schema_of(id=pa.int64(), user=pa.string())
    decoder = decoder_for(schema, "avro", **{"schema.registry.url": registry.url})
    rng = random.Random(1)
    chosen = [rng.randrange(3) for _ in range(500)]
    values = [
        framed(ids[it], avro(versions[it][0], versions[it][1](n))) for n, it in enumerate(chosen)
    ]
    expected = [{"user": None} | versions[it][1](n) for n, it in enumerate(chosen)]
    for _ in range(2):
        decoded = decoder.decode(columns_of(values))
        assert decoded.failures == []
        assert decoded.batch.to_pylist() == [
            {"id": it["id"], "user": it["user"]} for it in expected
        ]
    assert sorted(registry.requests) == [f"GET /schemas/ids/{it}" for it in ids]


def test_values_without_a_schema_are_failures(registry: SchemaRegistry) -> None:
    good = registry.add("a-value", record(v="int"))
    other = registry.add("b-value", record(v="string"))
    broken = registry.add("c-value", "{")
    options = {"schema.registry.url": registry.url}
    values = [
        framed(good, b"\x02"),
        b"\x02",
        b"\x01" + framed(good, b"\x02")[1:],
        framed(77, b"\x02"),
        framed(other, b"\x02a"),
        framed(broken, b"\x02"),
        framed(good, b"\x02\x02"),
        framed(77, b"\x02"),
        None,
        framed(good, b"\x04"),
    ]
    decoded = decode(schema_of(v=pa.int32()), *values, value_format="avro", **options)
    assert decoded.batch.to_pylist() == [{"v": 1}, {"v": None}, {"v": 2}]
    told = {it.row: f"{it.reason}: {it.message}" for it in decoded.failures}
    assert list(told) == [1, 2, 3, 4, 5, 6, 7]
    assert told[1].startswith("malformed: it does not begin with a 0 and the id of a schema")
    assert told[2] == told[1]
    assert "unknown schema" in told[3]
    assert "has no schema 77" in told[3]
    assert told[4] == f"wrong type: by schema {other} of the registry, field v is string, not int"
    assert told[5].startswith(f"unknown schema: schema {broken} of the registry: ")
    assert told[6].startswith("malformed: more follows")
    assert registry.requests.count("GET /schemas/ids/77") == 1


def test_registry_that_is_away_is_no_failure_of_a_record(registry: SchemaRegistry) -> None:
    registry.broken_answers = [(503, b"")] * 100
    options = {
        "schema.registry.url": registry.url,
        "schema.registry.request.timeout.ms": "100",
    }
    with pytest.raises(RegistryError, match="did not answer about schema 1"):
        decode(schema_of(v=pa.int32()), framed(1, b"\x02"), value_format="avro", **options)
