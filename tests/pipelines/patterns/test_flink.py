"""PyFlink beside ours: generated patterns over streams of generated rows, some of them late.

Flink judges what it accepts and what it computes by the standard's rules. The generator leaves out:

- groups, alternation, PERMUTE, exclusion, `??`, `{,n}`, a variable twice, patterns that
  can be empty, an optional variable after a greedy one, a greedy quantifier at the end, ALL ROWS,
  PREV, NEXT, CLASSIFIER, SUBSET, RUNNING: refused;
- a greedy variable that can take a row of the next one: Flink's quantifiers do not give rows back;
- two reluctant variables, the first of which can take a row of the next one: Flink emits the match
  that ends first, the standard prefers the one with fewer rows of the first variable;
- anchors, which Flink ignores, and the default of AFTER MATCH, which is another one in Flink.

All of these are tested here, too, so that it is noticed if Flink changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest

from millstream.pipelines.results import FINAL, KIND
from millstream.pipelines.state.trial import Trial
from tests.peers.cache import PeerMissing
from tests.peers.flink import Flink, FlinkError, running_flink
from tests.pipelines.patterns.batches import SqlBatch

# For the first one: PyFlink has to be downloaded.
pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1800)]

Row = tuple[str, int, int, int]  # part, id, value, milliseconds

NAMES = "ABCD"
VALUES = range(8)
CLAUSES = 30  # of a job
JOBS = 4
ROWS = 150
DELAY_MS = 2_000
COLUMNS = ["part", "m0", "m1", "m2"]
GREEDY = ["*", "+", "?", "{1,}", "{2,}", "{1,2}", "{2,3}"]
RELUCTANT = ["*?", "+?", "{1,}?", "{1,2}?", "{2,3}?"]
OPTIONAL = ("*", "?", "*?")
MEASURES = [
    "COUNT({0}.v)", "SUM({0}.v)", "MIN({0}.v)", "MAX({0}.id)", "FIRST({0}.id)", "LAST({0}.id)",
    "FIRST({0}.id, 1)", "LAST({0}.id, 1)", "{0}.v", "LAST({0}.v) - FIRST({0}.v)",
]  # fmt: skip
# Of a variable, and of one before it.
CONDITIONS = [
    "{0}.v > LAST({1}.v)",
    "{0}.v <> FIRST({1}.v)",
    "{0}.v + {1}.v < 11",
    "SUM({1}.v) < 12",
    "COUNT({1}.v) < 3",
    "{0}.id - LAST({1}.id) < 12",
    "(LAST({0}.v, 1) IS NULL OR {0}.v >= LAST({0}.v, 1))",
    "SUM({0}.v) < 14",
    "{0}.v >= FIRST({0}.v)",
]  # fmt: skip


class Element(NamedTuple):
    """A variable of a pattern, and the values that its rows can have."""

    name: str
    quantifier: str
    values: frozenset[int]

    @property
    def is_optional(self) -> bool:
        return self.quantifier in OPTIONAL

    @property
    def is_fixed(self) -> bool:
        return self.quantifier in ("", "{2}")


def _quantifiers(rng: random.Random) -> list[str]:
    """Of a pattern that cannot be empty, has nothing optional after a greedy variable, and does not
    end greedily."""
    while True:
        count = rng.randint(1, 4)
        chosen = [rng.choice(["", "", "{2}", *GREEDY, *RELUCTANT]) for _ in range(count)]
        is_refused = chosen[-1] in GREEDY or any(
            it in GREEDY and after in OPTIONAL for it, after in pairwise(chosen)
        )
        if not is_refused and not all(it in OPTIONAL for it in chosen):
            return chosen


def _elements(rng: random.Random) -> list[Element]:
    """Without rows that two neighbours can take, unless only one varies, which is reluctant."""
    quantifiers = _quantifiers(rng)
    varying = [it for it in quantifiers if it not in ("", "{2}")]
    may_overlap = len(varying) <= 1 and all(it in RELUCTANT for it in varying)
    while True:
        found = [
            Element(name, it, frozenset(rng.sample(VALUES, rng.randint(2, 5))))
            for name, it in zip(NAMES, quantifiers, strict=False)
        ]
        if may_overlap or all(
            it.is_fixed or not it.values & other.values
            for at, it in enumerate(found)
            for other in _next(found[at + 1 :])
        ):
            return found


def _next(elements: Sequence[Element]) -> Iterator[Element]:
    """The variables that the next row can belong to."""
    for it in elements:
        yield it
        if not it.is_optional:
            return


def clause(rng: random.Random) -> str:
    """The same for Flink and for us."""
    elements = _elements(rng)
    defined = []
    for at, it in enumerate(elements):
        condition = f"{it.name}.v IN ({', '.join(map(str, sorted(it.values)))})"
        if at and rng.random() < 0.4:
            before = rng.choice(elements[:at]).name
            condition += f" AND {rng.choice(CONDITIONS).format(it.name, before)}"
        defined.append(f"{it.name} AS {condition}")
    skips = ["PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW"]
    required = [it.name for it in elements if not it.is_optional]
    skips += [f"TO {side} {it}" for it in required[1:] for side in ("FIRST", "LAST")]
    measures = [rng.choice(MEASURES).format(rng.choice(elements).name) for _ in range(3)]
    shown = ", ".join(f"{it} AS m{at}" for at, it in enumerate(measures))
    within = f"WITHIN INTERVAL '{rng.randint(2, 30)}' SECOND" if rng.random() < 0.7 else ""
    return (
        f"PARTITION BY part ORDER BY moment, id MEASURES {shown} ONE ROW PER MATCH "
        f"AFTER MATCH SKIP {rng.choice(skips)} "
        f"PATTERN ({' '.join(it.name + it.quantifier for it in elements)}) {within} "
        f"DEFINE {', '.join(defined)}"
    )


def rows_of(rng: random.Random) -> list[Row]:
    """In the order of arrival; some have the same time, and some are late."""
    return [
        (
            rng.choice("pq"),
            at,
            rng.choice(VALUES),
            max(0, at * 500 - rng.choice([0, 0, 0, 500, 1500, 4000])),
        )
        for at in range(ROWS)
    ]


def ours(text: str, rows: Sequence[Row], delay_ms: int, cuts: Sequence[int]) -> list[Any]:
    """A stream that is cut at these rows, and before each late one."""
    given = [{"part": it[0], "id": it[1], "v": it[2], "moment": it[3] * 1000} for it in rows]
    batch = SqlBatch(text, given)
    trial, batches = Trial(batch.operator), batch.rows()
    watermarks = [
        max((it[3] for it in rows[:at]), default=-1) - delay_ms for at in range(len(rows))
    ]
    late = [at for at, it in enumerate(rows) if it[3] <= watermarks[at]]
    places = sorted({0, *cuts, *late})
    found = [
        trial.feed({"events": batches.slice(at, end - at)}, watermarks[at] * 1000)
        for at, end in zip(places, [*places[1:], len(rows)], strict=True)
    ]
    found.append(trial.finish())
    final = [it.filter(pc.equal(it.column(KIND), FINAL)) for it in found]
    return [tuple(it.values()) for it in batch.shown(final)]


@pytest.fixture(scope="module")
def flink() -> Iterator[Flink]:
    try:
        with running_flink() as it:
            yield it
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(JOBS))
def test_results_are_those_of_flink(flink: Flink, seed: int) -> None:
    rng = random.Random(seed)
    clauses, rows = [clause(rng) for _ in range(CLAUSES)], rows_of(rng)
    expected = flink.match(clauses, rows, COLUMNS, DELAY_MS)
    assert sum(map(bool, expected)) > CLAUSES // 2
    cuts = rng.sample(range(ROWS), 10)
    for text, theirs in zip(clauses, expected, strict=True):
        assert sorted(ours(text, rows, DELAY_MS, cuts), key=str) == sorted(theirs, key=str), text


def in_seconds(values: Sequence[int]) -> list[Row]:
    return [("p", at, it, at * 1000) for at, it in enumerate(values)]


def text_of(pattern: str, define: str, skip: str = "AFTER MATCH SKIP PAST LAST ROW") -> str:
    last = pattern.rstrip("*+?{}123,")[-1]
    return (
        f"PARTITION BY part ORDER BY moment, id MEASURES FIRST(A.id) AS m0, LAST({last}.id) AS m1, "
        f"COUNT(A.v) AS m2 ONE ROW PER MATCH {skip} PATTERN ({pattern}) DEFINE {define}"
    )


# A clause, rows, our matches and Flink's.
DIFFERENCES = {
    "anchors are ignored": (
        text_of("^ A", "A AS A.v > 0"),
        [1, 2, 3], [("p", 0, 0, 1)], [("p", 0, 0, 1), ("p", 1, 1, 1), ("p", 2, 2, 1)],
    ),
    "greedy quantifiers keep their rows": (
        text_of("A+ B", "A AS A.v > 0, B AS B.v > 0"),
        [1, 2, 3], [("p", 0, 2, 2)], [],
    ),
    "also if the row after them does not fit": (
        text_of("A B* C", "B AS B.v < 15, C AS C.v > 12 AND C.v < 50"),
        [11, 12, 13, 14, 99], [("p", 0, 3, 1)], [],
    ),
    "the match that ends first is preferred": (
        text_of("A B*? C D*? E", "A AS A.v = 0, C AS C.v >= 1, D AS D.v <> 4, E AS E.v > C.v"),
        [0, 4, 1, 2, 9], [("p", 0, 4, 1)], [("p", 0, 3, 1)],
    ),
    "the next match begins in the next row by default": (
        text_of("A B", "A AS A.v > 0, B AS B.v > 0", skip=""),
        [1, 2, 3], [("p", 0, 1, 1)], [("p", 0, 1, 1), ("p", 1, 2, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_difference_from_flink_is_the_declared_one(flink: Flink, name: str) -> None:
    text, values, ours_expected, theirs_expected = DIFFERENCES[name]
    rows = in_seconds(values)
    assert ours(text, rows, 0, ()) == ours_expected
    (theirs,) = flink.match([text], rows, COLUMNS)
    assert theirs == theirs_expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(A B)+ C", "A | B", "PERMUTE(A, B)", "A {- B -} C", "A?? B", "A{,2} B",
        "A B A", "A*", "A B+", "A+ B? C",
    ],
)  # fmt: skip
def test_pattern_that_flink_refuses_is_accepted(flink: Flink, pattern: str) -> None:
    """A refusal takes no job."""
    text = text_of("A", ", ".join(f"{it} AS {it}.v > 0" for it in "ABC" if it in pattern))
    text = text.replace("PATTERN (A)", f"PATTERN ({pattern})")
    assert ours(text, in_seconds([1, 2, 3]), 0, ())
    with pytest.raises(FlinkError):
        flink.match([text], in_seconds([1, 2, 3]), COLUMNS)
