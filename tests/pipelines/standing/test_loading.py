"""The queries in a worker: forward by offset, from the beginning if that is impossible."""

from __future__ import annotations

import gc
import json
import uuid
from typing import Any

import pytest

from millstream.pipelines.standing import loading
from millstream.pipelines.standing.loading import LoadedQueries, QuerySource, loaded
from millstream.pipelines.standing.stored import QueryRecord, Version
from millstream.pipelines.standing.topic import reading_options
from tests.pipelines.conftest import Topics
from tests.pipelines.standing.drawing import SCHEMA
from tests.pipelines.standing.test_matching import letters, produce, search


def source_of(topics: Topics, name: str, source_id: str = "") -> QuerySource:
    options = reading_options({"kafka.bootstrap.servers": topics.bootstrap}, name)
    return QuerySource(source_id or uuid.uuid4().hex, name, options, SCHEMA, 100)


def test_queries_move_forward_and_back_to_the_end_of_a_batch(topics: Topics) -> None:
    name = topics.create(cleanup_policy="compact")
    first = [search("a", "n = 1", 0), search("b", "n = 2", 0), search("a", None, 0)]
    produce(topics, name, first)
    queries = LoadedQueries(source_of(topics, name))

    def at(end: int) -> list[str]:
        return sorted(queries.at(end, writes_letters=False).current())

    assert [at(it) for it in (2, 3, 1, 0)] == [["a", "b"], ["b"], ["a"], []]


@pytest.mark.parametrize("others", [["b"], ["b", "c"]])
def test_recreated_topic_is_loaded_from_the_beginning(topics: Topics, others: list[str]) -> None:
    """Also if it has the same end."""
    name = topics.create(cleanup_policy="compact")
    produce(topics, name, [search("a", "n = 1", 0)])
    queries = LoadedQueries(source_of(topics, name))
    assert list(queries.at(1, writes_letters=False).current()) == ["a"]
    topics.delete(name)
    topics.create(name=name, cleanup_policy="compact")
    produce(topics, name, [search(it, "n = 1", 0) for it in others])
    assert list(queries.at(len(others), writes_letters=False).current()) == others


def test_refused_records_become_dead_letters_of_one_task(topics: Topics, caplog: Any) -> None:
    name = topics.create(cleanup_policy="compact")
    produce(topics, name, [search("a", "n = 1", 0), search("a", "n =", 0)])
    found = LoadedQueries(source_of(topics, name)).at(2, writes_letters=True)
    assert [it.version for it in found.current().values()] == [0]
    LoadedQueries(source_of(topics, name)).at(2, writes_letters=False)
    assert letters(topics, f"dlq.{name}") == [f"{name}/0/1"]
    assert "query a is refused: at character 4: a literal expected" in caplog.text


def test_suspended_queries_are_logged(topics: Topics, caplog: Any) -> None:
    name = topics.create(cleanup_policy="compact")
    produce(topics, name, [search(f"q{it}", "n <> 1", 0) for it in range(101)])
    LoadedQueries(source_of(topics, name)).at(101, writes_letters=False)
    assert "1 queries are suspended" in caplog.text


def test_process_keeps_the_indexes_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_indexes", loading.OrderedDict())
    options = reading_options({"kafka.bootstrap.servers": "a:1"}, "t")
    sources = [QuerySource(f"s{it}", "t", options, SCHEMA, 100) for it in range(5)]
    first = loaded(sources[0])
    assert loaded(sources[0]) is first
    for it in sources[1:]:
        loaded(it)
    assert loaded(sources[0]) is not first


def test_garbage_collector_skips_a_large_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FROZEN_MIN", 3)
    values = [json.dumps({"where": f"n = {it}"}).encode() for it in range(6)]
    records = tuple(QueryRecord(at, 0, b"q%d" % at, it) for at, it in enumerate(values))
    queries = LoadedQueries(QuerySource("s", "t", None, SCHEMA, 100, records))

    def traversed(end: int) -> int:
        """How many versions the collector traverses."""
        found = set(queries.at(end, writes_letters=False).current().values())
        return sum(isinstance(it, Version) and it in found for it in gc.get_objects())

    gc.collect()
    try:
        assert [traversed(it) for it in (2, 3, 5, 6, 1)] == [2, 0, 2, 0, 1]
    finally:
        gc.unfreeze()
