"""Runs the compiled machine over the rows of one key, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from millstream.pipelines.patterns._matcher import EXCLUDED, MATCH
from millstream.pipelines.patterns.conditions import (
    Condition,
    Scope,
    compile_conditions,
    parse_condition,
)
from millstream.pipelines.patterns.language import Node, parse_pattern, variables_of
from millstream.pipelines.patterns.matcher import Compiled
from millstream.pipelines.patterns.program import compile_pattern

END = 2**62


class Event(NamedTuple):
    kind: int
    start: int
    end: int
    number: int
    labels: tuple[str, ...]
    excluded: tuple[int, ...]  # which rows of it


def compiled(
    pattern: str | Node,
    conditions: dict[str, str] | None = None,
    kinds: dict[str, str] | None = None,
    skip_to: str = "",
    subsets: dict[str, int] | None = None,
    **settings: Any,
) -> Compiled:
    """A pattern; the bits of variables without a condition come with the rows. Conditions that
    read the row only are not evaluated here."""
    tree = parse_pattern(pattern) if isinstance(pattern, str) else pattern
    names = {key: key for key in variables_of(tree)}
    program = compile_pattern(tree, names)
    bits = {key: 1 << place for place, key in enumerate(names)}
    scope = Scope(bits | (subsets or {}), program.universal, names)
    parsed = [
        parse_condition(conditions[key], key, scope)
        if conditions and key in conditions
        else Condition("")
        for key in names
    ] + [Condition("")] * program.has_gap
    skipped = None
    if skip_to:
        skipped = (settings["skip"].removeprefix("to "), bits[skip_to])
    code = compile_conditions(parsed, kinds or {}, skipped, program.universal)
    always = 1 << len(names) if program.has_gap else 0
    return Compiled(program, code, always, **settings)


def run(
    it: Compiled,
    masks: Sequence[int],
    times: Sequence[int] | None = None,
    values: Any = None,
    nulls: Any = None,
    cuts: Sequence[int] = (),
) -> list[Event]:
    """The events of these rows, which come in pieces; `cuts` are the places."""
    machine = it.machine()
    mask = np.array(masks, np.int64)
    time = np.arange(len(mask)) if times is None else np.array(times, np.int64)
    count = len(it.code.values)
    columns = np.zeros((count, len(mask)), np.int64) if values is None else values
    missing = np.zeros((count, len(mask)), np.uint8) if nulls is None else nulls
    events: list[Any] = []
    state = b""
    first = 0
    edges = [0, *sorted(cuts), len(mask)]
    for place, (begin, end) in enumerate(pairwise(edges)):
        is_last = place == len(edges) - 2
        watermark = END if is_last else (int(time[end - 1]) - 1 if end else -END)
        found, state, _, _, following, _ = machine.scan(
            np.array([0, end - begin], np.int64), mask[begin:end], time[begin:end],
            *(np.ascontiguousarray(it[:, begin:end]) for it in (columns, missing)),
            state, np.array([0, len(state)], np.int32), np.array([first], np.int64), watermark,
            is_last,
        )  # fmt: skip
        events += found.tolist()
        first = int(following[0])
    starts, ends = ([event[at] for event in events] for at in (2, 3))
    longs = [np.array(it, np.int64) for it in (starts, ends, [event[1] for event in events])]
    labels = machine.label(
        mask, time, columns, missing, *longs,
        np.array([start == 0 for start in starts], np.uint8),
        np.array([end == len(mask) for end in ends], np.uint8),
    )  # fmt: skip
    return list(_labelled(events, labels, it.program.variables))


def _labelled(events: Any, labels: Any, names: Sequence[str]) -> Any:
    at = 0
    for _, kind, start, end, number, _ in events:
        own = labels[at : at + end - start].tolist()
        at += end - start
        shown = tuple(names[it & ~EXCLUDED] for it in own) if kind != 1 else ()
        excluded = tuple(place for place, it in enumerate(own) if kind != 1 and it & EXCLUDED)
        yield Event(kind, start, end, number, shown, excluded)


def matches(events: Sequence[Event]) -> list[Event]:
    return [it for it in events if it.kind == MATCH]
