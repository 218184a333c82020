"""Debezium's Avro as the oracle: its engine with the Avro converter that its documentation names,
and a registry. Schemas and values are equal but for what docs/formats/change-records.md names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.schema_registry import Registry, RegistrySettings, registry_for
from millstream.connect.capture.avro_records import HEARTBEATS, MESSAGES, TRANSACTIONS
from millstream.connect.capture.types import Decimals
from tests.connect.capture.source import Source, open_source
from tests.connect.capture.test_avro import as_json
from tests.connect.capture.test_debezium import (
    DIFFERENT,
    ENGINE_SETTINGS,
    EQUAL,
    MARKER_TOPIC,
    assert_equal,
    declare_types,
    key_headers,
    run_workload,
    without_differences,
    write_decimals,
)
from tests.drawing import draws
from tests.peers.apicurio import Apicurio, start_apicurio
from tests.peers.cache import PeerMissing
from tests.peers.debezium import Debezium, avro_settings, running_debezium
from tests.peers.postgres import PostgresServer

pytestmark = [pytest.mark.java, pytest.mark.slow]

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


@dataclass
class BothInAvro:
    """One database, read by Debezium and by our encoder, with the schemas in one registry."""

    source: Source
    debezium: Debezium
    registry: Registry
    markers: int = 0

    def records(self) -> tuple[list[Any], list[Any]]:
        """Keys, values and headers of Debezium's events since the last call, and of ours."""
        self.markers += 1
        self.source.execute("INSERT INTO marker VALUES (%s)", [self.markers])
        theirs = [
            (it.key, it.value, key_headers(it.headers))
            for it in self.debezium.events_until(MARKER_TOPIC)
            if it.topic.startswith("shop.public.") and (it.key, it.value) != (None, None)
        ]
        ours = [
            (it.key, it.value, tuple((name, json.loads(by or b"")) for name, by in it.headers))
            for it in self.source.changes()
        ]
        return theirs, ours[:-1]

    def events(self, *, also_avro: bool = False) -> tuple[list[Any], list[Any]]:
        """The same, as values that can be compared; a schema is part of each."""
        theirs, ours = ([self._comparable(*it) for it in given] for given in self.records())
        return theirs, ours

    def _comparable(self, key: bytes | None, value: bytes | None, headers: Any) -> Any:
        compared = without_differences(as_json(self.decoded(value)))
        if compared is not None:
            compared["schema"] = columns_by_name(self.schema(value))
        return (self.schema(key), self.decoded(key)), compared, headers

    def text(self, content: bytes) -> str:
        """The schema of a value in Confluent's wire format."""
        assert content[0] == 0
        return self.registry.schema(int.from_bytes(content[1:5], "big")).text

    def schema(self, content: bytes | None) -> Any:
        return None if content is None else expanded(json.loads(self.text(content)), "")

    def decoded(self, content: bytes | None, reader: str | None = None) -> Any:
        """The value, as the writer's or another schema reads it."""
        if content is None:
            return None
        written = fastavro.parse_schema(json.loads(self.text(content)))
        wanted = None if reader is None else fastavro.parse_schema(json.loads(reader))
        stream = io.BytesIO(content[5:])
        value = fastavro.schemaless_reader(stream, written, wanted)
        assert not stream.read()
        return value

    def is_accepted(self, first: str, second: str, rule: str) -> bool:
        """Whether the registry lets the second schema follow the first in a subject."""
        self.markers += 1
        subject = f"rule-{self.markers}"
        self.registry.register(subject, first)
        [url] = self.registry_urls
        _send(f"{url}/config/{subject}", "PUT", {"compatibility": rule})
        path = f"{url}/compatibility/subjects/{subject}/versions/latest"
        return bool(_send(path, "POST", {"schema": second})["is_compatible"])

    @property
    def registry_urls(self) -> tuple[str, ...]:
        assert self.source.settings.registry is not None
        return self.source.settings.registry.urls


def _send(url: str, method: str, body: Any) -> Any:
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = Request(url, json.dumps(body).encode(), headers, method=method)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def expanded(schema: Any, namespace: str) -> Any:
    """A schema with full names, since there are two ways to write them."""
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES or "." in schema else f"{namespace}.{schema}"
    if isinstance(schema, list):
        return [expanded(it, namespace) for it in schema]
    written = dict(schema)
    if written["type"] == "record":
        inner = written.pop("namespace", namespace)
        written["name"] = f"{inner}.{written['name']}"
        written["fields"] = [it | {"type": expanded(it["type"], inner)} for it in written["fields"]]
    for part in {"items", "values"} & written.keys():
        written[part] = expanded(written[part], namespace)
    return written


def columns_by_name(schema: Any) -> Any:
    """An envelope's schema whose columns can be compared one by one."""
    rows = schema["fields"][0]["type"][1]
    assert [schema["fields"][0]["name"], rows["type"]] == ["before", "record"]
    columns = {it["name"]: it for it in rows.pop("fields")}
    return {"envelope": schema, "columns": columns, "order": list(columns)}


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    try:
        running = start_apicurio(tmp_path_factory.mktemp("apicurio"))
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield running
    running.stop()


@contextmanager
def compared(
    postgres: PostgresServer, apicurio: Apicurio, decimals: Decimals = "string"
) -> Iterator[BothInAvro]:
    """A database with both readers; skips where Debezium or the converter cannot be had."""
    url = postgres.new_database()
    registry = RegistrySettings((apicurio.url,))
    with open_source(url) as source:
        source.settings = replace(
            source.settings,
            transaction_metadata=True,
            database=Path(url).name,
            decimals=decimals,
            format="avro",
            registry=registry,
        )
        declare_types(source)
        given = {
            **ENGINE_SETTINGS,
            **avro_settings(apicurio.url.replace("/ccompat/v7", "/registry/v2")),
            "decimal.handling.mode": decimals,
            "slot.name": f"debezium_avro_{decimals}",
            "heartbeat.interval.ms": "300",
        }
        try:
            with running_debezium(url, given, "avro") as debezium:
                debezium.events_until(MARKER_TOPIC)  # of the snapshot
                opened = BothInAvro(source, debezium, registry_for(registry))
                opened.events()  # so that both have seen a commit, which `sequence` contains
                yield opened
        except PeerMissing as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="module")
def both(postgres: PostgresServer, apicurio: Apicurio) -> Iterator[BothInAvro]:
    with compared(postgres, apicurio) as opened:
        yield opened


_ENUM = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {"allowed": "sad,ok"},
    "connect.name": "io.debezium.data.Enum",
}
_PAIR = "shop.public.types.public.pair"
_PAIR_RECORD = {
    "type": "record",
    "name": _PAIR,
    "fields": [
        {"name": "a", "type": ["null", "int"], "default": None},
        {"name": "b", "type": ["null", "string"], "default": None},
    ],
    "connect.name": _PAIR,
}


def _bits(length: int) -> Any:
    return {
        "type": "bytes",
        "connect.version": 1,
        "connect.parameters": {"length": str(length)},
        "connect.name": "io.debezium.data.Bits",
    }


def _array(items: Any) -> Any:
    return {"type": "array", "items": items}


# Types whose schemas differ: what is not null in Debezium's, and in ours.
OTHER_SCHEMAS: dict[str, tuple[Any, Any]] = {
    "mood[]": (_array(_ENUM), _array(["null", _ENUM])),
    "varbit(10)": (_bits(10), "string"),
    "bit(3)[]": (_bits(3), _array(["null", _bits(3)])),
    "positive[]": (_array("bytes"), _array(["null", "int"])),
    "pair": ("bytes", _PAIR_RECORD),
    "pair[]": (_array("bytes"), _array(["null", _PAIR])),
    "int4multirange": ("bytes", "string"),
    "pg_lsn": ("bytes", "string"),
}
# Where our value is not the one of JSON.
OTHER_VALUES = {("date", "'infinity'"): 2**31 - 1, ("timestamp", "'infinity'"): 2**63 - 1}
MATRIX = ("int4[]", "'{{1,2},{3,4}}'")


def test_values_and_schemas_of_all_types_are_equal_but_for_the_named_ones(both: BothInAvro) -> None:
    different = [it for it in DIFFERENT if it[:2] != MATRIX]
    columns = [*EQUAL, *(it[:2] for it in different)]
    declared = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(columns))
    both.source.execute(f"CREATE TABLE types (id int PRIMARY KEY, {declared})")
    made = ", ".join(f"({sql})::{kind}" for kind, sql in columns)
    both.source.execute(f"INSERT INTO types VALUES (1, {made})")
    both.source.execute("INSERT INTO types VALUES (2)")
    theirs, ours = both.events()
    for number, (kind, sql, expected, mine) in enumerate(different, start=len(EQUAL)):
        name = f"c{number}"
        mine = OTHER_VALUES.get((kind, sql), mine)
        assert (theirs[0][1]["after"].pop(name), ours[0][1]["after"].pop(name)) == (expected, mine)
    for number, (kind, _) in enumerate(columns):
        if kind in OTHER_SCHEMAS:
            for events, expected in zip((theirs, ours), OTHER_SCHEMAS[kind], strict=True):
                for _, value, _ in events:
                    column = value["schema"]["columns"].pop(f"c{number}")
                    assert column["type"] == ["null", expected]
    assert_equal(ours, theirs)


def test_operations_are_equal(both: BothInAvro) -> None:
    run = both.source.execute
    run("CREATE TABLE plain (id int PRIMARY KEY, name text, big text, list text[], counts int[])")
    run("CREATE TABLE keyless (name text)")
    run("ALTER TABLE keyless REPLICA IDENTITY FULL")
    for column in ("big", "list", "counts"):
        run(f"ALTER TABLE plain ALTER {column} SET STORAGE EXTERNAL")
    run(
        "INSERT INTO plain SELECT 1, 'a', repeat('x', 9000), ARRAY[repeat('x', 9000)],"
        " array_agg(i) FROM generate_series(1, 5000) i"
    )
    run("UPDATE plain SET name = 'c'")  # with placeholders for what is not sent
    run("UPDATE plain SET id = 11")
    run("DELETE FROM plain")
    with both.source.connection.transaction():
        run("INSERT INTO plain VALUES (5, 'e')")
        run("INSERT INTO keyless VALUES ('x'), ('y')")
        run("DELETE FROM keyless WHERE name = 'x'")
    run("TRUNCATE plain")
    theirs, ours = both.events()
    assert_equal(ours, theirs)
    assert len(ours) == 12


@pytest.mark.parametrize("mode", ["precise", "double"])
def test_decimals_of_each_mode_are_equal(
    postgres: PostgresServer, apicurio: Apicurio, mode: Decimals
) -> None:
    with compared(postgres, apicurio, mode) as both:
        write_decimals(both, key="numeric(6,1)")
        theirs, ours = both.events()
        assert_equal(ours, theirs)


def test_row_that_debeziums_schema_cannot_hold_has_a_wider_one(both: BothInAvro) -> None:
    run = both.source.execute
    run("CREATE TABLE grids (id int PRIMARY KEY, cells int[])")
    for row in ("1, '{1,2}'", "2, '{{1,2},{3,4}}'", "3, '{5}'"):
        run(f"INSERT INTO grids VALUES ({row})")
    theirs, ours = both.records()
    cells = [both.decoded(value)["after"]["cells"] for _, value, _ in ours]
    assert cells == [[1, 2], "[[1,2],[3,4]]", [5]]
    assert both.decoded(theirs[1][1])["after"]["cells"] == [None, None]
    schemas = [both.schema(value) for _, value, _ in (*ours, theirs[0])]
    assert schemas[0] == schemas[2] == schemas[3] != schemas[1]
    _, wide = both.registry.latest("shop.public.grids-value-text")
    assert expanded(json.loads(wide.text), "") == schemas[1]
    # Debezium's schema reads all rows but the one it cannot hold.
    theirs_text = both.text(theirs[0][1])
    assert both.decoded(ours[2][1], theirs_text)["after"]["cells"] == [5]
    with pytest.raises(fastavro.read.SchemaResolutionError):
        both.decoded(ours[1][1], theirs_text)


def test_schemas_are_compatible_and_read_each_others_records(both: BothInAvro) -> None:
    run = both.source.execute
    run("CREATE TABLE shared (id int PRIMARY KEY, name text, at timestamptz, n numeric, l int[])")
    run("INSERT INTO shared VALUES (1, 'a', '2026-01-02 03:04:05+00', 1.5, '{1,2}')")
    run("UPDATE shared SET name = NULL")
    run("DELETE FROM shared")
    theirs, ours = both.records()
    assert [it is None for _, it, _ in theirs] == [False, False, False, True]
    for side in (0, 1):
        for mine, other in zip(ours[:3], theirs[:3], strict=True):
            my_text, other_text = both.text(mine[side]), both.text(other[side])
            for first, second in ((my_text, other_text), (other_text, my_text)):
                assert both.is_accepted(first, second, "FULL")
            assert both.decoded(mine[side], other_text) == both.decoded(mine[side])
            assert both.decoded(other[side], my_text) == both.decoded(other[side])


def test_columns_that_are_not_null_may_be_null_here(both: BothInAvro) -> None:
    """The named difference of schemas: Debezium invents values for deletes, and has defaults."""
    run = both.source.execute
    run("CREATE TABLE strict (id serial PRIMARY KEY, a text NOT NULL, b int DEFAULT 7)")
    run("INSERT INTO strict VALUES (1, 'a', 1)")
    run("DELETE FROM strict")
    theirs, ours = both.records()
    theirs_text, our_text = both.text(theirs[0][1]), both.text(ours[0][1])
    theirs_columns, our_columns = (
        columns_by_name(both.schema(it[0][1]))["columns"] for it in (theirs, ours)
    )
    assert our_columns == {
        "id": {"name": "id", "type": "int"},
        "a": {"name": "a", "type": ["null", "string"], "default": None},
        "b": {"name": "b", "type": ["null", "int"], "default": None},
    }
    with_seven = {"type": "int", "connect.default": 7}
    assert theirs_columns["a"] == {"name": "a", "type": "string"}
    assert theirs_columns["b"] == {"name": "b", "type": [with_seven, "null"], "default": 7}
    assert theirs_columns["id"]["default"] == 0
    # Ours may follow theirs, and reads it; theirs reads ours but for the nulls of deletes.
    assert both.is_accepted(theirs_text, our_text, "BACKWARD")
    assert not both.is_accepted(theirs_text, our_text, "FORWARD")
    assert both.decoded(theirs[1][1], our_text)["before"] == {"id": 1, "a": "", "b": 7}
    assert both.decoded(ours[0][1], theirs_text)["after"] == {"id": 1, "a": "a", "b": 1}
    with pytest.raises(fastavro.read.SchemaResolutionError):
        both.decoded(ours[1][1], theirs_text)


def test_records_that_are_not_rows_have_the_same_schemas(both: BothInAvro) -> None:
    run = both.source.execute
    run("CREATE TABLE noted (id int PRIMARY KEY)")
    with both.source.connection.transaction():
        run("INSERT INTO noted VALUES (1)")
        run("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
    wanted = {
        "shop.transaction": TRANSACTIONS,
        "shop.message": MESSAGES,
        "__debezium-heartbeat.shop": HEARTBEATS,
    }
    while wanted:
        event = both.debezium.next_event()
        if event.topic in wanted:
            schemas = wanted.pop(event.topic)
            for content, schema in zip((event.key, event.value), schemas, strict=True):
                assert both.schema(content) == expanded(schema, "")
                assert both.decoded(content)
    both.events()  # what is left


@settings(
    max_examples=draws(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_generated_workloads_are_equal(both: BothInAvro, data: st.DataObject) -> None:
    run_workload(both, data)
