"""Candidates by value and range, in pieces; with as many queries as have paths of their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.standing import paths
from millstream.pipelines.standing.events import Events
from millstream.pipelines.standing.reference import truth
from millstream.pipelines.standing.segment import Segment
from millstream.pipelines.standing.templates import Compiler
from millstream.pipelines.standing.whys import Whys
from tests.drawing import draws
from tests.pipelines.standing.drawing import SCHEMA, batch_of, events

COMPILER = Compiler(SCHEMA)
SHAPES = (
    "n = {a} AND x {operator} {b}",
    "n IN ({a}, {b}) AND x {operator} {a}",
    "city = '{a}' AND n {operator} {b}",
    "n {operator} {a}",
    "n = {a} OR x {operator} {b}",
    "n = {a} AND x {operator} {a} AND x < {b}",
)


@pytest.mark.parametrize("shared_max", [0, 64])
@settings(max_examples=draws(60), deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    operator=st.sampled_from(("<", "<=", ">", ">=")),
    values=st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=8),
    rows=st.lists(events, min_size=1, max_size=8),
)
def test_queries_of_a_shape_find_what_each_finds_alone(
    shared_max: int,
    shape: str,
    operator: str,
    values: list[tuple[int, int]],
    rows: list[dict[str, Any]],
) -> None:
    texts = [shape.format(operator=operator, a=a, b=b) for a, b in values]
    queries = [COMPILER.compile(it) for it in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "SHARED_QUERIES_MAX", shared_max)
        patch.setattr(paths, "PAIRS_MAX", 7)
        segment = Segment(queries, Whys())
        hits = segment.match(Events(batch_of(rows), COMPILER.columns))
    found = sorted(zip(hits.events.tolist(), segment.order[hits.queries].tolist(), strict=True))
    assert found == [
        (row, number)
        for row, event in enumerate(rows)
        for number, query in enumerate(queries)
        if truth(query, event) is True
    ]


@pytest.mark.parametrize("operator", ["<", ">"])
def test_value_and_bound_leave_out_events_without_a_value(operator: str) -> None:
    texts = [f"city = 'Bonn' AND n {operator} {it}" for it in range(-50, 50)]
    segment = Segment([COMPILER.compile(it) for it in texts], Whys())
    rows = [{"city": "Bonn", "n": None}, {"city": None, "n": 1}, {"city": "Bonn", "n": 0}]
    hits = segment.match(Events(batch_of(rows), COMPILER.columns))
    assert set(hits.events.tolist()) == {2}


def test_value_and_bound_leave_only_candidates_that_match() -> None:
    queries = [COMPILER.compile(f"n = {it % 2} AND x < {it}") for it in range(100)]
    segment = Segment(queries, Whys())
    hits = segment.match(Events(batch_of([{"n": 1, "x": 90.5}]), COMPILER.columns))
    assert segment.candidate_count == len(hits.events) == 5
