"""The machine against the reference matcher, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.patterns._matcher import MATCH, TIMED_OUT, TOO_LONG, UNMATCHED
from millstream.pipelines.patterns.language import parse_pattern, variables_of
from tests.drawing import draws
from tests.pipelines.patterns.machines import compiled, matches, run
from tests.pipelines.patterns.reference import Found, Reference

NAMES = "abc"
quantifiers = st.sampled_from(
    ["*", "+", "?", "{2}", "{1,}", "{1,2}", "{,2}", "*?", "+?", "??", "{1,2}?", "{2,}?", "{,2}?"]
)


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda it: f"({it})")
    return st.one_of(
        st.tuples(group, quantifiers).map("".join),
        st.lists(group, min_size=2, max_size=3).map(" ".join),
        st.lists(group, min_size=2, max_size=3).map(" | ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda it: f"permute({', '.join(it)})"),
        st.tuples(group, group).map(" then ".join),
    )


patterns = st.recursive(
    st.sampled_from(["a", "b", "c", "a", "b", "c", "()", "^", "$"]), _grow, max_leaves=6
).map(lambda it: f"{it} | a" if not any(name in it.split() for name in NAMES) else it)
rows = st.lists(st.integers(0, 7), max_size=8)


@settings(max_examples=draws(200), deadline=None)
@given(
    pattern=patterns,
    masks=rows,
    gaps=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    within=st.one_of(st.none(), st.integers(1, 8)),
    skip=st.sampled_from(["past last row", "to next row"]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
)
def test_machine_equals_backtracking_wherever_rows_are_cut(
    pattern: str, masks: list[int], gaps: list[int], within: Any, skip: Any, cuts: list[int]
) -> None:
    times = np.cumsum(gaps)[: len(masks)].tolist()
    tree = parse_pattern(pattern)
    limit = {} if within is None else {"within_us": within}
    it = compiled(tree, skip=skip, keeps_always=True, **limit)
    # bits follow the order in which the pattern names the variables
    place = {name: at for at, name in enumerate(it.program.variables)}
    moved = [
        sum(1 << place[name] for at, name in enumerate(NAMES) if name in place and mask >> at & 1)
        for mask in masks
    ]
    found = matches(run(it, moved, times, cuts=[cut for cut in cuts if cut <= len(masks)]))

    def holds(name: str, row: int, _: Any) -> bool:
        return bool(masks[row] >> NAMES.index(name) & 1)

    expected = Reference(tree, holds, times, within, skip).matches()
    assert [Found(it.start, it.end, it.labels) for it in found] == expected


WHERE = {"b": "x > last(a.x)", "c": "x >= avg(x) and (x <> first(b.x, 1) or count(a) < 2)"}


@settings(max_examples=draws(200), deadline=None)
@given(
    pattern=patterns,
    xs=st.lists(st.integers(0, 5), max_size=8),
    skip=st.sampled_from(["past last row", "to next row"]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
)
def test_conditions_on_the_match_equal_backtracking(
    pattern: str, xs: list[int], skip: Any, cuts: list[int]
) -> None:
    tree = parse_pattern(pattern)
    names = [name for name in variables_of(tree) if name in NAMES]
    where = {name: text for name, text in WHERE.items() if name in names}
    subsets = {name: 0 for name in NAMES if name not in names}  # variables that are never reached
    it = compiled(tree, where, {"(x)": "long"}, subsets=subsets, skip=skip, keeps_always=True)
    values = np.array([xs] * len(it.code.values), np.int64).reshape(len(it.code.values), len(xs))
    inside = [cut for cut in cuts if cut <= len(xs)]
    found = matches(run(it, [7] * len(xs), values=values, cuts=inside))

    def holds(name: str, row: int, taken: Any) -> bool:
        seen = {key: [xs[at] for label, at in taken if label == key] for key in NAMES}
        if name == "b":
            return bool(seen["a"]) and xs[row] > seen["a"][-1]
        if name == "c":
            everything = [xs[at] for label, at in taken if label != "then"]
            is_other = len(seen["b"]) > 1 and xs[row] != seen["b"][1]
            is_near = sum(everything) / len(everything) <= xs[row]
            return is_near and (is_other or len(seen["a"]) < 2)
        return True

    expected = Reference(tree, holds, range(len(xs)), skip=skip).matches()
    assert [Found(it.start, it.end, it.labels) for it in found] == expected


@settings(max_examples=draws(100), deadline=None)
@given(
    pattern=st.sampled_from(["a b+ c", "a then c", "a (b | c)+ a{2}", "a{2,} b", "b{4} c"]),
    labels=st.lists(st.sampled_from("aaabbbbbb cc"), min_size=30, max_size=60),
    gaps=st.lists(st.integers(-6, 9), min_size=60, max_size=60),
    within=st.integers(5, 60),
    skip=st.sampled_from(["past last row", "to next row"]),
    cuts=st.lists(st.integers(1, 60), max_size=4),
    in_order=st.booleans(),
)
def test_attempts_that_are_open_together_equal_backtracking(
    pattern: str, labels: list[str], gaps: list[int], within: int, skip: Any, cuts: list[int],
    in_order: bool,
) -> None:  # fmt: skip
    """Attempts with the same threads are moved over rows as one, and end one by one."""
    times = np.cumsum(np.abs(gaps) if in_order else gaps)[: len(labels)].tolist()
    tree = parse_pattern(pattern)
    it = compiled(tree, skip=skip, keeps_always=True, within_us=within)
    place = {name: at for at, name in enumerate(it.program.variables)}
    masks = [1 << place[name] if name in place else 0 for name in labels]
    # The watermark of a cut is the time before it: rows after it must not be older.
    inside = [cut for cut in cuts if cut <= len(masks)] if in_order else []
    found = matches(run(it, masks, times, cuts=inside))

    def holds(name: str, row: int, _: Any) -> bool:
        return labels[row] == name

    expected = Reference(tree, holds, times, within, skip).matches()
    assert [Found(it.start, it.end, it.labels) for it in found] == expected


def test_attempts_at_other_places_of_the_pattern_are_apart() -> None:
    (found,) = matches(run(compiled("b{4} c"), [1, 1, 1, 1, 1, 2]))
    assert (found.start, found.end) == (1, 6)


def test_time_that_goes_back_ends_attempts_by_their_own_time() -> None:
    """The second attempt is over with the third row, the first is not."""
    it = compiled("a then c", within_us=10, skip="to next row")
    found = matches(run(it, [1, 1, 0, 2], times=[20, 12, 23, 21]))
    assert [(match.start, match.end) for match in found] == [(0, 4)]


def test_events_are_in_the_order_of_their_first_rows() -> None:
    it = compiled("a b+ c", within_us=3, wants_unmatched=True, wants_time_outs=True, max_rows=10)
    events = run(it, [1, 2, 2, 0, 1, 2, 4, 1], times=[0, 1, 2, 3, 4, 5, 6, 7])
    assert [(event.kind, event.start, event.end) for event in events] == [
        (TIMED_OUT, 0, 3),
        (UNMATCHED, 0, 3),
        (UNMATCHED, 3, 4),
        (MATCH, 4, 7),
        (TIMED_OUT, 7, 8),
        (UNMATCHED, 7, 8),
    ]
    assert events[0].labels == ("a", "b", "b")


@pytest.mark.parametrize("cut", range(7))
def test_rows_without_a_match_are_the_same_wherever_rows_are_cut(cut: int) -> None:
    it = compiled("a b+ c", wants_unmatched=True)
    events = run(it, [1, 2, 0, 1, 2, 4, 1], cuts=[cut])
    unmatched = [row for it in events if it.kind == UNMATCHED for row in range(it.start, it.end)]
    assert unmatched == [0, 1, 2, 6]


def test_attempts_have_a_limit_of_rows() -> None:
    it = compiled("a b+ c", max_rows=3)
    events = run(it, [1, 2, 2, 2, 4])
    assert [(event.kind, event.start, event.end) for event in events] == [(TOO_LONG, 0, 3)]
    assert matches(run(it, [1, 2, 4])) != []


def test_attempts_have_a_limit_of_threads() -> None:
    """Every subset of the rows has its own sum, so no two threads are the same."""
    it = compiled("(a | b)+ c", {"c": "sum(a.x) = -1"}, {"(x)": "long"})
    xs = 2 ** np.arange(14).reshape(1, -1)
    events = run(it, [7] * 14, values=xs)
    assert {event.kind for event in events} == {TOO_LONG}


def test_state_of_another_version_is_refused() -> None:
    machine = compiled("a b").machine()
    nothing = np.empty(0, np.int64)
    empty = np.empty((0, 0), np.int64), np.empty((0, 0), np.uint8)
    bounds, first = np.zeros(2, np.int64), np.zeros(1, np.int64)
    for state, problem in (
        (b"\1" + bytes(9), "another version"),
        (b"\2\0", "too short"),
        (b"\2\0\0\0\0\6\0\0\0", "too short"),
        (b"\2" + b"\xff" * 20, "too short"),
        (b"\2\0\0\0\0\2\0\0\0\2\x20", "another program"),
    ):
        ends = np.array([0, len(state)], np.int32)
        with pytest.raises(ValueError, match=problem):
            machine.scan(bounds, nothing, nothing, *empty, state, ends, first, 0, False)
    ends = np.array([4, 20], np.int32)
    with pytest.raises(ValueError, match="not where it should be"):
        machine.scan(bounds, nothing, nothing, *empty, b"\2" * 10, ends, first, 0, False)
