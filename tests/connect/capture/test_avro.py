"""Avro values: fastavro reads back what JSON has for the same rows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from millstream.client.schema_registry import RegistrySettings
from millstream.connect.capture.avro import key_schema, value_schema
from millstream.connect.capture.encoding import (
    ChangeBuffer,
    StreamContext,
    table_encoder,
    value_types,
)
from millstream.connect.capture.envelope import EnvelopeSettings
from millstream.connect.capture.tables import CaptureError, Column, Table
from millstream.connect.capture.types import Kind, TypeCatalogue, ValueType
from millstream.errors import ConfigError
from tests.connect.capture.source import Change, Source, taken
from tests.connect.capture.test_encoder import ARRAYS, VALUES, declare_types
from tests.peers.schema_registry import SchemaRegistry, running_registry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as running:
        yield running


@pytest.fixture
def in_avro(source: Source, registry: SchemaRegistry) -> Source:
    source.settings = replace(
        source.settings, format="avro", registry=RegistrySettings((registry.url,))
    )
    return source


def decoded(registry: SchemaRegistry, content: bytes | None) -> Any:
    """A value in Confluent's wire format."""
    if content is None:
        return None
    assert content[0] == 0
    schema = fastavro.parse_schema(
        json.loads(registry.schemas[int.from_bytes(content[1:5], "big")]["schema"])
    )
    stream = io.BytesIO(content[5:])
    value = fastavro.schemaless_reader(stream, schema, None)
    assert not stream.read()
    return value


def as_json(value: Any) -> Any:
    """A decoded value in the form that JSON has for it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: as_json(it) for name, it in value.items()}
    if isinstance(value, list):
        return [as_json(it) for it in value]
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    return value


# Where a number of JSON cannot be what Avro has: the value in Avro.
OTHER = {
    ("date", "'infinity'"): 2**31 - 1,
    ("date", "'-infinity'"): -(2**31),
    ("timestamp", "'infinity'"): 2**63 - 1,
    ("timestamp", "'294276-12-31 23:59:59.999999'"): 2**63 - 2,
    ("float4", "0.1"): pytest.approx(0.1, rel=1e-6),
    ("float4", "1e30"): pytest.approx(1e30, rel=1e-6),
    ("int4[]", "'{{1,2},{3,4}}'"): "[[1,2],[3,4]]",
    ("int4[]", "'[-1:0][2:3]={{1,2},{3,4}}'"): "[[1,2],[3,4]]",
    ("date[]", "'{2026-01-02,infinity}'"): [20455, 2**31 - 1],
}


@pytest.mark.parametrize("values", [VALUES, ARRAYS], ids=["scalars", "arrays"])
def test_values_of_all_types_are_read_back(
    in_avro: Source, registry: SchemaRegistry, values: dict[str, list[tuple[str, Any]]]
) -> None:
    declare_types(in_avro)
    columns = [
        (f"c{number}_{at}", kind, *given)
        for number, (kind, examples) in enumerate(values.items())
        for at, given in enumerate(examples)
    ]
    declared = ", ".join(f"{name} {kind}" for name, kind, _, _ in columns)
    in_avro.execute(f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    given = ", ".join(f"({sql})::{kind}" for _, kind, sql, _ in columns)
    in_avro.execute(f"INSERT INTO t VALUES (1, {given})")
    (streamed,) = in_avro.changes()
    expected = {"id": 1} | {
        name: OTHER.get((kind, sql), value) for name, kind, sql, value in columns
    }
    assert as_json(decoded(registry, streamed.value)["after"]) == expected
    assert decoded(registry, streamed.key) == {"id": 1}
    (copied,) = in_avro.copy(in_avro.tables["t"])
    assert as_json(decoded(registry, copied.value)["after"]) == expected
    assert copied.key == streamed.key


def in_both_formats(source: Source, registry: SchemaRegistry) -> tuple[list[Any], list[Any]]:
    """All events so far in JSON and in Avro."""
    messages = source.messages()
    from_avro = source.encode(messages)
    source.settings = replace(source.settings, format="json", registry=None)
    source.context = StreamContext()
    from_json = source.encode(messages)

    def shown(change: Change, read: Any) -> Any:
        return read(change.key), read(change.value), change.headers, change.timestamp_ms

    def read_json(content: bytes | None) -> Any:
        return None if content is None else json.loads(content)

    return (
        [shown(it, read_json) for it in from_json],
        [shown(it, lambda content: decoded(registry, content)) for it in from_avro],
    )


@pytest.mark.parametrize("shape", ["debezium", "flat"])
@pytest.mark.parametrize("with_transactions", [False, True])
def test_events_are_those_of_json(
    in_avro: Source, registry: SchemaRegistry, shape: Any, with_transactions: bool
) -> None:
    in_avro.settings = replace(
        in_avro.settings, shape=shape, transaction_metadata=with_transactions
    )
    run = in_avro.execute
    run('CREATE TABLE t (id int, part text, "a name" text, PRIMARY KEY (id, part))')
    run("CREATE TABLE u (a int)")
    run("ALTER TABLE u REPLICA IDENTITY FULL")
    run("INSERT INTO t VALUES (1, 'p', 'x'), (2, 'q', NULL)")
    run("UPDATE t SET \"a name\" = 'é'")
    run("UPDATE t SET id = id + 10")
    run("INSERT INTO u VALUES (1), (2)")
    run("UPDATE u SET a = 3")
    run("DELETE FROM t")
    from_json, from_avro = in_both_formats(in_avro, registry)
    assert len(from_json) == 18
    assert json.dumps(from_avro, default=str).replace("a_name", "a name") == json.dumps(
        from_json, default=str
    )


def test_unchanged_toast_has_a_placeholder(in_avro: Source, registry: SchemaRegistry) -> None:
    in_avro.execute("CREATE EXTENSION hstore")
    in_avro.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, a text, b bytea, c int[], d text[], h hstore)"
    )
    for column in "abcdh":
        in_avro.execute(f"ALTER TABLE t ALTER {column} SET STORAGE EXTERNAL")
    in_avro.execute(
        "INSERT INTO t SELECT 1, 1, repeat('x', 9000), decode(repeat('ab', 9000), 'hex'), "
        "array_agg(i), ARRAY[repeat('x', 9000)], hstore('k', repeat('x', 9000)) "
        "FROM generate_series(1, 5000) i"
    )
    in_avro.execute("UPDATE t SET n = 2")
    inserted, updated = in_avro.changes()
    assert inserted.value is not None
    assert updated.value is not None
    assert inserted.value[:5] == updated.value[:5]
    text = "__debezium_unavailable_value"
    assert decoded(registry, updated.value)["after"] == {
        "id": 1,
        "n": 2,
        "a": text,
        "b": text.encode(),
        "c": list(text.encode()),
        "d": [text],
        "h": f'{{"{text}":"{text}"}}',
    }


def test_precise_decimals_are_avros(in_avro: Source, registry: SchemaRegistry) -> None:
    in_avro.settings = replace(in_avro.settings, decimals="precise", hstores="map")
    in_avro.execute("CREATE EXTENSION hstore")
    in_avro.execute("CREATE TABLE t (a numeric(10,2), b numeric, c numeric, d hstore, e hstore)")
    in_avro.execute(
        "INSERT INTO t VALUES (-12.5, 12.500, 'NaN', 'a=>1,b=>NULL', ''), "
        "(0, -1e20, 0.001, NULL, NULL)"
    )
    first, second = (decoded(registry, it.value)["after"] for it in in_avro.changes())
    assert first["a"] == Decimal("-12.50")
    assert first["b"] == {"scale": 3, "value": (12500).to_bytes(2, "big")}
    assert first["c"] == "NaN"
    assert (first["d"], first["e"]) == ({"a": "1", "b": None}, {})
    assert second["a"] == Decimal("0.00")
    assert int.from_bytes(second["b"]["value"], "big", signed=True) == -(10**20)
    assert second["c"] == {"scale": 3, "value": b"\1"}


def test_what_the_narrow_schema_cannot_hold_is_written_by_a_wide_one(
    in_avro: Source, registry: SchemaRegistry
) -> None:
    in_avro.settings = replace(in_avro.settings, decimals="precise")
    in_avro.execute("CREATE TABLE t (id numeric(4,0) PRIMARY KEY, n numeric, l int[], f float8[])")
    in_avro.execute(
        "INSERT INTO t VALUES (1, 1.5, '{1}'), (2, 'NaN', '{2}'), (3, 3, '{{3}}'), "
        "('NaN', 4, '{4}')"
    )
    in_avro.execute("ALTER TABLE t ALTER f SET STORAGE EXTERNAL")
    in_avro.execute("UPDATE t SET f = array_fill(0.1::float8, ARRAY[2000]) WHERE id = 1")
    in_avro.execute("UPDATE t SET n = 5 WHERE id = 1")
    streamed = in_avro.changes()
    copied = in_avro.copy(in_avro.tables["t"])

    def schemas(changes: list[Change], content: Any) -> list[int]:
        return [int.from_bytes(content(it)[1:5], "big") for it in changes]

    narrow, wide = (
        [registry.subjects[f"shop.public.t-{side}{it}"] for side in ("key", "value")]
        for it in ("", "-text")
    )
    assert [len(it) for it in (*narrow, *wide)] == [1, 1, 1, 1]
    values = [(narrow, wide)[it][1][0] for it in (0, 1, 1, 1, 0, 1)]
    assert schemas(streamed, lambda it: it.value) == values
    keys = [(narrow, wide)[it][0][0] for it in (0, 0, 0, 1, 0, 0)]
    assert schemas(streamed, lambda it: it.key) == keys
    assert sorted(schemas(copied, lambda it: it.value)) == sorted(values[:4])
    rows = [decoded(registry, it.value)["after"] for it in streamed]
    assert [rows[1]["n"], rows[2]["l"], rows[3]["id"]] == ["NaN", "[[3]]", "NaN"]
    assert rows[5]["f"] == "__debezium_unavailable_value"
    assert decoded(registry, streamed[3].key) == {"id": "NaN"}


def test_truncate_is_an_event_of_the_table(registry: SchemaRegistry) -> None:
    for chosen in ("json", "avro"):
        settings = EnvelopeSettings(
            "shop",
            "demo",
            format=chosen,  # type: ignore[arg-type]
            registry=RegistrySettings((registry.url,)) if chosen == "avro" else None,
            transaction_metadata=True,
        )
        table = Table(5, "public", "orders", (Column("id", 23),), ("id",), "d", ("id",))
        context, buffer = StreamContext(), ChangeBuffer()
        encoder = table_encoder(table, settings, TypeCatalogue(), context, buffer)
        context.begin(xid=1, commit_lsn=100, commit_time_us=1000, now_us=2, skip=1)
        encoder.truncate(95)
        assert len(buffer) == 0
        encoder.truncate(96)
        (record,) = taken(buffer)
        read = json.loads if chosen == "json" else lambda it: decoded(registry, it)
        value = read(record.value)
        assert (record.key, value["before"], value["after"], value["op"]) == (None, None, None, "t")
        assert value["transaction"]["total_order"] == 2
        assert value["source"]["lsn"] == 96


def test_new_version_of_a_table_is_another_schema(
    in_avro: Source, registry: SchemaRegistry
) -> None:
    in_avro.execute("CREATE TABLE t (id int PRIMARY KEY)")
    in_avro.execute("INSERT INTO t VALUES (1)")
    in_avro.execute("ALTER TABLE t ADD name text")
    in_avro.execute("INSERT INTO t VALUES (2, 'a')")
    first, second = in_avro.changes()
    assert decoded(registry, first.value)["after"] == {"id": 1}
    assert decoded(registry, second.value)["after"] == {"id": 2, "name": "a"}
    assert first.key is not None
    assert second.key is not None
    assert first.key[:5] == second.key[:5]
    assert len(registry.subjects["shop.public.t-value"]) == 2
    assert len(registry.subjects["shop.public.t-key"]) == 1


def test_schema_has_debeziums_names() -> None:
    table = Table(5, "public", "or-ders", (Column("id", 23),), ("id",), "d", ("id",))
    types = value_types(table, EnvelopeSettings("my.shop", "d"), TypeCatalogue())
    key = json.loads(key_schema(table, EnvelopeSettings("my.shop", "d"), types))
    value = json.loads(value_schema(table, EnvelopeSettings("my.shop", "d"), types))
    assert (key["name"], key["namespace"]) == ("Key", "my.shop.public.or_ders")
    assert (value["name"], value["namespace"]) == ("Envelope", "my.shop.public.or_ders")
    assert key["fields"] == [{"name": "id", "type": "int"}]
    assert value["fields"][1] == {
        "name": "after",
        "type": ["null", "my.shop.public.or_ders.Value"],
        "default": None,
    }


def test_columns_that_avro_cannot_tell_apart_are_refused() -> None:
    table = Table(5, "public", "t", (Column("a b", 23), Column("a-b", 23)))
    with pytest.raises(CaptureError, match="same name in Avro"):
        value_schema(table, EnvelopeSettings("shop", "d"), [ValueType(Kind.TEXT)] * 2)


def test_null_in_a_key_is_refused(in_avro: Source) -> None:
    table = Table(5, "public", "t", (Column("a", 23),), ("a",), "f", ("a",))
    encoder = in_avro.encoder(table)
    with pytest.raises(CaptureError, match="part of the key and null"):
        encoder.copy(b"\\N\n", flag="true", lsn=1, xid=1, snapshot_time_us=1, now_us=1)


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigError, match="registry"):
        EnvelopeSettings("shop", "d", format="avro")
