"""The words of a text: the same rule for events, one by one or in columns, and for queries.

A word is a run of letters and digits, in lower case: `Green-leaf TEA, 2nd` has the words green,
leaf, tea, 2nd. There is no stemming and no list of ignored words.

`tokenize` finds the words of a whole column without a loop over rows: a table maps the bytes of
ASCII text to lower case and separators to zero; what remains is the data of an Arrow array of
words. Rows with other characters are brought into that form by `words_of` first.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WORD = re.compile(r"[^\W_]+")


def _lower_table() -> npt.NDArray[np.uint8]:
    """For each byte its lower case, zero for separators; bytes of other characters stay."""
    table = np.arange(256, dtype=np.uint8)
    for byte in range(128):
        character = chr(byte)
        table[byte] = ord(character.lower()) if character.isalnum() else 0
    return table


_TABLE = _lower_table()


def words_of(text: str) -> list[str]:
    """The words of one text."""
    return _WORD.findall(text.lower())


class Words(NamedTuple):
    """The words of a column, row by row: the row of each word, and the words."""

    rows: npt.NDArray[np.int64]
    words: pa.Array


def tokenize(column: pa.Array) -> Words:
    """The words of a column of strings; a null has none."""
    column = _normalized(column.cast(pa.large_string()))
    count = len(column)
    ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + count + 1]
    data = column.buffers()[2]
    if count == 0 or data is None or ends[-1] == ends[0]:
        return Words(np.zeros(0, np.int64), pa.array([], pa.large_string()))
    text = _TABLE[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]]
    ends = ends - ends[0]
    is_word = text != 0
    begins, stops = is_word.copy(), is_word.copy()
    begins[1:] &= ~is_word[:-1]
    stops[:-1] &= ~is_word[1:]
    row_starts = ends[:-1][ends[:-1] < ends[1:]]
    begins[row_starts] = is_word[row_starts]  # a word does not span rows
    row_stops = row_starts[1:] - 1
    stops[row_stops] = is_word[row_stops]
    starts = np.flatnonzero(begins)
    lengths = np.flatnonzero(stops) - starts + 1
    offsets = np.append(0, np.cumsum(lengths))  # in the text without separators
    words = pa.LargeStringArray.from_buffers(
        len(starts), pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(text[is_word])
    )
    return Words(np.searchsorted(ends[1:], starts, side="right"), words)


def _normalized(column: pa.Array) -> pa.Array:
    """The column without nulls, and other than ASCII text as its words with spaces."""
    if column.null_count:
        column = pc.fill_null(column, "")
    is_plain = pc.string_is_ascii(column)
    if pc.all(is_plain).as_py() is not False:
        return column
    texts = column.filter(pc.invert(is_plain)).to_pylist()
    normal = pa.array([" ".join(words_of(it)) for it in texts], pa.large_string())
    return pc.replace_with_mask(column, pc.invert(is_plain), normal)
