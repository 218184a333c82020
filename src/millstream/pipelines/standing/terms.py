"""The terms that queries look for in a text column: words, prefixes and phrases, with numbers.

`TermTable.find` returns for a column of texts all pairs of a row and a term that it contains, each
once and in order, without a loop over rows. A word is found by its number in the vocabulary, a
prefix by the start of a word, and a phrase by its first word and then the following ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.standing.events import Flags, Rows
from millstream.pipelines.standing.templates import Term
from millstream.pipelines.standing.words import Words

_NO_ROWS = np.zeros(0, np.int64)


class Postings(NamedTuple):
    """Values by key: those of key k are `values[ends[k]:ends[k + 1]]`."""

    ends: Rows
    values: Rows

    @classmethod
    def of(cls, keys: Rows, values: Rows, key_count: int) -> Postings:
        order = np.argsort(keys, kind="stable")
        ends = np.searchsorted(keys[order], np.arange(key_count + 1))
        return cls(ends, values[order])

    def counts(self, keys: Rows) -> Rows:
        return self.ends[keys + 1] - self.ends[keys]

    def expand(self, keys: Rows) -> tuple[Rows, Rows]:
        """For all values of all keys, the index of the key in `keys`, and the value."""
        counts = self.counts(keys)
        places, values = expand(self.ends[keys], counts)
        return places, self.values[values]


def expand(starts: Rows, counts: Rows) -> tuple[Rows, Rows]:
    """The numbers of all ranges, one after another, each with the index of its range."""
    total = int(counts.sum())
    places = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return places, np.arange(total) + (starts - before)[places]


class Found(NamedTuple):
    """Rows and the terms that they contain, as sorted numbers row * term_count + term."""

    keys: Rows
    term_count: int

    @property
    def rows(self) -> Rows:
        return self.keys // self.term_count

    @property
    def terms(self) -> Rows:
        return self.keys % self.term_count

    def contain(self, rows: Rows, terms: Rows) -> Flags:
        """Whether each of these rows contains the term beside it."""
        if not len(self.keys):
            return np.zeros(len(rows), np.bool_)
        wanted = rows * self.term_count + terms
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found: Flags = self.keys[at] == wanted
        return found


class TermTable:
    """The terms of one column, each once."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self._numbers = {it: number for number, it in enumerate(dict.fromkeys(terms))}
        vocabulary: dict[str, int] = {}
        for term in self._numbers:
            if term.kind != "prefix":
                for word in term.words:
                    vocabulary.setdefault(word, len(vocabulary))
        self._vocabulary = pa.array(list(vocabulary), pa.large_string())
        self._word_terms = np.full(len(vocabulary), -1, np.int64)
        for term, number in self._numbers.items():
            if term.kind == "word":
                self._word_terms[vocabulary[term.words[0]]] = number
        self._prefixes = _prefixes(self._numbers)
        phrases = [it for it in self._numbers if it.kind == "phrase"]
        self._phrases = np.array([self._numbers[it] for it in phrases], np.int64)
        self._phrase_words = _matrix([[vocabulary[it] for it in term.words] for term in phrases])
        self._phrase_starts = Postings.of(
            self._phrase_words[:, 0], np.arange(len(phrases)), len(vocabulary)
        )

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, term: Term) -> int:
        return self._numbers[term]

    def find(self, words: Words) -> Found:
        """The terms of each row."""
        rows, terms = [_NO_ROWS], [_NO_ROWS]
        ids = _index_in(words.words, self._vocabulary)
        known = np.flatnonzero(ids >= 0)
        of_words = self._word_terms[ids[known]]
        is_term = of_words >= 0
        rows.append(words.rows[known[is_term]])
        terms.append(of_words[is_term])
        if len(self._phrases):
            self._find_phrases(words.rows, ids, known, rows, terms)
        if self._prefixes:
            self._find_prefixes(words, rows, terms)
        keys = np.concatenate(rows) * max(len(self), 1) + np.concatenate(terms)
        keys.sort()
        is_new = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        return Found(keys[is_new], max(len(self), 1))

    def _find_phrases(
        self, row_of: Rows, ids: Rows, known: Rows, rows: list[Rows], terms: list[Rows]
    ) -> None:
        begins, phrases = self._phrase_starts.expand(ids[known])
        places = known[begins]
        for at in range(1, self._phrase_words.shape[1]):
            wanted = self._phrase_words[phrases, at]
            here = np.minimum(places + at, len(ids) - 1)
            fits = (places + at < len(ids)) & (row_of[here] == row_of[places])
            fits = (wanted < 0) | (fits & (ids[here] == wanted))
            places, phrases = places[fits], phrases[fits]
        rows.append(row_of[places])
        terms.append(self._phrases[phrases])

    def _find_prefixes(self, words: Words, rows: list[Rows], terms: list[Rows]) -> None:
        encoded = words.words.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        for length, (texts, numbers) in self._prefixes.items():
            starts = pc.utf8_slice_codeunits(encoded.dictionary, 0, length)
            found = _index_in(starts, texts)[indices]
            places = np.flatnonzero(found >= 0)
            rows.append(words.rows[places])
            terms.append(numbers[found[places]])


def _prefixes(numbers: dict[Term, int]) -> dict[int, tuple[pa.Array, Rows]]:
    """Prefixes by length: their texts and their numbers."""
    by_length: dict[int, list[tuple[str, int]]] = {}
    for term, number in numbers.items():
        if term.kind == "prefix":
            by_length.setdefault(len(term.words[0]), []).append((term.words[0], number))
    return {
        length: (
            pa.array([text for text, _ in found], pa.large_string()),
            np.array([number for _, number in found], np.int64),
        )
        for length, found in by_length.items()
    }


def _matrix(lists: Sequence[Sequence[int]]) -> Rows:
    """Lists of different lengths as rows, filled up with -1."""
    width = max(map(len, lists), default=1)
    return np.array(
        [[*it, *[-1] * (width - len(it))] for it in lists] or np.zeros((0, width)), np.int64
    )


def _index_in(values: pa.Array, known: pa.Array) -> Rows:
    """The index of each value among the known ones, -1 if it is none of them."""
    found = pc.fill_null(pc.index_in(values, value_set=known), -1)
    numbers: Rows = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
