"""What all sinks share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks.changes import Change, Changes, Row
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.sink import Part, RebuildUnsupported, Run, Sink, Target, Write
from tests.connect.sinks.conftest import Derived, Log, set_row


class Plain(Sink):
    closed = False

    def open(self) -> None: ...

    def positions(self) -> dict[Place, Position]:
        return {}

    def apply(self, write: Write) -> None: ...

    def written_at(self) -> float | None:
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
