"""Terms in columns of texts, against a search in each text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.standing.templates import Term
from millstream.pipelines.standing.terms import Postings, TermTable, expand
from millstream.pipelines.standing.words import tokenize, words_of

WORDS = st.sampled_from(["a", "ab", "abc", "ä", "äb", "c"])
TERMS = st.one_of(
    st.builds(lambda it: Term("word", (it,)), WORDS),
    st.builds(lambda it: Term("prefix", (it,)), WORDS),
    st.builds(lambda it: Term("phrase", tuple(it)), st.lists(WORDS, min_size=2, max_size=3)),
)


def has(term: Term, words: list[str]) -> bool:
    if term.kind == "prefix":
        return any(it.startswith(term.words[0]) for it in words)
    count = len(term.words)
    return any(tuple(words[at : at + count]) == term.words for at in range(len(words)))


@given(st.lists(TERMS, max_size=8), st.lists(st.lists(WORDS, max_size=6), max_size=6))
def test_table_finds_each_term_once_in_each_text_that_has_it(
    terms: list[Term], texts: list[list[str]]
) -> None:
    table = TermTable(terms)
    found = table.find(tokenize(pa.array([" ".join(it) for it in texts], pa.string())))
    pairs = list(zip(found.rows.tolist(), found.terms.tolist(), strict=True))
    distinct = list(dict.fromkeys(terms))
    expected = [
        (row, table.number(term))
        for row, text in enumerate(texts)
        for term in sorted(distinct, key=table.number)
        if has(term, words_of(" ".join(text)))
    ]
    assert pairs == expected
    rows = np.repeat(np.arange(len(texts)), len(distinct))
    numbers = np.tile(np.arange(len(distinct)), len(texts))
    contained = found.contain(rows, numbers)
    assert list(zip(rows[contained], numbers[contained], strict=True)) == expected


def test_phrase_is_within_one_text() -> None:
    table = TermTable([Term("phrase", ("green", "leaf"))])
    found = table.find(tokenize(pa.array(["a green", "leaf", "green leaf", "green"], pa.string())))
    assert found.rows.tolist() == [2]


def test_postings_have_the_values_of_each_key() -> None:
    postings = Postings.of(np.array([2, 0, 2]), np.array([10, 11, 12]), 4)
    places, values = postings.expand(np.array([2, 1, 0]))
    assert (places.tolist(), values.tolist()) == ([0, 0, 2], [10, 12, 11])
    places, numbers = expand(np.array([5, 0]), np.array([2, 0]))
    assert (places.tolist(), numbers.tolist()) == ([0, 0], [5, 6])
