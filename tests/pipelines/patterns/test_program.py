"""Programs of patterns."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.patterns.language import parse_pattern, variables_of
from millstream.pipelines.patterns.program import (
    JUMP,
    LOOP,
    SPLIT,
    TAKE,
    Program,
    compile_pattern,
)

NAMES = ("take", "split", "jump", "loop", "start", "end", "done")


def program(text: str) -> Program:
    tree = parse_pattern(text)
    return compile_pattern(tree, {key: it.name for key, it in variables_of(tree).items()})


def listing(it: Program) -> list[str]:
    """A line for each instruction."""
    lines = []
    for place, (operation, x, y) in enumerate(it.instructions):
        rest = ""
        if operation == TAKE:
            rest = f" {it.variables[x]}{', excluded' if y else ''}"
        elif operation in (SPLIT, LOOP):
            rest = f" {x} or {y}"
        elif operation == JUMP:
            rest = f" {x}"
        lines.append(f"{place} {NAMES[operation]}{rest}")
    return lines


def test_program_has_loops_and_preference() -> None:
    assert listing(program("a b+ c")) == [
        "0 take a",
        "1 take b",
        "2 split 3 or 5",
        "3 take b",
        "4 loop 2 or 5",
        "5 take c",
        "6 done",
    ]
    assert listing(program("a??"))[0] == "0 split 2 or 1"


def test_rows_of_gaps_are_excluded_and_not_counted() -> None:
    found = program("a then b")
    assert listing(found)[2] == "2 take then, excluded"
    assert found.universal == 0b011
    assert found.has_gap


def test_orders_of_a_permutation_share_their_beginnings() -> None:
    takes = [line for line in listing(program("permute(a, b, c)")) if "take" in line]
    assert len(takes) == 3 + 6 + 6


def test_programs_have_a_limit() -> None:
    with pytest.raises(ConfigError, match="more than 10000 steps"):
        program("((a b c){100}){100}")
    with pytest.raises(ConfigError, match="at most 60"):
        program(" ".join(f"v{number}" for number in range(61)))
