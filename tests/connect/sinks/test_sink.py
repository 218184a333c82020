"""What all sinks share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks.changes import Change, Changes, Row, decode_changes
from millstream.connect.sinks.columns import parse_columns, to_arrow
from millstream.connect.sinks.config import TopicConfig
from millstream.connect.sinks.opening import open_sink, sink_for
from millstream.connect.sinks.positions import Place, Position, Step
from millstream.connect.sinks.sink import Part, RebuildUnsupported, Run, Sink, Target, Write
from millstream.excision.documents import Selector
from millstream.excision.looking import chooser
from millstream.excision.predicates import Predicate
from tests.connect.sinks.conftest import Derived, Log, set_row


class Plain(Sink):
    closed = False

    def open(self) -> None: ...

    def positions(self) -> dict[Place, Position]:
        return {}

    def apply(self, write: Write) -> None: ...

    def written_at(self, target: Target) -> float | None:
        return None

    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        return iter(())

    def purge(self) -> list[str]:
        return []

    def close(self) -> None:
        self.closed = True


def test_sink_is_closed_at_the_end_of_its_block() -> None:
    with Plain("shop", []) as sink:
        assert not sink.closed
    assert sink.closed


def test_sink_that_cannot_be_rebuilt_reports_it() -> None:
    with Plain("shop", []) as sink:
        with pytest.raises(RebuildUnsupported, match="Plain"):
            sink.rebuilt()
        with pytest.raises(RebuildUnsupported):
            sink.switch(sink)


def test_rows_of_a_write_are_counted() -> None:
    changes = Changes(changes=[Change(0, (1,), None)])
    assert Write((), {"a": Part(changes), "b": Part(changes)}).row_count == 2


def test_record_of_a_part_is_found_in_its_partition() -> None:
    part = Part(Changes(), runs=[Run(0, [5, 6]), Run(3, [9])])
    assert [part.origin(it) for it in range(3)] == [(0, 5), (0, 6), (3, 9)]
    with pytest.raises(IndexError):
        part.origin(3)


def test_names_of_a_target_are_its_columns_or_fields() -> None:
    assert Target("t", "t", ("id",), fields=("a",)).names == ("id", "a")
    assert Target("t", "t", ("id",)).names is None


# A column of each type, and a record with its values in forms that a producer may choose.
COLUMNS = (
    "id long, whole int, is_active boolean, price decimal(9,2), moment timestamp, "
    "local timestamp_ntz, day date, data binary, small float, number double, name string, more json"
)
RECORD = {
    "id": 1, "whole": 2, "is_active": True, "price": "1.5", "moment": "2024-01-01T12:00:00+02:00",
    "local": "2024-01-01T10:00:00", "day": "2024-01-01", "data": "AAE=", "small": 1.5,
    "number": 2.5, "name": "alice", "more": {"a": [1]},
}  # fmt: skip
STORED = RECORD | {"price": "1.50", "moment": "2024-01-01T10:00:00+00:00", "more": '{"a": [1]}'}
KEY = ("name", "id", "is_active", "price", "moment", "local", "day", "data")
TRUE = (
    "is_active", "is_active = true", "_value->>'$.is_active' = 'true'", "price > 1.4 and whole = 2",
    "moment = timestamptz '2024-01-01 10:00:00+00'", "local = timestamp '2024-01-01 10:00:00'",
    "day < date '2024-02-01'", "small = 1.5 and number = 2.5", "_value->>'$.name' = 'alice'",
    "more.a[1] = 1", "_value->>'$.more.a[0]' = '1'",
)  # fmt: skip


OTHER = {
    "id": 2, "whole": 3, "is_active": False, "price": 0, "moment": "1999-01-01T00:00:00.5Z",
    "local": "1999-01-01T00:00:00", "day": "2025-01-01", "data": "", "small": 0.0,
    "number": -1.0, "name": "bob", "more": {"a": [5]},
}  # fmt: skip


@dataclass
class Written:
    """A target with the two records, and what it says that it has."""

    target: Target
    rows: list[tuple[str, Row]]
    found_by_key: Row | None  # None: it keeps changes instead of rows


def write_records(derived: Derived) -> Written:
    options = derived.topic_options
    columns = parse_columns(COLUMNS, "test") if "columns" in options else None
    target = Target("t", "items", KEY, columns, tuple(RECORD) if "fields" in options else ())
    records = [(None, json.dumps(it).encode()) for it in (RECORD, OTHER)]
    changes = decode_changes(records, KEY, "json")
    rows = None if columns is None else to_arrow(changes, columns, KEY)
    assert changes.failures == []
    step = Step(Place("t", 0), None, Position("00000000-0000-0000-0000-000000000000", 2))
    with sink_for(derived.to, "all", [target]) as sink:
        sink.open()
        sink.apply(Write((step,), {"t": Part(changes, rows, [Run(0, range(2))])}))
        key = changes.changes[0].key
        found = None if sink.keeps_history else sink.stored_rows(target, [key])[key]
        return Written(target, list(sink.rows(target)), found)


def test_rows_are_found_by_key_and_predicate_whatever_their_types(derived: Derived) -> None:
    written = write_records(derived)
    target, rows = written.target, written.rows
    (alice,) = [it for it in rows if it[1]["name"] == "alice"]
    key = json.dumps({name: RECORD[name] for name in KEY}).encode()
    topic = TopicConfig("t", KEY, "items", format="json")
    by_key, _ = chooser(target, topic, Selector("key", key), ["t"])
    assert by_key(rows) == [alice]
    if target.columns is not None:
        assert {name: alice[1][name] for name in STORED} == STORED
        assert written.found_by_key in (None, STORED)
    holds = TRUE if target.columns is not None else ("_value->>'$.name' = 'alice'",)
    where = " and ".join(f"({it})" for it in holds)
    assert Predicate(where, target, "json").select(rows) == [alice]


SECRET = "correct horse battery staple"


def test_purged_files_have_nothing_of_rows_that_are_gone(
    derived: Derived, log: Log, tmp_path: Path
) -> None:
    """After a rebuild without them, as an excision does it; the sink then goes on."""
    log.put((1, SECRET), (2, "two"))
    SinkRunner(derived.config(log)).run(once=True)
    before = b"".join(it.read_bytes() for it in tmp_path.rglob("*") if it.is_file())
    log.recreate()
    log.put((2, "two"))
    SinkRunner(derived.config(log)).rebuild()
    with open_sink(derived.config(log)) as sink:
        sink.open()
        assert [id for id, _ in sink.rows(sink.targets[0])] == ["2"]
        left = sink.purge()
        sink.open()
        (found,) = sink.rows(sink.targets[0])
        assert (found[0], found[1]["name"]) == ("2", "two")
    after = b"".join(it.read_bytes() for it in tmp_path.rglob("*") if it.is_file())
    is_a_file = before != b""
    assert bool(left) == (not is_a_file)  # a server keeps more than we can reach
    assert SECRET.encode() not in after
    log.send(set_row(3, "three"))
    SinkRunner(derived.config(log)).run(once=True)
    assert derived.rows() == {2: "two", 3: "three"}
