"""A batch of events as the index uses it: columns as numbers, words and distinct values, each
computed when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.standing.fields import column_at
from millstream.pipelines.standing.kinds import Kind, Numbers, numbers_of
from millstream.pipelines.standing.words import Words, tokenize

Flags: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.int64]


class Events:
    """The columns of a batch."""

    def __init__(self, batch: pa.RecordBatch, kinds: Mapping[str, Kind | None]) -> None:
        self.batch = batch
        self.count: int = batch.num_rows
        self.kinds = kinds
        self._present: dict[str, Flags | None] = {}
        self._numbers: dict[str, Numbers] = {}
        self._words: dict[str, Words] = {}
        self._distinct: dict[str, tuple[Rows, pa.Array]] = {}

    def present(self, column: str) -> Flags | None:
        """Which rows have a value; None if all have."""
        if column not in self._present:
            array = column_at(self.batch, column)
            has_all = array.null_count == 0
            self._present[column] = None if has_all else _flags(pc.is_valid(array))
        return self._present[column]

    def numbers(self, column: str) -> Numbers:
        """The values of a column that is no text."""
        if column not in self._numbers:
            kind = self.kinds[column]
            assert kind is not None
            self._numbers[column] = numbers_of(column_at(self.batch, column), kind)
        return self._numbers[column]

    def words(self, column: str) -> Words:
        if column not in self._words:
            self._words[column] = tokenize(column_at(self.batch, column))
        return self._words[column]

    def distinct(self, column: str) -> tuple[Rows, pa.Array]:
        """For each row of a text column the index of its value, -1 for null; and the values."""
        if column not in self._distinct:
            texts = column_at(self.batch, column).cast(pa.large_string())
            encoded = texts.dictionary_encode()
            indices = pc.fill_null(encoded.indices.cast(pa.int64()), -1)
            self._distinct[column] = (indices.to_numpy(zero_copy_only=False), encoded.dictionary)
        return self._distinct[column]


def _flags(array: pa.Array) -> Flags:
    found: Flags = array.to_numpy(zero_copy_only=False)
    return found
