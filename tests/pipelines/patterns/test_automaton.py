"""Automata of patterns: drawings by hand, and runs beside the reference matcher."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings

from millstream.pipelines.patterns.automaton import LINES_MAX, Automaton, Transition, draw
from millstream.pipelines.patterns.language import parse_pattern
from tests.drawing import draws
from tests.pipelines.patterns.reference import GAP, Reference
from tests.pipelines.patterns.test_matcher import NAMES, patterns, rows
from tests.pipelines.patterns.test_program import program


def drawing(text: str) -> list[str]:
    return draw(program(text))


def test_states_that_continue_in_the_same_way_are_one() -> None:
    assert drawing("A B+ (C | D)? E") == [
        "start ──── A ──▶ 1",
        "1 ──────── B ──▶ 2",
        "2 ─────┬── B ──▶ 2",
        "       ├── C ──▶ 3",
        "       ├── D ──▶ 3",
        "       └── E ──▶ match",
        "3 ──────── E ──▶ match",
    ]


def test_transitions_are_in_order_of_preference() -> None:
    assert drawing("a b+?") == ["start ──── a ──▶ 1", "1 ──────── b ──▶ match"]
    assert drawing("a b*? c")[1:] == ["1 ─────┬── c ──▶ match", "       └── b ──▶ 1"]
    assert drawing("a b+")[2:] == ["2 ─────┬── b ───────▶ 2", "       └── no row ──▶ match"]


def test_gaps_exclusion_and_anchors_are_shown() -> None:
    assert drawing("^ a then {- b -} $") == [
        "start ──── ^ a ───────▶ 1",
        "1 ─────┬── {- b -} ───▶ 2",
        "       └── any row ───▶ 1",
        "2 ──────── $ no row ──▶ match",
    ]
    assert drawing("()") == ["start ──── no row ──▶ match"]


def test_large_automata_are_drawn_in_part() -> None:
    for text in ("a{1000} b", "(a?){1000}", "(a? | b?){1000}", "permute(a, b, c, d, e, f)"):
        found = drawing(text)
        assert len(found) == LINES_MAX + 1
        assert found[-1] == "..."


@settings(max_examples=draws(200), deadline=None)
@given(pattern=patterns, masks=rows)
def test_first_way_to_a_match_is_that_of_the_reference(pattern: str, masks: list[int]) -> None:
    tree = parse_pattern(pattern)
    it = program(pattern)
    reference = Reference(
        tree, lambda name, row, _: bool(masks[row] >> NAMES.index(name) & 1), range(len(masks))
    )
    expected = next(((it.end, it.labels) for it in reference.matches() if it.start == 0), None)
    if masks:
        found = run(list(Automaton(it).transitions()), it.variables, masks)
        assert found == expected


def run(
    transitions: list[Transition], names: tuple[str, ...], masks: list[int]
) -> tuple[int, tuple[str, ...]] | None:
    """The end of the preferred match from the first row, and the variables of its rows."""
    of_state = defaultdict(list)
    for it in transitions:
        of_state[it.source].append(it)

    def walk(state: int | None, at: int) -> tuple[int, tuple[str, ...]] | None:
        if state is None:
            return at, ()
        for it in of_state[state]:
            if ("^" in it.anchors and at > 0) or ("$" in it.anchors and at < len(masks)):
                continue
            if it.variable is None:
                return at, ()
            name = names[it.variable]
            if at == len(masks) or not (name == GAP or masks[at] >> NAMES.index(name) & 1):
                continue
            rest = walk(it.target, at + 1)
            if rest is not None:
                return rest[0], (name, *rest[1])
        return None

    return walk(0, 0)
