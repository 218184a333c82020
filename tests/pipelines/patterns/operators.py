"""The operator of patterns without Spark: rows come with their mask and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millstream.pipelines.patterns.conditions import compile_conditions
from millstream.pipelines.patterns.definition import match
from millstream.pipelines.patterns.matcher import NO_LIMIT, Compiled
from millstream.pipelines.patterns.matching import (
    Ordered,
    Output,
    PatternMatch,
    ValueColumn,
)
from millstream.pipelines.patterns.measures import parse_measure
from millstream.testing.streams import Source, moments
from tests.pipelines.patterns.reference import Reference

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", TIME),
        ("u", pa.int64()),
        ("_offset", pa.int64()),
        ("_v0", pa.int64()),
        ("_mask", pa.int64()),
    ]
)
# a: u < 4, b: 2 <= u < 8, c: u >= 6
BITS: Mapping[str, Callable[[int], bool]] = {
    "a": lambda u: u < 4,
    "b": lambda u: 2 <= u < 8,
    "c": lambda u: u >= 6,
}


def row(names: Sequence[str], key: str | None, at: datetime | None, u: int) -> dict[str, Any]:
    mask = sum(1 << place for place, name in enumerate(names) if BITS[name](u))
    return {"key": key, "at": at, "u": u, "_v0": u, "_mask": mask}


def source(operator: PatternMatch) -> Source:
    names = [name for name in operator._compiled.program.variables if name in BITS]
    times = moments("2 minutes", "5 seconds")
    made = st.builds(
        row, st.just(names), st.sampled_from(["x", "y", None]), times, st.integers(0, 9)
    )
    return Source(made, watermark=("at", "10 seconds"))


def operator_of(
    pattern: str,
    where: Mapping[str, str] | None = None,
    within: str | None = "40 seconds",
    kind: type[PatternMatch] = PatternMatch,
    wants_time_outs: bool = False,
    max_rows: int | None = None,
    **rest: Any,
) -> PatternMatch:
    """Conditions in `where` come on top of those of `BITS`, and read the column u alone."""
    if rest.get("rows", "one") == "one":
        rest = {"first_at": "first(at)", "last_at": "last(at)", "n": "count(*)"} | rest
    it = match(pattern, key="key", time="at", where=where, within=within, max_rows=max_rows, **rest)
    code = compile_conditions(it.conditions, {"(u)": "long"}, it.skip_to, it.scope.universal)
    values = tuple(ValueColumn("_v0", value.shift) for value in code.values)
    parts = {}
    for place, text in enumerate(it.measures.values()):
        parsed = parse_measure(text, it.scope, f"m{place}", SCHEMA.names, is_final=it.rows == "one")
        parts |= parsed.parts
    parts = {name: replace(part, column=part.text) for name, part in parts.items()}
    always = 1 << len(it.variables) if it.program.has_gap else 0
    compiled = Compiled(
        it.program,
        code,
        always,
        NO_LIMIT if it.within_us is None else it.within_us,
        it.max_rows,
        it.skip[0],
        wants_unmatched=it.rows == "all with unmatched",
        keeps_always=it.remembers_keys,
        wants_time_outs=wants_time_outs,
    )
    output = Output(
        parts,
        ("key", "at", "u", "_offset"),
        it.rows != "one",
        it.rows != "all omitting empty",
    )
    ordered = Ordered(SCHEMA, ("key",), "at", ("_offset",), values, it.order == "arrival")
    return kind(ordered, compiled, output, "test")


def by_backtracking(
    pattern: str,
    within_s: int | None = 40,
    skip: str = "past last row",
    skip_to: str = "",
    holds: Callable[[str, int, Any, list[int]], bool] | None = None,
    order: str = "time",
) -> Callable[..., list[dict[str, Any]]]:
    """Matches as `operator_of` has them, with the measures first_at, last_at and n."""
    tree = match(pattern, time="at", within="1 s", n="count(*)").tree

    def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        columns = ("at", "_offset") if order == "time" else ("_offset",)
        ordered = sorted(events, key=lambda it: (str(it["key"]), *(it[name] for name in columns)))
        found = []
        for key, group in groupby(ordered, key=lambda it: it["key"]):
            rows = list(group)
            us = [it["u"] for it in rows]

            def is_true(name: str, place: int, taken: Any, us: list[int] = us) -> bool:
                is_first = name not in BITS or BITS[name](us[place])
                return is_first and (holds is None or holds(name, place, taken, us))

            times = [round(it["at"].timestamp()) for it in rows]
            reference = Reference(tree, is_true, times, within_s, skip, skip_to)
            for it in reference.matches():
                inside = [
                    rows[it.start + place]["at"]
                    for place, label in enumerate(it.labels)
                    if label != "then"
                ]
                found.append(
                    {
                        "key": key,
                        "m0_0": inside[0] if inside else None,
                        "m1_0": inside[-1] if inside else None,
                        "m2_0": len(inside),
                        "_kind": "final",
                    }
                )
        return found

    return expected
