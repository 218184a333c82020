"""The automaton of a pattern, drawn as text.

    start ──── A ──▶ 1         a state has a line for each row that it may take next, and for a
    1 ──────── B ──▶ 2         match that needs no other row; lines are in order of preference
    2 ─────┬── B ──▶ 2
           ├── C ──▶ 3
           ├── D ──▶ 3
           └── E ──▶ match
    3 ──────── E ──▶ match

It is the program without the instructions that take no row. States from which the program
continues in the same way are one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from millstream.pipelines.patterns.program import (
    DONE,
    END,
    JUMP,
    LOOP,
    SPLIT,
    START,
    TAKE,
    Program,
)

LINES_MAX = 60  # of a drawing


class Move(NamedTuple):
    """The TAKE or DONE at `place` is next; `anchors` are those that must hold before it."""

    place: int
    anchors: str


class Transition(NamedTuple):
    """`variable` is None if no row is needed; `target` is None for a match."""

    source: int
    anchors: str
    variable: int | None
    is_excluded: bool
    target: int | None


class Automaton:
    """States have numbers, from 0 for the first one, in the order in which they are reached."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._heads = {it.x for it in program.instructions if it.operation == LOOP}

    def transitions(self) -> Iterator[Transition]:
        """Of all states, in order of preference."""
        done = Move(len(self._program.instructions) - 1, "")
        waiting = [self._moves(0)]
        numbers = {waiting[0]: 0}
        for source, moves in enumerate(waiting):  # which grows
            seen = set()
            for move in moves:
                it = self._program.instructions[move.place]
                if it.operation == DONE:
                    found = Transition(source, move.anchors, None, False, None)
                else:
                    following = self._moves(move.place + 1)
                    if following not in numbers and following != (done,):
                        numbers[following] = len(waiting)
                        waiting.append(following)
                    target = None if following == (done,) else numbers[following]
                    found = Transition(source, move.anchors, it.x, bool(it.y), target)
                if found not in seen:
                    seen.add(found)
                    yield found

    def _moves(self, start: int) -> tuple[Move, ...]:
        """What can be next at a place of the program, in order of preference."""
        found: dict[Move, None] = {}
        # A loop whose head was passed since the last row has taken no row in this iteration.
        threads = [(start, frozenset[int](), "")]
        seen = set()
        while threads:
            thread = threads.pop()
            if thread in seen:
                continue
            seen.add(thread)
            place, heads, anchors = thread
            it = self._program.instructions[place]
            if it.operation in (TAKE, DONE):
                found.setdefault(Move(place, anchors))
                if it.operation == DONE and not anchors:
                    break  # nothing after a match is preferred to it
            elif it.operation in (START, END):
                sign = "^" if it.operation == START else "$"
                threads.append((place + 1, heads, anchors if sign in anchors else anchors + sign))
            elif it.operation == JUMP:
                threads.append((it.x, heads, anchors))
            elif it.operation == LOOP:
                target = it.y if it.x in heads else it.x
                threads.append((target, heads - {it.x}, anchors))
            elif it.operation == SPLIT:
                for target in (it.y, it.x):
                    is_body = place in self._heads and target == place + 1
                    threads.append((target, heads | {place} if is_body else heads, anchors))
        return tuple(found)


def draw(program: Program) -> list[str]:
    """The lines of the drawing; of a large automaton, only the first ones."""
    found = list(islice(Automaton(program).transitions(), LINES_MAX + 1))
    shown = found[:LINES_MAX]
    labels = [_label(program, it) for it in shown]
    width = max(len(it) for it in labels)
    left = max(len(_name(it.source)) for it in shown) + 2
    lines = []
    for at, (it, label) in enumerate(zip(shown, labels, strict=True)):
        is_first = at == 0 or shown[at - 1].source != it.source
        is_last = at + 1 == len(found) or found[at + 1].source != it.source
        joint = {(True, True): "─", (True, False): "┬", (False, True): "└", (False, False): "├"}
        head = f"{_name(it.source)} ".ljust(left, "─") if is_first else " " * left
        arrow = "─" * (width - len(label))
        lines.append(f"{head}{joint[is_first, is_last]}── {label} {arrow}──▶ {_name(it.target)}")
    return [*lines, "..."] if len(found) > LINES_MAX else lines


def _name(state: int | None) -> str:
    return "match" if state is None else str(state or "start")


def _label(program: Program, it: Transition) -> str:
    if it.variable is None:
        name = "no row"
    elif program.has_gap and it.variable == len(program.variables) - 1:
        name = "any row"
    else:
        name = program.variables[it.variable]
        name = f"{{- {name} -}}" if it.is_excluded else name
    return f"{it.anchors} {name}" if it.anchors else name
