"""Conditions on pairs of an event and a query. That results are right is in test_stored.py."""

from __future__ import annotations

import numpy as np

from millstream.pipelines.standing.events import Events
from millstream.pipelines.standing.shapes import Lists, Pairs, ShapeRows
from millstream.pipelines.standing.templates import Compiler
from millstream.pipelines.standing.vocabulary import Batch, Vocabulary
from tests.pipelines.standing.drawing import SCHEMA, batch_of

COMPILER = Compiler(SCHEMA)


def test_lists_contain_the_values_of_their_own_query() -> None:
    lists = Lists.of([(5, 1), (3,)])
    queries, values = np.array([0, 0, 0, 1, 1]), np.array([1, 5, 3, 3, 1])
    assert lists.contain(queries, values).tolist() == [True, True, False, True, False]
    owners, listed = lists.entries()
    assert list(zip(owners.tolist(), listed.tolist(), strict=True)) == [(0, 1), (0, 5), (1, 3)]


def test_conditions_that_are_known_are_not_evaluated() -> None:
    queries = [COMPILER.compile(f"n = {it} AND x < 2") for it in range(2)]
    vocabulary = Vocabulary(queries)
    rows = ShapeRows(vocabulary, queries[0].shape, 10, queries)
    batch = Batch(Events(batch_of([{"n": 1, "x": 1.0}]), COMPILER.columns), vocabulary)
    pairs = Pairs(np.array([0, 0]), np.array([10, 11]))
    assert rows.matching(batch, pairs, frozenset()).queries.tolist() == [11]
    assert rows.matching(batch, pairs, frozenset((0,))).queries.tolist() == [10, 11]


def test_true_leaves_are_those_that_make_a_query_true() -> None:
    query = COMPILER.compile("n = 1 OR (x < 2 AND city = 'a')")
    vocabulary = Vocabulary([query])
    rows = ShapeRows(vocabulary, query.shape, 0, [query])
    events = [{"n": 1, "x": 1.0}, {"x": 1.0, "city": "a"}, {"n": 1, "x": 1.0, "city": "a"}]
    batch = Batch(Events(batch_of(events), COMPILER.columns), vocabulary)
    hits = Pairs(np.arange(3), np.zeros(3, np.int64))
    assert rows.true_leaves(batch, hits).tolist() == [0b001, 0b110, 0b111]
