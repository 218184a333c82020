"""How candidates are found. That results are right is in test_stored.py."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.pipelines.standing.events import Events
from millstream.pipelines.standing.segment import Segment
from millstream.pipelines.standing.templates import Compiler
from millstream.pipelines.standing.whys import Whys
from tests.pipelines.standing.drawing import SCHEMA, batch_of

COMPILER = Compiler(SCHEMA)
ROWS = [{"n": 1, "city": f"c{it}", "text": "tea" if it else "tea leaf"} for it in range(20)]


def candidates(text: str, rows: list[dict[str, Any]]) -> int:
    """How many pairs are evaluated for one query."""
    segment = Segment([COMPILER.compile(text)], Whys())
    events = Events(batch_of(rows), COMPILER.columns)
    segment.match(events)
    return segment.candidate_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("n = 1 AND city = 'c3'", 1),
        ("n = 1 AND matches(text, 'tea leaf')", 1),
        ("n < 1 AND matches(text, 'tea')", 0),
        ("n > 0 AND city IN ('c1', 'c2', 'x')", 2),
        ("n IN (2, 3) AND city >= 'c'", 0),
        ("n = 2 OR city = 'c5' OR matches(text, 'leaf')", 2),
        ("n <> 5", 20),
    ],
)
def test_condition_with_the_fewest_candidates_is_used(text: str, count: int) -> None:
    assert candidates(text, ROWS) == count


def test_choice_is_made_again_for_a_larger_batch() -> None:
    segment = Segment([COMPILER.compile("n = 1 AND city = 'c3'")], Whys())
    first = Events(batch_of([{"n": 2, "city": "c3"}]), COMPILER.columns)
    segment.match(first)
    segment.match(Events(batch_of(ROWS), COMPILER.columns))
    assert segment.candidate_count == 1
