"""What all sinks share."""

from __future__ import annotations

import pytest

from millstream.connect.sinks.changes import Change, Changes
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.sink import Part, RebuildUnsupported, Sink, Write


class Plain(Sink):
    closed = False

    def open(self) -> None: ...

    def positions(self) -> dict[Place, Position]:
        return {}

    def apply(self, write: Write) -> None: ...

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
