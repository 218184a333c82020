"""Why queries match: lists of conditions as written, numbered, and kept from batch to batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.pipelines.standing.events import Rows
from millstream.pipelines.standing.templates import Query

WHYS_MAX = 500_000  # that are kept
TYPE = pa.list_(pa.string())


class Whys:
    """Lists of conditions. Numbers are valid until `trim` forgets them all, which changes
    `generation`."""

    def __init__(self) -> None:
        self.generation = 0
        self._array = pa.array([], TYPE)
        self._added: list[list[str]] = []

    def add(self, query: Query, mask: int) -> int:
        """The number of the leaves of a query whose bits are set."""
        chosen = [it for number, it in enumerate(query.labels()) if mask >> number & 1]
        self._added.append(list(dict.fromkeys(chosen)))
        return len(self._array) + len(self._added) - 1

    def take(self, numbers: Rows) -> pa.Array:
        if self._added:
            self._array = pa.concat_arrays([self._array, pa.array(self._added, TYPE)])
            self._added = []
        return self._array.take(pa.array(numbers))

    def trim(self) -> None:
        """Forget everything if there is too much. Call it between batches."""
        if len(self._array) > WHYS_MAX:
            self._array = pa.array([], TYPE)
            self.generation += 1


class SegmentWhys:
    """The numbers of the explanations of a segment's queries."""

    def __init__(self, whys: Whys, queries: list[Query]) -> None:
        self._whys = whys
        self._queries = queries
        self._reset()

    def _reset(self) -> None:
        self._generation = self._whys.generation
        self._whole = np.full(len(self._queries), -1, np.int64)  # where all leaves are true
        self._partial: dict[tuple[int, int], int] = {}

    def refresh(self) -> None:
        """Forget numbers that are no longer valid."""
        if self._generation != self._whys.generation:
            self._reset()

    def of_whole(self, queries: Rows) -> Rows:
        """The numbers for hits of queries all of whose leaves are true."""
        numbers = self._whole[queries]
        if len(numbers) and numbers.min() < 0:
            is_new = np.zeros(len(self._queries), np.bool_)
            is_new[queries[numbers < 0]] = True
            for it in np.flatnonzero(is_new).tolist():
                query = self._queries[it]
                self._whole[it] = self._whys.add(query, (1 << len(query.shape.leaves)) - 1)
            numbers = self._whole[queries]
        return numbers

    def of_masks(self, queries: Rows, masks: Rows) -> Rows:
        """The numbers for hits with these leaves."""
        order = np.lexsort((masks, queries))
        sorted_queries, sorted_masks = queries[order], masks[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = sorted_queries[1:] != sorted_queries[:-1]
        is_first[1:] |= sorted_masks[1:] != sorted_masks[:-1]
        distinct = zip(
            sorted_queries[is_first].tolist(), sorted_masks[is_first].tolist(), strict=True
        )
        known = np.array([self._number(*it) for it in distinct], np.int64)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = known[np.cumsum(is_first) - 1]
        return numbers

    def _number(self, query: int, mask: int) -> int:
        found = self._partial.get((query, mask))
        if found is None:
            found = self._partial[query, mask] = self._whys.add(self._queries[query], mask)
        return found
