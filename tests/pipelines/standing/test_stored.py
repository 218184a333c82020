"""The index against the definition of the language, and the set of queries over time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.pipelines.standing import stored
from millstream.pipelines.standing.reference import truth
from millstream.pipelines.standing.stored import QueryRecord, StoredQueries
from millstream.pipelines.standing.templates import Compiler
from tests.drawing import draws
from tests.pipelines.standing.drawing import SCHEMA, batch_of, events, queries

COMPILER = Compiler(SCHEMA)


def record(
    offset: int, query_id: str, where: str | None, time_ms: int = 0, **more: Any
) -> QueryRecord:
    value = None if where is None else json.dumps({"where": where, **more}).encode()
    return QueryRecord(offset, time_ms, query_id.encode(), value)


def hits(found: stored.Matches) -> list[tuple[int, str, int]]:
    rows = found.columns.to_pylist()
    return [
        (row, it["_query"], it["_version"])
        for row, it in zip(found.rows.tolist(), rows, strict=True)
    ]


@settings(max_examples=draws(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(queries, min_size=1, max_size=12),
    st.lists(events, min_size=1, max_size=12),
    st.lists(events, max_size=4),
)
def test_index_finds_what_each_query_finds_alone(
    texts: list[str], rows: list[dict[str, Any]], sample: list[dict[str, Any]]
) -> None:
    """The first batch decides how candidates are found, and no choice changes results."""
    index = StoredQueries(SCHEMA, scans_max=1_000)
    assert index.advance([record(at, f"q{at}", it) for at, it in enumerate(texts)], 99) == []
    if sample:
        index.match(batch_of(sample), None)
    found = index.match(batch_of(rows), None)
    compiled = [COMPILER.compile(it) for it in texts]
    assert hits(found) == [
        (row, f"q{number}", number)
        for row, event in enumerate(rows)
        for number, query in enumerate(compiled)
        if truth(query, event) is True
    ]


def random_records(draw: Any) -> list[QueryRecord]:
    count = draw(st.integers(1, 12))
    made = []
    time_ms = 0
    for offset in range(count):
        time_ms += draw(st.integers(0, 2))
        where = draw(st.sampled_from((None, "n = 1", "n > 0", "n = 1 AND", "n IS NOT NULL")))
        since = draw(st.none() | st.integers(0, 20))
        more = {} if since is None else {"since": f"1970-01-01T00:00:00.{since:03}Z"}
        made.append(record(offset, draw(st.sampled_from("ab")), where, time_ms, **more))
    return made


@settings(max_examples=draws(150), deadline=None)
@given(st.data())
def test_version_in_force_is_the_newest_that_has_begun(data: Any) -> None:
    records = random_records(data.draw)
    index = StoredQueries(SCHEMA)
    at = 0
    while at < len(records):  # in steps of any size
        end = data.draw(st.integers(at + 1, len(records)))
        index.advance(records[at:end], end)
        index.match(batch_of([{"n": 1}]), None)
        at = end
    times_ms = np.arange(25)
    found = index.match(batch_of([{"n": 1}] * 25), times_ms * 1000)
    expected = []
    for time_ms in times_ms.tolist():
        for query_id in "ab":
            begun = [
                it
                for it in records
                if it.key == query_id.encode() and _is_good(it) and _since_ms(it) <= time_ms
            ]
            if begun and begun[-1].value is not None:
                expected.append((time_ms, query_id, begun[-1].offset))
    assert sorted(hits(found)) == sorted(expected)


def _is_good(it: QueryRecord) -> bool:
    return it.value is None or b'AND"' not in it.value


def _since_ms(it: QueryRecord) -> int:
    given = json.loads(it.value or b"{}").get("since")
    since_ms = 0 if given is None else stored.parse_moment(given) // 1000
    return max(it.timestamp_ms, since_ms)


def test_why_names_the_conditions_that_are_true() -> None:
    where = """(n = 1 OR city = 'Bonn') AND matches(text, 'tea NOT "green leaf"') AND n <> 5"""
    index = StoredQueries(SCHEMA)
    index.advance([record(7, "mine", where)], 8)
    rows = [
        {"n": 1, "city": "Bonn", "text": "Tea"},
        {"n": 2, "city": "Bonn", "text": "a tea of leaf"},
        {"n": 2, "city": "Bonn", "text": "tea of green leaf"},
    ]
    found = index.match(batch_of(rows), None)
    text = ["text: tea", 'NOT text: "green leaf"', "n <> 5"]
    assert [it["_why"] for it in found.columns.to_pylist()] == [
        ["n = 1", "city = 'Bonn'", *text],
        ["city = 'Bonn'", *text],
    ]
    assert found.columns.column("_version").to_pylist() == [7, 7]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"a", b"{", "the value is no JSON"),
        (b"a", b"[]", 'no object with a string "where"'),
        (b"a", b'{"where": 3}', 'no object with a string "where"'),
        (b"a", b'{"where": "n < 3", "since": "soon"}', "since is 'soon'"),
        (b"a", b'{"where": "n < "}', "at character 5: a literal expected after <"),
        (b"a", b'{"where": "m < 3"}', "no column 'm'"),
        (b"a" * 201, b'{"where": "n < 3"}', "the key has 201 characters"),
        (b"\xff", b'{"where": "n < 3"}', "the key is no text"),
        (None, b'{"where": "n < 3"}', "the key has 0 characters"),
    ],
)
def test_bad_record_is_refused_and_the_old_version_stays(
    key: bytes | None, value: bytes, reason: str
) -> None:
    index = StoredQueries(SCHEMA)
    assert index.advance([record(0, "a", "n = 1")], 1) == []
    (refused,) = index.advance([QueryRecord(1, 0, key, value)], 2)
    assert reason in refused.reason
    assert refused.version == 1
    assert hits(index.match(batch_of([{"n": 1}]), None)) == [(0, "a", 0)]


def test_reserved_ids_are_no_queries() -> None:
    index = StoredQueries(SCHEMA)
    assert index.advance([QueryRecord(0, 0, b"_schema", b"n int")], 1) == []
    assert index.counts()["queries"] == 0


def test_queries_without_an_index_are_counted_and_the_newest_suspended() -> None:
    index = StoredQueries(SCHEMA, scans_max=2)
    index.advance([record(at, f"q{at}", "n <> 3") for at in range(4)], 4)
    assert index.counts() == {"queries": 4, "shapes": 1, "scans": 4, "suspended": 2}
    event = batch_of([{"n": 1}])
    assert [it for _, it, _ in hits(index.match(event, None))] == ["q0", "q1"]
    assert index.compiled_count == 2, "those that are suspended cost nothing"
    index.advance([record(4, "q0", None)], 5)
    assert [it for _, it, _ in hits(index.match(event, None))] == ["q1", "q2"]


def test_more_versions_than_an_index_can_have_end_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "VERSIONS_MAX", 2)
    index = StoredQueries(SCHEMA)
    with pytest.raises(stored.TooManyVersions, match="enable compaction"):
        index.advance([record(at, "q", "n = 1") for at in range(3)], 3)


def test_many_changes_are_merged_into_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "RECENT_MIN", 3)
    index = StoredQueries(SCHEMA)
    for offset in range(30):
        index.advance([record(offset, f"q{offset % 7}", f"n >= {offset % 3}")], offset + 1)
        index.match(batch_of([{"n": 1}]), None)
    expected = [f"q{it % 7}" for it in range(23, 30) if it % 3 < 2]
    assert sorted(it for _, it, _ in hits(index.match(batch_of([{"n": 1}]), None))) == sorted(
        expected
    )


def test_more_candidates_than_are_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.pipelines.standing.paths.PAIRS_MAX", 10)
    index = StoredQueries(SCHEMA)
    index.advance([record(at, f"q{at}", f"n < {at}") for at in range(9)], 9)
    found = index.match(batch_of([{"n": it} for it in range(9)]), None)
    expected = [(row, f"q{at}", at) for row in range(9) for at in range(9) if row < at]
    assert hits(found) == expected
