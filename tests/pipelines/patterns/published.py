"""Cases of the standard: rows, a MATCH_RECOGNIZE clause and its results.

They cover what the documentation and the tests of other engines show (Trino's, Oracle's and
Flink's), with rows of their own. `test_trino.py` checks the results with Trino.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ZIGZAG = ((1, 90), (2, 80), (3, 70), (4, 80), (5, 90), (6, 50), (7, 40), (8, 60))
FALLING = ((1, 90), (2, 80), (3, 70), (4, 70))
TWO_VALLEYS = ((1, 90), (2, 80), (3, 70), (4, 80), (5, 70), (6, 80))
LABELS = "MEASURES MATCH_NUMBER() AS m, CLASSIFIER() AS c, LAST(value) AS v"
DOWN_UP = "DEFINE B AS B.value < PREV(B.value), C AS C.value > PREV(C.value)"


@dataclass(frozen=True)
class Case:
    """`expected` are the values of `columns`; none if the query `fails`."""

    name: str
    text: str
    columns: tuple[str, ...] = ()
    expected: tuple[tuple[Any, ...], ...] = ()
    rows: tuple[tuple[int, Any], ...] = ZIGZAG
    fails: str = ""

    def dicts(self) -> list[dict[str, Any]]:
        return [{"id": number, "value": value} for number, value in self.rows]


def labelled(name: str, pattern: str, shown: str, rows: Any = ZIGZAG, define: str = DOWN_UP,
             more: str = "ALL ROWS PER MATCH", subset: str = "") -> Case:  # fmt: skip
    """`shown` are id, number of the match and variable of each row, as in `1:1A 2:1B`; `-` for an
    empty match, and `!` for a row without a match."""
    expected = []
    for it in shown.split():
        number, label = it.split(":")
        if label == "!":
            expected.append((int(number), None, None))
        else:
            expected.append((int(number), int(label[:-1]), None if label[-1] == "-" else label[-1]))
    text = f"ORDER BY id {LABELS} {more} PATTERN ({pattern}) {subset} {define}"
    return Case(name, text, ("id", "m", "c"), tuple(expected), rows)


def measured(name: str, measure: str, values: tuple[Any, ...], rows: Any, pattern: str = "A+",
             mode: str = "ALL ROWS PER MATCH", define: str = "DEFINE A AS true",
             ) -> Case:  # fmt: skip
    text = f"ORDER BY id MEASURES {measure} AS it {mode} PATTERN ({pattern}) {define}"
    return Case(name, text, ("it",), tuple((it,) for it in values), rows)


ONLY_B = "DEFINE B AS B.value < PREV(B.value)"
ALL = "1:1A 2:1B 3:1B 4:1C 5:1C 6:2A 7:2B 8:2C"
EMPTY = "1:1- 2:2- 3:3- 4:4-"
_PATTERNS = (
    labelled("falls and rises", "A B+ C+", ALL),
    labelled("excluded", "A {- B+ -} C+", "1:1A 4:1C 5:1C 6:2A 8:2C"),
    labelled("excluded twice", "{- A -} {- B+ -} C+", "4:1C 5:1C 8:2C"),
    labelled("excluded within excluded", "A {- {- B+ -} C+ -}", "1:1A 6:2A"),
    labelled("all excluded", "{- A B+ C+ -}", ""),
    labelled("nothing excluded", "A B+ {- ()* -} C+", ALL),
    labelled("excluded and repeated", "A {- B -}{1,2} {- C -}{1,2}", "1:1A 6:2A"),
    labelled("empty first", "()* | B", EMPTY, FALLING, ONLY_B),
    labelled("empty many times", "(){5,} | B", EMPTY, FALLING, ONLY_B),
    labelled("empty last", "B | ()*", "1:1- 2:2B 3:3B 4:4-", FALLING, ONLY_B),
    labelled("empty in a loop", "(B ()*)*", "1:1- 2:2B 3:2B 4:3-", FALLING, ONLY_B),
    labelled("empty in a reluctant loop", "(B ()*)*?", EMPTY, FALLING, ONLY_B),
    labelled("repeated start", "^* | B", EMPTY, FALLING, ONLY_B),
    labelled("start at least once", "^+ | B", "1:1- 2:2B 3:3B", FALLING, ONLY_B),
    labelled("start before a row", "^* A B", "1:1A 2:1B", FALLING, ONLY_B),
    labelled("end at least once", "$+ | B", "2:1B 3:2B", FALLING, ONLY_B),
    labelled("end behind a row", "B A $+", "3:1B 4:1A", FALLING, ONLY_B),
    labelled("start not at the start", "A ^ B", "", FALLING, ONLY_B),
    labelled("permuted", "PERMUTE(B, C)", "3:1B 4:1C 5:2C 6:2B 7:3B 8:3C"),
    labelled("left alternative first", "A | B | C", "1:1A 2:2A 3:3A 4:4A", FALLING,
             "DEFINE B AS value < 80, C AS value = 90"),
    labelled("reluctant", "A B+?", "1:1A 2:1B", FALLING, ONLY_B),
    labelled("at most two, reluctant", "B{,2}? C", "2:1B 3:1B 4:1C 5:2C 6:3B 7:3B 8:3C"),
)  # fmt: skip
_NO_D = "DEFINE B AS value < PREV(value), C AS value > PREV(value), D AS false"
_TO_C = "1:1A 2:1B 3:1B 4:1C 4:2A 5:2B 6:2C"


def skipping(name: str, skip: str, shown: str, fails: str = "") -> Case:
    more = f"ALL ROWS PER MATCH AFTER MATCH SKIP {skip}"
    case = labelled(name, "A B+ C+ D?", shown, TWO_VALLEYS, _NO_D, more, "SUBSET U = (C, D)")
    return Case(case.name, case.text, case.columns, case.expected, case.rows, fails)


_SKIPS = (
    skipping("past last row", "PAST LAST ROW", "1:1A 2:1B 3:1B 4:1C"),
    skipping("to next row", "TO NEXT ROW",
             "1:1A 2:1B 3:1B 4:1C 2:2A 3:2B 4:2C 4:3A 5:3B 6:3C"),
    skipping("to first", "TO FIRST C", _TO_C),
    skipping("to last", "TO LAST B", _TO_C),
    skipping("to a variable, in lower case", "TO b", _TO_C),
    skipping("to a subset", "TO U", _TO_C),
    skipping("to the first row", "TO A", "", "first row of a match"),
    skipping("to an absent variable", "TO D", "", "no row of the variable"),
)  # fmt: skip
_OUTPUT = (
    labelled("empty matches are shown", "B*", "1:1- 2:2B 3:2B 4:3-", FALLING, ONLY_B),
    labelled("empty matches are omitted", "B*", "2:2B 3:2B", FALLING, ONLY_B,
             "ALL ROWS PER MATCH OMIT EMPTY MATCHES"),
    labelled("unmatched rows", "B+", "1:! 2:1B 3:1B 4:!", FALLING, ONLY_B,
             "ALL ROWS PER MATCH WITH UNMATCHED ROWS"),
    labelled("unmatched rows of overlapping matches", "A B{2}",
             "1:! 2:1A 3:1B 4:1B 3:2A 4:2B 5:2B 6:!",
             ((1, 100), (2, 100), (3, 90), (4, 80), (5, 70), (6, 100)), ONLY_B,
             "ALL ROWS PER MATCH WITH UNMATCHED ROWS AFTER MATCH SKIP TO NEXT ROW"),
    Case("one row for an empty match",
         f"ORDER BY id {LABELS} PATTERN (B*) {ONLY_B}", ("m", "v", "c"),
         ((1, None, None), (2, 70, "B"), (3, None, None)), FALLING),
    labelled("names in quotes keep their case", 'a "b"+ C+', "1:1A 2:1b 3:1b 4:1C",
             ((1, 90), (2, 80), (3, 70), (4, 80)),
             'DEFINE "b" AS "b".value < PREV("b".value), C AS C.value > PREV(C.value)'),
    Case("classifier of a subset",
         "ORDER BY id MEASURES MATCH_NUMBER() AS m, CLASSIFIER(U) AS u, CLASSIFIER(W) AS w "
         "ALL ROWS PER MATCH PATTERN ((L | H) A) SUBSET U = (L, H), W = (A, L, H) "
         "DEFINE A AS A.value = 80, L AS L.value < 80, H AS H.value > 80", ("id", "m", "u", "w"),
         ((1, 1, "H", "H"), (2, 1, "H", "A"), (3, 2, "L", "L"), (4, 2, "L", "A")),
         ((1, 90), (2, 80), (3, 70), (4, 80))),
)  # fmt: skip
TENS = ((1, 10), (2, 20), (3, 30))
_MEASURES = tuple(
    measured(measure, measure, values, TENS)
    for measure, values in (
        ("value", (10, 20, 30)),
        ("RUNNING LAST(value)", (10, 20, 30)),
        ("FINAL LAST(value)", (30, 30, 30)),
        ("FIRST(value)", (10, 10, 10)),
        ("FINAL LAST(value, 2)", (10, 10, 10)),
        ("FIRST(value, 2)", (None, None, 30)),
        ("LAST(value, 10)", (None, None, None)),
        ("PREV(value)", (None, 10, 20)),
        ("NEXT(value)", (20, 30, None)),
        ("NEXT(FIRST(value), 2)", (30, 30, 30)),
        ("NEXT(FIRST(value), 10)", (None, None, None)),
        ("PREV(FIRST(value, 10), 2)", (None, None, None)),
        ("PREV(LAST(value, 10), 2)", (None, None, None)),
        ("sum(value)", (10, 30, 60)),
        ("FINAL count(*)", (3, 3, 3)),
        ("count()", (1, 2, 3)),
        ("RUNNING avg(A.value)", (10.0, 15.0, 20.0)),
        ("NEXT(CLASSIFIER())", ("A", "A", None)),
    )
)
FLAT = ((1, 10), (2, 20), (3, 30), (4, 30), (5, 40))
_NEIGHBOURS = tuple(
    measured(measure, measure, (value,), FLAT, "A B", "ONE ROW PER MATCH",
             "DEFINE B AS B.value = PREV(B.value)")
    for measure, value in (
        ("PREV(B.value, 4)", None),
        ("PREV(B.value, 3)", 10),
        ("PREV(B.value, 2)", 20),
        ("NEXT(B.value, 1)", 40),
        ("NEXT(B.value, 2)", None),
    )
)  # fmt: skip
ONES = ((1, 1), (2, 1))
COUNTED = tuple((it, it) for it in range(1, 7))
_READING = (
    labelled("reads A", "(A | B)* X", "1:1A 2:1X", ONES, "DEFINE X AS value = A.value"),
    labelled("reads B", "(A | B)* X", "1:1B 2:1X", ONES, "DEFINE X AS value = B.value"),
    labelled("reads neighbours of A and B", "(A | B)* X", "1:1B 2:1A 3:1A 4:1A 5:1B 6:1X", COUNTED,
             "DEFINE X AS value = PREV(LAST(A.value), 3) + FIRST(A.value) "
             "+ PREV(LAST(B.value), 2)"),
    labelled("reads variables", "(A | B)* X $", "1:1B 2:1B 3:1A 4:1A 5:1X", COUNTED[:5],
             "DEFINE X AS PREV(CLASSIFIER(U), 1) = 'A' AND LAST(CLASSIFIER(), 3) = 'B' "
             "AND FIRST(CLASSIFIER(U)) = 'B'", subset="SUBSET U = (A, B)"),
    labelled("the last of many ways", "(A | B)+ L", "1:1B 2:1B 3:1B 4:1B 5:1B 6:1L", COUNTED,
             "DEFINE L AS " + " AND ".join(f"FIRST(CLASSIFIER(), {it}) = 'B'" for it in range(5))),
    labelled("no variable behind the row", "A+", "", COUNTED,
             "DEFINE A AS NEXT(CLASSIFIER()) = 'A'"),
    labelled("exponential", "(A+)+ B", "", tuple((it, 1) for it in range(20)),
             "DEFINE A AS value = 1, B AS value = 2"),
    labelled("sum includes the row", "A+", "1:1A 2:1A 3:2A 4:3A", COUNTED,
             "DEFINE A AS sum(value) < 5"),
    labelled("sums of two variables", "(A | B)+", "1:1A 2:1B 3:1A 4:1B 5:1A 6:1B", COUNTED,
             "DEFINE A AS sum(A.value) - A.value <= coalesce(sum(B.value), 0)"),
    labelled("among values of the match", "A B", "2:1A 3:1B", (*TENS[:2], (3, 20)),
             "DEFINE B AS value IN (5, A.value)"),
)  # fmt: skip
_STOCKS = ((1, 12), (2, 17), (3, 19), (4, 21), (5, 25), (6, 12), (7, 15), (8, 20), (9, 24),
           (10, 25), (11, 19), (12, 15), (13, 25), (14, 25), (15, 14), (16, 12), (17, 14),
           (18, 24), (19, 23), (20, 22))  # fmt: skip
_V = "DEFINE DOWN AS DOWN.value < PREV(DOWN.value), UP AS UP.value > PREV(UP.value)"
_SHAPES = (
    Case("V shape", "ORDER BY id MEASURES STRT.id AS began, LAST(DOWN.id) AS bottom, "
         "LAST(UP.id) AS ended AFTER MATCH SKIP TO LAST UP "
         f"PATTERN (STRT DOWN+ UP+) {_V}", ("began", "bottom", "ended"),
         ((5, 6, 10), (10, 12, 13), (14, 16, 18)), _STOCKS),
    Case("W shape", "ORDER BY id MEASURES STRT.id AS began, UP.id AS ended "
         f"AFTER MATCH SKIP TO LAST UP PATTERN (STRT DOWN+ UP+ DOWN+ UP+) {_V}",
         ("began", "ended"), ((5, 13),), _STOCKS),
    Case("running counts", "ORDER BY id MEASURES FINAL count(UP.value) AS ups, "
         "FINAL count(value) AS total, RUNNING count(value) AS so_far, "
         "value - STRT.value AS difference ALL ROWS PER MATCH AFTER MATCH SKIP TO LAST UP "
         f"PATTERN (STRT DOWN+ UP+) {_V}", ("id", "ups", "total", "so_far", "difference"),
         ((1, 2, 5, 1, 0), (2, 2, 5, 2, -10), (3, 2, 5, 3, -20), (4, 2, 5, 4, -10),
          (5, 2, 5, 5, 0), (5, 1, 4, 1, 0), (6, 1, 4, 2, -40), (7, 1, 4, 3, -50), (8, 1, 4, 4, -30)
          )),
)  # fmt: skip
CASES = (
    *_PATTERNS, *_SKIPS, *_OUTPUT, *_MEASURES, *_NEIGHBOURS, *_READING, *_SHAPES
)  # fmt: skip
