"""Trino beside ours: the published cases, and generated patterns over generated rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.patterns import recognize
from millstream.pipelines.state.trial import Trial
from tests.peers.cache import PeerMissing
from tests.peers.trino import Trino, TrinoError, running_trino
from tests.pipelines.patterns.batches import SqlBatch, run_sql
from tests.pipelines.patterns.published import CASES, Case

# For the first one: Trino has to be downloaded.
pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1200)]

# In this version of Trino, a running FIRST sees rows after the current one.
WRONG = ("FIRST(value, 2)",)
NAMES = "ABC"
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,}", "{1,2}", "{,2}", "*?", "+?", "??", "{1,2}?", "{2,}?"]
CONDITIONS = [
    "value < 3",
    "value >= 2",
    "value > PREV(value)",
    "value <= NEXT(value)",
    "value > FIRST(value)",
    "value >= avg(value)",
    "value <> LAST(A.value)",
    "count(A.*) <= 2 AND value < 5",
    "sum(A.value) - value < 4",
    "PREV(CLASSIFIER()) = 'A' OR value = 1",
    "LAST(CLASSIFIER(), 1) = 'B' OR value < 4",
    "FIRST(CLASSIFIER()) IN ('A', 'C')",
    "PREV(LAST(A.value), 1) IS NULL OR value > 2",
    "max(A.value) > value OR count(*) < 3",
    "NOT (value = 2 AND PREV(value, 2) = value)",
]
MEASURES = [
    "MATCH_NUMBER()",
    "CLASSIFIER()",
    "CLASSIFIER(U)",
    "count(*)",
    "count(A.value)",
    "sum(value)",
    "FINAL sum(A.value)",
    "RUNNING max(value)",
    "min(U.value)",
    "value",
    "A.value",
    "FINAL FIRST(value, 1)",
    "FINAL LAST(A.value)",
    "LAST(value, 1)",
    "PREV(value)",
    "NEXT(A.value)",
    "PREV(FIRST(A.value, 1), 2)",
    "PREV(CLASSIFIER())",
    "array_join(array_agg(CLASSIFIER()), '')",
]
OURS = {"array_join(array_agg(CLASSIFIER()), '')": "array_to_string(array_agg(CLASSIFIER()), '')"}


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda it: f"({it})")
    return st.one_of(
        st.tuples(group, st.sampled_from(QUANTIFIERS)).map("".join),
        st.lists(group, min_size=2, max_size=3).map(" ".join),
        st.lists(group, min_size=2, max_size=3).map(" | ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda it: f"PERMUTE({', '.join(it)})"),
        inner.map(lambda it: f"{{- {it} -}}"),
    )


patterns = st.recursive(st.sampled_from([*NAMES, *NAMES, "()", "^", "$"]), _grow, max_leaves=6)
rows = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 5)), min_size=1, max_size=9).map(
    lambda them: [{"part": it[0], "id": at, "value": it[1]} for at, it in enumerate(them)]
)


@st.composite
def clauses(draw: Any) -> tuple[str, str]:
    """A text for us, and the same for Trino."""
    pattern = draw(patterns)
    names = [it for it in NAMES if it in pattern.replace("PERMUTE", "")]
    if names != list(NAMES):
        pattern = " | ".join([f"({pattern})", *(it for it in NAMES if it not in names)])
    within = draw(st.one_of(st.none(), st.integers(1, 6)))
    chosen = {it: draw(st.sampled_from(CONDITIONS)) for it in NAMES if draw(st.booleans())}
    limited = dict(chosen)
    if within is not None:
        limit = f"id - FIRST(id) < {within}"
        limited = {it: f"({chosen[it]}) AND {limit}" if it in chosen else limit for it in NAMES}
    limited = limited or {"A": "true"}
    mode = draw(st.sampled_from(["ONE ROW", "ALL ROWS", "ALL ROWS", "OMIT", "UNMATCHED"]))
    if "{-" in pattern and mode == "UNMATCHED":
        mode = "ALL ROWS"
    modes = {
        "OMIT": "ALL ROWS PER MATCH OMIT EMPTY MATCHES",
        "UNMATCHED": "ALL ROWS PER MATCH WITH UNMATCHED ROWS",
    }
    skip = draw(
        st.sampled_from(
            ["PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW", "TO FIRST B", "TO LAST U"]
        )
    )
    measures = draw(st.lists(st.sampled_from(MEASURES), min_size=1, max_size=4))

    def text(defined: dict[str, str], limit: str, named: dict[str, str]) -> str:
        listed = [f"{named.get(it, it)} AS m{at}" for at, it in enumerate(measures)]
        define = ", ".join(f"{name} AS {it}" for name, it in defined.items())
        return (
            f"PARTITION BY part ORDER BY id MEASURES {', '.join(listed)} "
            f"{modes.get(mode, f'{mode} PER MATCH')} AFTER MATCH SKIP {skip} "
            f"PATTERN ({pattern}) {limit} SUBSET U = (A, B)"
            + (f" DEFINE {define}" if define else "")
        )

    own = "" if within is None else f"WITHIN INTERVAL '{within}' MICROSECOND"
    return text(chosen, own, OURS), text(limited, "", {})


@pytest.fixture(scope="module")
def trino() -> Iterator[Trino]:
    try:
        with running_trino() as it:
            yield it
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "case", [it for it in CASES if it.name not in WRONG], ids=lambda it: it.name
)
def test_published_results_are_those_of_trino(trino: Trino, case: Case) -> None:
    values = ", ".join(f"({number}, {value})" for number, value in case.rows)
    columns = ", ".join(case.columns or ("*",))
    query = f"SELECT {columns} FROM (VALUES {values}) AS t(id, value) MATCH_RECOGNIZE ({case.text})"
    if case.fails:
        with pytest.raises(TrinoError, match="SKIP failed"):
            trino.query(query)
        return
    assert sorted(trino.query(query), key=str) == sorted(case.expected, key=str)


def ask(trino: Trino, text: str, given: list[dict[str, Any]], columns: str) -> list[Any]:
    shown = ", ".join(
        "(" + ", ".join(repr(it) if it is not None else "null" for it in row.values()) + ")"
        for row in given
    )
    names = ", ".join(given[0])
    return trino.query(
        f"SELECT {columns} FROM (VALUES {shown}) AS t({names}) MATCH_RECOGNIZE ({text}) AS m"
    )


@pytest.mark.timeout(1200)  # a query takes a tenth of a second on an idle machine
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=clauses(), given_rows=rows)
def test_results_are_those_of_trino(
    trino: Trino, texts: tuple[str, str], given_rows: list[dict[str, Any]]
) -> None:
    ours, theirs = texts
    measures = [f"m{at}" for at in range(4) if f"AS m{at}" in ours]
    columns = ["part", *measures] if "ONE ROW" in ours else ["part", "id", "value", *measures]
    try:
        expected = ask(trino, theirs, given_rows, ", ".join(columns))
    except TrinoError as error:
        if "AFTER MATCH SKIP failed" not in str(error):
            raise
        with pytest.raises(ConfigError, match="AFTER MATCH SKIP"):
            run_sql(ours, given_rows)
        return
    found = [tuple(it[name] for name in columns) for it in run_sql(ours, given_rows)]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_rows_come_in_pieces(trino: Trino) -> None:
    """A stream of three batches, in the order of arrival, and Trino with all rows."""
    text = (
        "PARTITION BY part ORDER BY id, id MEASURES FIRST(id) AS m0, LAST(id) AS m1, "
        "PREV(FIRST(value)) AS m2 PATTERN (A+ B? C) "
        "DEFINE A AS value < 3, B AS value >= FIRST(A.value), C AS value > 2"
    )
    values = [0, 1, 4, 2, 5, 5, 1, 0, 3, 2, 2, 5, 4, 1, 3, 3, 0, 5]
    given_rows = [{"part": "pq"[at % 2], "id": at, "value": it} for at, it in enumerate(values)]
    batch = SqlBatch(recognize(text, order="arrival"), given_rows)
    trial = Trial(batch.operator)
    rows = batch.rows()
    found = [trial.feed({"events": rows.slice(at, 6)}) for at in range(0, len(values), 6)]
    found.append(trial.finish())
    shown = [tuple(it.values()) for it in batch.shown(found)]
    assert sorted(shown) == sorted(ask(trino, text, given_rows, "part, m0, m1, m2"))
