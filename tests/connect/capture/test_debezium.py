"""Debezium as the oracle: the same changes through both, event by event equal.

The differences that are wanted are listed in docs/formats/change-records.md; the tests name them
where they compare.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.schema_registry import RegistrySettings
from millstream.connect.capture.encoding import ChangeBuffer, ChangeFeed, StreamContext
from millstream.connect.capture.envelope import NEW_KEY_HEADER, OLD_KEY_HEADER
from millstream.connect.capture.types import Decimals
from tests.connect.capture.source import Change, Source, open_source
from tests.connect.capture.test_avro import as_json, decoded
from tests.drawing import draws
from tests.peers.cache import PeerMissing
from tests.peers.debezium import Debezium, DebeziumEvent, running_debezium
from tests.peers.postgres import PostgresServer
from tests.peers.schema_registry import SchemaRegistry, running_registry

pytestmark = [pytest.mark.java, pytest.mark.slow]

ENGINE_SETTINGS = {
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "include.unknown.datatypes": "true",
    "provide.transaction.metadata": "true",
    "snapshot.mode": "initial",
}
MARKER_TOPIC = "shop.public.marker"


class Compared(Protocol):
    """A database, and both's events of its changes."""

    source: Source
    markers: int

    def events(self, *, also_avro: bool = False) -> tuple[list[Any], list[Any]]: ...


@dataclass
class Both:
    """One database, read by Debezium and by our encoder."""

    source: Source
    debezium: Debezium
    registry: SchemaRegistry
    in_avro: Source
    markers: int = 0

    def events(self, *, also_avro: bool = False) -> tuple[list[Any], list[Any]]:
        """Debezium's events since the last call and ours, both as comparable values."""
        self.markers += 1
        self.source.execute("INSERT INTO marker VALUES (%s)", [self.markers])
        theirs = [
            comparable_event(event)
            for event in self.debezium.events_until(MARKER_TOPIC)
            if event.topic != "shop.transaction"
            # Ours gives no tombstones without a key: no reader could apply one.
            and (event.key, event.value) != (None, None)
        ]
        messages = self.source.messages()
        ours = [comparable_change(change) for change in self.source.encode(messages)]
        from_avro = self.in_avro.encode(messages)
        if also_avro:
            self.compare_avro(ours, from_avro)
        return theirs, ours[: -1 if ours else None]

    def compare_avro(self, from_json: list[Any], from_avro: list[Change]) -> None:
        """The same events in Avro."""
        read = [
            (decoded(self.registry, it.key), decoded(self.registry, it.value), it.headers)
            for it in from_avro
        ]
        assert [key for key, _, _ in read] == [key for key, _, _ in from_json]
        for (_, value, headers), (_, expected, named) in zip(read, from_json, strict=True):
            assert tuple((name, json.loads(it or b"null")) for name, it in headers) == named
            for part in ("op", "before", "after") if value else ():
                assert as_json(value[part]) == expected[part]


def comparable_event(event: DebeziumEvent) -> Any:
    return event.key, without_differences(event.value), key_headers(event.headers)


def key_headers(headers: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    return tuple(it for it in headers if it[0] in (NEW_KEY_HEADER, OLD_KEY_HEADER))


def comparable_change(change: Change) -> Any:
    key = None if change.key is None else json.loads(change.key)
    headers = tuple((name, json.loads(it or b"null")) for name, it in change.headers)
    value = None if change.value is None else json.loads(change.value)
    return key, without_differences(value), headers


def without_differences(value: Any) -> Any:
    """An envelope without what differs in every run: times of processing, the version, and the
    LSN in transaction ids, which in Debezium is that of each event."""
    if value is None:
        return None
    compared = {name: it for name, it in value.items() if name not in ("ts_ms", "ts_us", "ts_ns")}
    compared["source"] = {name: it for name, it in value["source"].items() if name != "version"}
    if value["transaction"]:
        xid = value["transaction"]["id"].partition(":")[0]
        compared["transaction"] = value["transaction"] | {"id": xid}
    assert list(value) == (
        ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    )
    compared["order"] = list(value["source"])
    return compared


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    """Names the fields that differ; the events are too long to be shown."""
    assert [key for key, _, _ in ours] == [key for key, _, _ in theirs]
    assert [headers for _, _, headers in ours] == [headers for _, _, headers in theirs]
    differing = [
        f"{number} {path}: {mine!r}, Debezium {other!r}"
        for number, (own, other_event) in enumerate(zip(ours, theirs, strict=True))
        for path, mine, other in _differences("", own[1], other_event[1])
    ]
    assert not differing, "\n".join(differing)


def _differences(path: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**ours, **theirs}:
            yield from _differences(f"{path}.{name}", ours.get(name), theirs.get(name))
    elif ours != theirs:
        yield path, ours, theirs


def declare_types(source: Source) -> None:
    """What the tables of the tests need, and the table that marks the end of a test's changes."""
    source.execute("CREATE EXTENSION hstore")
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    source.execute("CREATE TYPE pair AS (a int, b text)")
    source.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    source.execute("CREATE TABLE marker (id int PRIMARY KEY)")
    source.execute("INSERT INTO marker VALUES (0)")


@contextmanager
def compared(postgres: PostgresServer, decimals: Decimals = "string") -> Iterator[Both]:
    """A database with both readers; skips where Debezium cannot be had."""
    url = postgres.new_database()
    with open_source(url) as source, running_registry() as registry:
        source.settings = replace(
            source.settings,
            transaction_metadata=True,
            database=url.rpartition("/")[2],
            decimals=decimals,
        )
        in_avro = replace(
            source,
            settings=replace(
                source.settings, format="avro", registry=RegistrySettings((registry.url,))
            ),
            context=StreamContext(),
            buffer=ChangeBuffer(),
            feed=ChangeFeed(),
            tables={},
            encoders={},
        )
        declare_types(source)
        try:
            given = ENGINE_SETTINGS | {
                "decimal.handling.mode": decimals,
                "slot.name": f"debezium_{decimals}",
            }
            with running_debezium(url, given) as debezium:
                debezium.events_until(MARKER_TOPIC)  # of the snapshot
                opened = Both(source, debezium, registry, in_avro)
                opened.events()  # so that both have seen a commit, which `sequence` contains
                yield opened
        except PeerMissing as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="module")
def both(postgres: PostgresServer) -> Iterator[Both]:
    with compared(postgres) as opened:
        yield opened


# Type, value as SQL.
EQUAL = [
    ("bool", "true"), ("int2", "-1"), ("int8", "9007199254740993"), ("oid", "4000000000"),
    ("float4", "0.1"), ("float8", "1e300"), ("float8", "'NaN'"), ("float8", "'-Infinity'"),
    ("numeric", "12.500"), ("numeric(10,2)", "12.5"), ("money", "'-1234.56'"),
    ("text", r"E'q\"\\\n\t\x01 é 😀'"), ("char(3)", "'a'"), ('"char"', "'x'"), ("name", "'n'"),
    ("bytea", r"'\x00ff'"), ("bit(1)", "B'1'"), ("bit(5)", "B'10110'"),
    ("bit(12)", "B'101100000001'"), ("date", "'2026-01-02'"), ("date", "'1969-12-31'"),
    ("time", "'03:04:05.678901'"), ("time(3)", "'03:04:05.678901'"), ("time", "'24:00:00'"),
    ("timestamp", "'2026-01-02 03:04:05.678901'"), ("timestamp(3)", "'2026-01-02 03:04:05.6789'"),
    ("timestamp", "'1969-12-31 23:59:59.5'"), ("timestamptz", "'2026-01-02 03:04:05.67+02'"),
    ("timestamptz(3)", "'2026-01-02 03:04:05.67+02'"),
    ("timestamptz(0)", "'2026-01-02 03:04:05.67+02'"), ("timestamptz", "'infinity'"),
    ("json", """'{"a": 1}'"""), ("jsonb", """'{"a": [1, null]}'"""), ("hstore", "'a=>1,b=>NULL'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"), ("xml", "'<a/>'"),
    ("inet", "'10.0.0.1/8'"), ("cidr", "'10.0.0.0/8'"), ("macaddr", "'08:00:2b:01:02:03'"),
    ("int4range", "'[1,5)'"), ("tstzrange", "'[2026-01-01 00:00+00,)'"), ("tsvector", "'a b'"),
    ("point", "'(1.5,-2)'"), ("mood", "'ok'"), ("positive", "5"), ("text", "NULL"),
    ("int4[]", "'{1,NULL,3}'"), ("text[]", """'{a,"b,c",NULL,"NULL",""}'"""),
    ("numeric[]", "'{1.50,2}'"), ("date[]", "'{2026-01-02}'"), ("bool[]", "'{t,f}'"),
    ("timestamp[]", "'{2026-01-02 03:04:05}'"), ("timestamptz[]", "'{2026-01-02 03:04:05+00}'"),
    ("bytea[]", r"""'{"\\x00ff"}'"""), ("mood[]", "'{ok,sad}'"), ("float8[]", "'{1.5,NaN}'"),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"), ("time[]", "'{03:04:05}'"),
    ("jsonb[]", """ARRAY['{"a": 1}'::jsonb]"""), ("int4range[]", """'{"[1,2)"}'"""),
]  # fmt: skip


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# Type, value as SQL, Debezium's value, ours: the named differences.
DIFFERENT: list[tuple[str, str, Any, Any]] = [
    ("numeric", "'NaN'", "NAN", "NaN"),
    ("numeric", "'Infinity'", "POSITIVE_INFINITY", "Infinity"),
    ("date", "'infinity'", -2147472692, "infinity"),
    ("timestamp", "'infinity'", 9223372036825200000, "infinity"),
    ("timetz", "'03:04:05.67+02'", "01:04:05.67Z", "03:04:05.67+02:00"),
    ("varbit(10)", "B'0001'", "AQ==", "0001"),
    ("interval", "'1 month 2 days 03:04:05.5'", "P0Y1M2DT3H4M5.5S", "P1M2DT3H4M5.5S"),
    ("int4[]", "'{{1,2},{3,4}}'", [None, None], [[1, 2], [3, 4]]),
    ("bit(3)[]", "'{101}'", None, ["BQ=="]),
    ("positive[]", "'{1}'", [encoded("1")], [1]),
    ("pair", "ROW(1, 'x')", encoded("(1,x)"), {"a": 1, "b": "x"}),
    ("pair[]", "ARRAY[ROW(1, 'x')::pair]", [encoded("(1,x)")], [{"a": 1, "b": "x"}]),
    ("int4multirange", "'{[1,5)}'", encoded("{[1,5)}"), "{[1,5)}"),
    ("pg_lsn", "'0/1'", encoded("0/1"), "0/1"),
]


def test_values_of_all_types_are_equal_but_for_the_named_ones(both: Both) -> None:
    kinds = [kind for kind, _ in EQUAL] + [it[0] for it in DIFFERENT]
    values = [value for _, value in EQUAL] + [it[1] for it in DIFFERENT]
    declared = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    both.source.execute(f"CREATE TABLE types (id int PRIMARY KEY, {declared})")
    made = ", ".join(f"({sql})::{kind}" for sql, kind in zip(values, kinds, strict=True))
    both.source.execute(f"INSERT INTO types VALUES (1, {made})")
    both.source.execute("INSERT INTO types VALUES (2)")
    theirs, ours = both.events()
    for number, (_, _, expected, mine) in enumerate(DIFFERENT, start=len(EQUAL)):
        name = f"c{number}"
        assert (theirs[0][1]["after"].pop(name), ours[0][1]["after"].pop(name)) == (expected, mine)
    assert_equal(ours, theirs)


def test_operations_are_equal(both: Both) -> None:
    run = both.source.execute
    run("CREATE TABLE plain (id int PRIMARY KEY, name text, big text)")
    run("CREATE TABLE whole (id int PRIMARY KEY, name text, big text)")
    run("CREATE TABLE keyless (name text)")
    run("ALTER TABLE keyless REPLICA IDENTITY FULL")
    run("ALTER TABLE whole REPLICA IDENTITY FULL")
    for table in ("plain", "whole"):
        run(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        run(f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 9000)), (2, 'b', NULL)")
        run(f"UPDATE {table} SET name = 'c'")
        run(f"UPDATE {table} SET id = id + 10")
        run(f"DELETE FROM {table} WHERE id = 11")
        with both.source.connection.transaction():
            run(f"INSERT INTO {table} VALUES (5, 'e')")
            run(f"UPDATE {table} SET id = 6, name = 'f' WHERE id = 5")
            run("INSERT INTO keyless VALUES ('x'), ('y')")
            run("DELETE FROM keyless WHERE name = 'x'")
    theirs, ours = both.events()
    assert_equal(ours, theirs)
    assert len(ours) == 38


def test_delete_has_no_invented_values(both: Both) -> None:
    """Debezium gives columns that were not sent the values that a schema without nulls allows."""
    run = both.source.execute
    run("CREATE TABLE strict (id int PRIMARY KEY, a text NOT NULL, b int DEFAULT 7 NOT NULL)")
    run("INSERT INTO strict VALUES (1, 'a', 1)")
    run("DELETE FROM strict")
    theirs, ours = both.events()
    assert theirs[1][1].pop("before") == {"id": 1, "a": "", "b": 7}
    assert ours[1][1].pop("before") == {"id": 1, "a": None, "b": None}
    assert_equal(ours, theirs)


DECIMALS = [
    "12.5",
    "0",
    "-0.001",
    "123456789012345678901234567890.5",
    "1e20",
    "-1",
    "255",
    "NULL",
]


def write_decimals(both: Compared, *, key: str) -> None:
    """A table of decimals with a key of this type."""
    kinds = ["numeric", "numeric(40,3)", "numeric(5,0)", "numeric[]"]
    declared = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    both.source.execute(f"CREATE TABLE decimals (id {key} PRIMARY KEY, {declared})")
    for number, value in enumerate(DECIMALS):
        small = "NULL" if len(value) > 8 or value == "1e20" else value
        both.source.execute(
            f"INSERT INTO decimals VALUES ({number}, {value}, {value}, {small},"
            f" ARRAY[{value}, NULL]::numeric[])"
        )


@pytest.mark.parametrize("mode", ["precise", "double"])
def test_decimals_of_each_mode_are_equal(postgres: PostgresServer, mode: Decimals) -> None:
    with compared(postgres, mode) as both:
        write_decimals(both, key="int")
        theirs, ours = both.events()
        assert_equal(ours, theirs)
        # The named difference: Debezium removes zeros from a numeric without a scale.
        both.source.execute("INSERT INTO decimals VALUES (100, 12.500, 12.500)")
        theirs, ours = both.events()
        kept, removed = (it[0][1]["after"].pop("c0") for it in (ours, theirs))
        if mode == "precise":
            assert kept == {"scale": 3, "value": "MNQ="}
            assert removed == {"scale": 1, "value": "fQ=="}
        else:
            assert kept == removed == 12.5
        assert_equal(ours, theirs)


# Generated workloads

COLUMN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int4": st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float8": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    "bytea": st.binary(max_size=20),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=3),
    "timestamp": st.datetimes(),
    "date": st.dates(),
    "uuid": st.uuids(),
    "int4[]": st.lists(st.integers(-(2**31), 2**31 - 1) | st.none(), max_size=4),
    "text[]": st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.none(),
        max_size=4,
    ),
}


@dataclass
class Workload:
    """Statements on one table, drawn one after another."""

    draw: st.DataObject
    both: Compared
    table: str
    columns: dict[str, str]
    last_column: int = 0

    def run(self) -> None:
        for _ in range(self.draw.draw(st.integers(1, 12))):
            step = self.draw.draw(
                st.sampled_from(
                    ["insert", "insert", "update", "rekey", "delete", "alter", "toast", "truncate"]
                )
            )
            if step == "alter":
                self._alter()
            elif self.draw.draw(st.booleans()):
                with self.both.source.connection.transaction():
                    self._change(step)
                    self._change("insert")
            else:
                self._change(step)

    def _change(self, step: str) -> None:
        key = self.draw.draw(st.integers(1, 4))
        names = list(self.columns)
        values = [self.draw.draw(COLUMN_VALUES[it] | st.none()) for it in self.columns.values()]
        casts = [f"%s::{kind}" for kind in self.columns.values()]
        match step:
            case "insert":
                listed = ", ".join(["id", "part", *names])
                made = ", ".join(["%s", "1", *casts])
                statement = f"INSERT INTO {self.table} ({listed}) VALUES ({made})"
                self._execute(f"{statement} ON CONFLICT DO NOTHING", [key, *values])
            case "update" if names:
                sets = ", ".join(f"{name} = {it}" for name, it in zip(names, casts, strict=True))
                self._execute(f"UPDATE {self.table} SET {sets} WHERE id = %s", [*values, key])
            case "rekey":
                self._execute(f"UPDATE {self.table} SET id = id + 4 WHERE id = %s", [key])
            case "toast":  # the next update leaves it unchanged
                self._execute(f"UPDATE {self.table} SET toast = repeat('x', 9000) WHERE id = {key}")
            case "truncate":
                self._execute(f"TRUNCATE {self.table}")
            case "delete":
                self._execute(f"DELETE FROM {self.table} WHERE id = %s", [key])

    def _alter(self) -> None:
        actions = ["add", "drop", "rename", "retype", "identity", "key"]
        action = self.draw.draw(st.sampled_from(actions))
        names = list(self.columns)
        self.last_column += 1
        new = f"n{self.last_column}"
        if action == "add":
            self.columns[new] = self.draw.draw(st.sampled_from(list(COLUMN_VALUES)))
            self._execute(f"ALTER TABLE {self.table} ADD {new} {self.columns[new]}")
        elif action == "identity":
            how = self.draw.draw(st.sampled_from(["FULL", "DEFAULT"]))
            self._execute(f"ALTER TABLE {self.table} REPLICA IDENTITY {how}")
        elif action == "key":
            self._change_key()
        elif names:
            name = self.draw.draw(st.sampled_from(names))
            kind = self.columns.pop(name)
            if action == "drop":
                self._execute(f"ALTER TABLE {self.table} DROP {name}")
            elif action == "retype":
                self.columns[name] = "text"
                self._execute(f"ALTER TABLE {self.table} ALTER {name} TYPE text")
            else:
                self.columns[new] = kind
                self._execute(f"ALTER TABLE {self.table} RENAME {name} TO {new}")
        # Debezium reads the catalogue as it is when it sees a change, not as it was.
        self.compare()

    def _change_key(self) -> None:
        """The primary key has one column, or two."""
        columns = self.draw.draw(st.sampled_from(["id", "id, part"]))
        self._execute(f"ALTER TABLE {self.table} DROP CONSTRAINT {self.table}_pkey")
        if columns == "id":  # Debezium invents values of columns without nulls
            self._execute(f"ALTER TABLE {self.table} ALTER part DROP NOT NULL")
        self._execute(f"ALTER TABLE {self.table} ADD PRIMARY KEY ({columns})")

    def _execute(self, statement: str, parameters: list[Any] | None = None) -> None:
        self.both.source.execute(statement, parameters)

    def compare(self) -> None:
        theirs, ours = self.both.events(also_avro=True)
        assert_equal(ours, theirs)


@settings(
    max_examples=draws(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_generated_workloads_are_equal(both: Both, data: st.DataObject) -> None:
    run_workload(both, data)


def run_workload(both: Compared, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(COLUMN_VALUES)), max_size=4))
    both.markers += 1
    workload = Workload(
        data, both, f"w{both.markers}", {f"c{number}": it for number, it in enumerate(kinds)}
    )
    declared = "".join(f", {name} {kind}" for name, kind in workload.columns.items())
    both.source.execute(
        f"CREATE TABLE {workload.table} (id int, part int, toast text{declared},"
        f" CONSTRAINT {workload.table}_pkey PRIMARY KEY (id))"
    )
    both.source.execute(f"ALTER TABLE {workload.table} ALTER toast SET STORAGE EXTERNAL")
    workload.run()
    workload.compare()
    both.source.execute(f"DROP TABLE {workload.table}")
