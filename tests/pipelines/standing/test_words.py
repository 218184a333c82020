"""The words of texts: one by one and in columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.standing.words import tokenize, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Green-leaf TEA, 2nd", ["green", "leaf", "tea", "2nd"]),
        ("snake_case it's", ["snake", "case", "it", "s"]),
        ("“GRÖSSE” of Zürich…", ["grösse", "of", "zürich"]),
        ("  ", []),
    ],
)
def test_words_are_runs_of_letters_and_digits(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.lists(st.none() | st.text(), max_size=6), st.integers(0, 3))
def test_words_of_a_column_are_those_of_its_texts(texts: list[str | None], skipped: int) -> None:
    column = pa.array([*([""] * skipped), *texts], pa.string()).slice(skipped)
    found = tokenize(column)
    expected = [(row, it) for row, text in enumerate(texts) for it in words_of(text or "")]
    assert list(zip(found.rows.tolist(), found.words.to_pylist(), strict=True)) == expected
