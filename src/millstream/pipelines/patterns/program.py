"""The program of a pattern, for a machine whose threads are ordered by preference.

    TAKE v, x     take a row that fulfils variable v; x is 1 if the row is excluded from output
    SPLIT x y     continue at x; at y if that fails
    JUMP x
    LOOP x y      the end of a loop: continue at x, its beginning, or at y, behind the loop, if this
                  iteration took no row
    START END     the first row is next; there is no next row
    DONE          a match

The machine of `_matcher.pyx` runs all threads side by side, row by row. The first thread in order
of preference that is done is the match: the standard's preferment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from millstream.errors import ConfigError
from millstream.pipelines.patterns.language import (
    Alternatives,
    Anchor,
    Excluded,
    Gap,
    Node,
    Permutation,
    Repeated,
    Sequence,
    Variable,
)

TAKE, SPLIT, JUMP, LOOP, START, END, DONE = range(7)
INSTRUCTIONS_MAX = 10_000
VARIABLES_MAX = 60  # the bits of a mask, with one for gaps
GAP = "then"  # the name of the variable of rows that are between parts


class Instruction(NamedTuple):
    """`x` and `y` as described for each operation."""

    operation: int
    x: int = 0
    y: int = 0


@dataclass(frozen=True)
class Program:
    """Instructions, and the variables by number; the last variable is that of gaps, if any."""

    instructions: tuple[Instruction, ...]
    variables: tuple[str, ...]
    has_gap: bool = False

    @property
    def universal(self) -> int:
        """The bits of all variables whose rows are part of a match."""
        return (1 << (len(self.variables) - self.has_gap)) - 1


def compile_pattern(node: Node, names: Mapping[str, str]) -> Program:
    """The program; `names` are the variables of the pattern by key. Raises `ConfigError`."""
    if len(names) > VARIABLES_MAX:
        raise ConfigError(f"the pattern has {len(names)} variables: at most {VARIABLES_MAX}")
    compiler = _Compiler(list(names))
    compiler.emit(node)
    compiler.add(DONE)
    variables = list(names.values()) + ([GAP] if compiler.has_gap else [])
    return Program(tuple(compiler.code), tuple(variables), compiler.has_gap)


class _Compiler:
    def __init__(self, keys: list[str]) -> None:
        self.code: list[Instruction] = []
        self.has_gap = False
        self._keys = keys
        self._is_excluded = False

    def add(self, operation: int, x: int = 0, y: int = 0) -> int:
        if len(self.code) >= INSTRUCTIONS_MAX:
            raise ConfigError(
                f"the pattern has more than {INSTRUCTIONS_MAX} steps: use smaller repetitions, or "
                "an unlimited one, like {100,}, with within="
            )
        self.code.append(Instruction(operation, x, y))
        return len(self.code) - 1

    def emit(self, node: Node) -> None:
        if isinstance(node, Variable):
            self.add(TAKE, self._keys.index(node.key), int(self._is_excluded))
        elif isinstance(node, Gap):
            self.has_gap = True
            self._loop(lambda: self.add(TAKE, len(self._keys), 1), is_greedy=False)
        elif isinstance(node, Anchor):
            self.add(START if node.is_start else END)
        elif isinstance(node, Sequence):
            for part in node.parts:
                self.emit(part)
        elif isinstance(node, Alternatives):
            self._choice([partial(self.emit, part) for part in node.parts])
        elif isinstance(node, Permutation):
            self._permute(node.parts)
        elif isinstance(node, Excluded):
            before, self._is_excluded = self._is_excluded, True
            self.emit(node.part)
            self._is_excluded = before
        elif isinstance(node, Repeated):
            self._repeat(node)

    def _choice(self, branches: list[Callable[[], object]]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self.add(SPLIT)
            branch()
            ends.append(self.add(JUMP))
            self.code[split] = Instruction(SPLIT, split + 1, len(self.code))
        branches[-1]()
        for end in ends:
            self.code[end] = Instruction(JUMP, len(self.code))

    def _permute(self, parts: tuple[Node, ...]) -> None:
        if len(parts) == 1:
            self.emit(parts[0])
            return

        def begin_with(place: int) -> None:
            self.emit(parts[place])
            self._permute(parts[:place] + parts[place + 1 :])

        self._choice([partial(begin_with, place) for place in range(len(parts))])

    def _repeat(self, node: Repeated) -> None:
        for _ in range(node.least):
            self.emit(node.part)
        if node.most is None:
            self._loop(lambda: self.emit(node.part), node.is_greedy)
            return
        splits = []
        for _ in range(node.most - node.least):
            splits.append(self.add(SPLIT))
            self.emit(node.part)
        for split in splits:
            self._set_split(split, node.is_greedy)

    def _loop(self, body: Callable[[], object], is_greedy: bool) -> None:
        split = self.add(SPLIT)
        body()
        loop = self.add(LOOP)
        self.code[loop] = Instruction(LOOP, split, len(self.code))
        self._set_split(split, is_greedy)

    def _set_split(self, split: int, is_greedy: bool) -> None:
        """The part begins behind the split; all code so far is skipped without it."""
        body, rest = split + 1, len(self.code)
        first, second = (body, rest) if is_greedy else (rest, body)
        self.code[split] = Instruction(SPLIT, first, second)
