"""A batch of events as columns."""

from __future__ import annotations

from millstream.pipelines.standing.events import Events
from millstream.pipelines.standing.templates import Compiler
from tests.pipelines.standing.drawing import SCHEMA, batch_of


def test_columns_have_flags_numbers_words_and_distinct_values() -> None:
    rows = [{"n": 1, "city": "a", "text": "x y"}, {"n": 2}, {"n": 3, "city": "a", "text": ""}]
    events = Events(batch_of(rows), Compiler(SCHEMA).columns)
    assert events.count == 3
    assert events.present("n") is None
    present = events.present("city")
    assert present is not None
    assert present.tolist() == [True, False, True]
    assert events.numbers("n").tolist() == [1, 2, 3]
    assert events.words("text").rows.tolist() == [0, 0]
    indices, values = events.distinct("city")
    assert (indices.tolist(), values.to_pylist()) == ([0, -1, 0], ["a"])
