"""A reference matcher by another algorithm: backtracking over the tree of the pattern.

It yields all ways to match in order of preference, and takes the first one. Exponential, and as
close to the text of the standard as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from millstream.pipelines.patterns.language import (
    Alternatives,
    Anchor,
    Empty,
    Excluded,
    Gap,
    Node,
    Permutation,
    Repeated,
    Variable,
)
from millstream.pipelines.patterns.language import Sequence as InSequence

# Whether a row fulfils a variable: the variable, the row, and the pairs of variable and row so far,
# the row under test included.
Holds = Callable[[str, int, Sequence[tuple[str, int]]], bool]
Way = tuple[int, tuple[tuple[str, int], ...]]
GAP = "then"


class Found(NamedTuple):
    """A match: its first row, the row behind it, and the variable of each row."""

    start: int
    end: int
    labels: tuple[str, ...]


class Reference:
    """Matches of one key's rows."""

    def __init__(
        self,
        tree: Node,
        holds: Holds,
        times: Sequence[int],
        within: int | None = None,
        skip: str = "past last row",
        skip_to: str = "",
    ) -> None:
        self._tree = tree
        self._holds = holds
        self._times = times
        self._within = within
        self._skip = skip
        self._skip_to = skip_to

    def matches(self) -> list[Found]:
        found = []
        at = 0
        while at < len(self._times):
            self._start = at
            way = next(self._ways(self._tree, at, ()), None)
            if way is None:
                at += 1
                continue
            end, taken = way
            found.append(Found(at, end, tuple(name for name, _ in taken)))
            at = self._next(at, end, taken)
        return found

    def _next(self, start: int, end: int, taken: tuple[tuple[str, int], ...]) -> int:
        if end == start or self._skip == "to next row":
            return start + 1
        if self._skip == "past last row":
            return end
        rows = [row for name, row in taken if name == self._skip_to]
        row = rows[0 if self._skip == "to first" else -1] if rows else None
        if row is None or row == start:
            raise LookupError
        return row

    def _ways(self, node: Node, at: int, taken: tuple[tuple[str, int], ...]) -> Iterator[Way]:
        if isinstance(node, Empty):
            yield at, taken
        elif isinstance(node, Variable):
            yield from self._take(node.key, at, taken)
        elif isinstance(node, Anchor):
            if at == (0 if node.is_start else len(self._times)):
                yield at, taken
        elif isinstance(node, Gap):
            yield at, taken
            for end, more in self._take(GAP, at, taken):
                yield from self._ways(node, end, more)
        elif isinstance(node, InSequence):
            yield from self._all(node.parts, at, taken)
        elif isinstance(node, Alternatives):
            for part in node.parts:
                yield from self._ways(part, at, taken)
        elif isinstance(node, Permutation):
            for order in permutations(node.parts):
                yield from self._all(order, at, taken)
        elif isinstance(node, Excluded):
            yield from self._ways(node.part, at, taken)
        elif isinstance(node, Repeated):
            yield from self._repeat(node, 0, at, taken)

    def _take(self, name: str, at: int, taken: tuple[tuple[str, int], ...]) -> Iterator[Way]:
        if at == len(self._times):
            return
        since = self._times[at] - self._times[self._start]
        if self._within is not None and since >= self._within:
            return
        more = (*taken, (name, at))
        if name == GAP or self._holds(name, at, more):
            yield at + 1, more

    def _all(
        self, parts: Sequence[Node], at: int, taken: tuple[tuple[str, int], ...]
    ) -> Iterator[Way]:
        if not parts:
            yield at, taken
            return
        for end, more in self._ways(parts[0], at, taken):
            yield from self._all(parts[1:], end, more)

    def _repeat(
        self, node: Repeated, count: int, at: int, taken: tuple[tuple[str, int], ...]
    ) -> Iterator[Way]:
        def stop() -> Iterator[Way]:
            if count >= node.least:
                yield at, taken

        def go_on() -> Iterator[Way]:
            if node.most is not None and count >= node.most:
                return
            for end, more in self._ways(node.part, at, taken):
                if end == at and count >= node.least and node.most is None:
                    yield end, more  # an iteration without a row ends the loop
                else:
                    yield from self._repeat(node, count + 1, end, more)

        for part in (go_on, stop) if node.is_greedy else (stop, go_on):
            yield from part()
