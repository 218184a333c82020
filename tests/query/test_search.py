"""Searches in a child process over a real broker's topic."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from millstream.query.ranges import ScanRange
from millstream.query.search import Done, Hit, Progress, Search, SearchFailed, SearchRequest
from millstream.testing.pytest_plugin import SharedBroker
from tests.query.scene import START_MS, Sent, make_topic

COUNT = 3000  # per partition
NEVER_ENDS = "(select sum(range) from range(1000000000000)) > 0"


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


def whole(topic: str) -> SearchRequest:
    return SearchRequest(topic, (ScanRange(0, 0, COUNT), ScanRange(1, 0, COUNT)))


def run(
    millstream: SharedBroker, request: SearchRequest
) -> tuple[list[tuple[int, int]], Progress, str]:
    hits: list[tuple[int, int]] = []
    last, reason = None, ""
    with Search(millstream.bootstrap_servers, None, request) as search:
        for event in search:
            if isinstance(event, Hit):
                hits.append((event.partition, event.offset))
            elif isinstance(event, Progress):
                last = event
            else:
                reason = event.reason
    assert last is not None
    assert last.hits == len(hits)
    return hits, last, reason


def test_search_finds_everything_and_reports_its_progress(
    millstream: SharedBroker, topic: str
) -> None:
    hits, last, reason = run(millstream, replace(whole(topic), text="value 123"))
    numbers = sorted(2 * offset + partition for partition, offset in hits)
    assert numbers == [123, *range(1230, 1240)]
    assert reason == "end"
    assert (last.scanned_records, last.total_records, last.rest) == (2 * COUNT, 2 * COUNT, ())
    assert last.remaining_seconds == 0
    assert last.scanned_bytes > 0


def test_search_refuses_conditions_that_it_cannot_use(millstream: SharedBroker, topic: str) -> None:
    with pytest.raises(SearchFailed, match='"missing" not found'):
        run(millstream, replace(whole(topic), where="missing = 5"))


def test_search_can_be_cancelled_and_its_child_exits(millstream: SharedBroker, topic: str) -> None:
    request = replace(whole(topic), where=NEVER_ENDS)
    with Search(millstream.bootstrap_servers, None, request) as search:
        seen = []
        for event in search:
            if not seen:
                threading.Thread(target=search.cancel).start()
            seen.append(event)
        assert seen[-1] == Done("cancelled")
        assert isinstance(seen[-2], Progress)
        assert seen[-2].rest == request.ranges
        child = search._process
    assert child.poll() is not None


def test_search_reports_a_child_that_was_killed(millstream: SharedBroker, topic: str) -> None:
    request = replace(whole(topic), where=NEVER_ENDS)
    with Search(millstream.bootstrap_servers, None, request) as search:
        events = iter(search)
        next(events)
        search._process.kill()
        with pytest.raises(SearchFailed, match="or was killed"):
            list(events)


def test_search_imports_neither_duckdb_nor_arrow() -> None:
    code = (
        "import sys, millstream.query.search; "
        "assert not {'duckdb', 'pyarrow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
