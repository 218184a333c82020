"""Texts as ranks, and a batch of events in the numbers of queries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.standing.events import Events
from millstream.pipelines.standing.templates import Compiler, Leaf, Term
from millstream.pipelines.standing.vocabulary import Batch, TextValues, Vocabulary
from tests.pipelines.standing.drawing import CITIES, SCHEMA, batch_of

COMPILER = Compiler(SCHEMA)


@given(st.sets(st.sampled_from(CITIES), min_size=1), st.sampled_from(CITIES))
def test_ranks_compare_like_the_bytes_of_texts(values: set[str], city: str) -> None:
    texts = TextValues(values, is_ordered=True)
    events = Events(batch_of([{"city": city}]), COMPILER.columns)
    [rank] = texts.ranks(events, "city").tolist()
    for value in values:
        mine = texts.rank(value)
        assert (rank < mine) == (city.encode() < value.encode())
        assert (rank == mine) == (city == value)


def test_batch_has_numbers_ranks_and_terms() -> None:
    queries = [COMPILER.compile("n = 1 AND city = 'Bonn' AND matches(text, 'tea')")]
    rows = [{"n": 4, "city": "Bonn", "text": "Tea"}, {"n": 5, "city": "Rome"}]
    vocabulary = Vocabulary(queries)
    batch = Batch(Events(batch_of(rows), COMPILER.columns), vocabulary)
    assert batch.numbers(Leaf("n", "integer", "=")).tolist() == [4, 5]
    bonn, rome = batch.numbers(Leaf("city", "text", "=")).tolist()
    assert bonn == vocabulary.texts["city"].rank("Bonn") != rome
    found = batch.found("text")
    assert found.rows.tolist() == [0]
    assert found.terms.tolist() == [vocabulary.terms["text"].number(Term("word", ("tea",)))]
