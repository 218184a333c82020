"""The windows of a search, its hits and its cursor; the process itself is in test_search.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import duckdb
import pytest

from millstream.client.cluster import Cluster
from millstream.errors import ApiError
from millstream.query import search_child
from millstream.query.ranges import ScanRange
from millstream.query.search import SearchRequest
from millstream.query.search_child import HitList, Searching, explain, parse_request, rest_of
from millstream.testing.pytest_plugin import SharedBroker
from tests.query.scene import START_MS, Sent, make_topic

COUNT = 3000  # per partition


@pytest.fixture(scope="module")
def topic(millstream: SharedBroker) -> str:
    records = [
        Sent(
            b"value %d" % number,
            partition=number % 2,
            timestamp_ms=START_MS + number,
            headers=[("trace", b"%d" % (number % 100))],
        )
        for number in range(2 * COUNT)
    ]
    return make_topic(millstream, records, partitions=2)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(search_child, "WINDOW_FIRST", 500)
    monkeypatch.setattr(search_child, "WINDOW_MAX", 1500)
    return


def run(
    millstream: SharedBroker, request: SearchRequest
) -> tuple[list[tuple[int, int]], tuple[ScanRange, ...], str]:
    """The hits, the cursor, and why the search ended."""
    messages: list[dict[str, Any]] = []
    searching = Searching(
        request,
        lambda: Cluster(millstream.bootstrap_servers, missing_topic_seconds=0),
        messages.append,
    )
    reason = searching.run()
    hits = [hit for it in messages for hit in it.get("hits", ())]
    last = messages[-1]["progress"]
    assert last["hits"] == len(hits)
    return hits, tuple(ScanRange(*it) for it in last["rest"]), reason


def whole(topic: str) -> SearchRequest:
    return SearchRequest(topic, (ScanRange(0, 0, COUNT), ScanRange(1, 0, COUNT)))


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [9, 1000])
def test_searches_resume_at_their_cursor(
    millstream: SharedBroker, topic: str, newest_first: bool, limit: int
) -> None:
    request = replace(
        whole(topic), header="trace", header_value="7", limit=limit, newest_first=newest_first
    )
    found: list[tuple[int, int]] = []
    reason = ""
    while request.ranges:
        hits, rest, reason = run(millstream, request)
        assert len(hits) <= limit
        found += hits
        request = replace(request, ranges=rest)
    numbers = [2 * offset + partition for partition, offset in found]
    assert sorted(numbers) == list(range(7, 2 * COUNT, 100))
    assert numbers == sorted(numbers, reverse=newest_first)
    assert reason == "end"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nonsense >", "syntax error"),
        ("missing = 5", '"missing" not found'),
        ("true; drop table records", "syntax error"),
        ("_value in (select content from read_text('/etc/hostname'))", "disabled"),
    ],
)
def test_conditions_that_cannot_be_used_fail_before_anything_is_read(
    millstream: SharedBroker, topic: str, where: str, message: str
) -> None:
    messages: list[dict[str, Any]] = []
    with pytest.raises(duckdb.Error, match=message):
        Searching(
            replace(whole(topic), where=where),
            lambda: Cluster(millstream.bootstrap_servers),
            messages.append,
        )
    assert messages == []


def test_conditions_name_fields_of_the_value(millstream: SharedBroker) -> None:
    records = [Sent(b'{"n": %d}' % number) for number in range(20)] + [Sent(b"bad")]
    topic = make_topic(millstream, records)
    request = SearchRequest(topic, (ScanRange(0, 0, 21),), where="n >= 18")
    assert run(millstream, request)[0] == [(0, 18), (0, 19)]
    typed = replace(request, schema="n int", where="n = 7")
    assert run(millstream, typed)[0] == [(0, 7)]


def test_a_topic_that_does_not_exist_is_named(millstream: SharedBroker) -> None:
    with pytest.raises(ApiError, match="there is no topic nowhere"):
        run(millstream, whole("nowhere"))


def test_hits_come_by_time_and_each_partition_in_order() -> None:
    rows = [(0, 1, 10), (0, 2, 5), (1, 7, 8), (1, 8, 30)]
    hits = HitList(rows, newest_first=False)
    assert hits.take(3) == [(1, 7), (0, 1), (0, 2)]
    assert hits.partitions_left == {1}
    assert hits.take(10) == [(1, 8)]
    assert hits.partitions_left == set()
    newest = HitList([(0, 2, 5), (0, 1, 10), (1, 8, 30)], newest_first=True)
    assert newest.take(9) == [(1, 8), (0, 2), (0, 1)]


def test_rest_has_what_was_not_reported() -> None:
    windows = [ScanRange(0, 0, 100), ScanRange(1, 50, 150), ScanRange(2, 0, 10)]
    taken = [(0, 20), (1, 60), (0, 30)]
    assert rest_of(windows, taken, {0, 2}, newest_first=False) == [
        ScanRange(0, 31, 100),
        ScanRange(2, 0, 10),
    ]
    assert rest_of(windows, [(0, 20)], {0}, newest_first=True) == [ScanRange(0, 0, 20)]


def test_parse_request_is_the_inverse_of_what_is_sent() -> None:
    request = SearchRequest("orders", (ScanRange(0, 1, 2),), where="true", newest_first=True)
    sent = json.loads(json.dumps({"request": asdict(request)}))
    assert parse_request(sent) == request


def test_explain_names_the_memory() -> None:
    assert "memory" in explain(duckdb.OutOfMemoryException("x"))
    assert explain(ValueError(" no column ")) == "no column"
