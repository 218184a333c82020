"""The newest matches of patterns and standing queries, from a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from millstream import Broker
from millstream.admin.pipeline_board import Shown
from millstream.admin.pipeline_records import About, Node, Published
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.console import pipeline_matches as module
from millstream.console.pipeline_matches import SHOWN, MatchReader

NODES = (
    Node(0, "source", "topic events", (), (), "events"),
    Node(1, "sink", "topic found", (0,), (), "found"),
    Node(2, "sink", "table copies", (0,), (), "copies"),
)
ABOUT = About("p", "1", "p", "r", nodes=NODES, queries=("searches",))
PATTERN = replace(ABOUT, queries=(), patterns=("small{3,} large",))


def shown(about: About) -> Shown:
    return Shown(about, Published("p", "r", "working"), 0, 0, False, (), ())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.start() as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers, missing_topic_seconds=0.0) as cluster:
        create_topics(cluster, [NewTopic("found", 2), NewTopic("searches", 1)])
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(30):
            value = {"_query": "bikes" if number % 3 else "tea", "price": number}
            producer.produce("found", json.dumps(value), key=f"k{number}", partition=number % 2)
        producer.produce("found", b"\xffno JSON", partition=0)
        producer.produce("found", None, key="gone", partition=0)
        for key, value in (
            ("bikes", '{"where": "price < 300"}'),
            ("tea", '{"where": "old"}'),
            ("tea", '{"where": "text = \'tea\'"}'),
            ("gone", '{"where": "x = 1"}'),
            ("gone", None),
            ("broken", "no JSON"),
            ("list", "[]"),
            ("_schema", "price double"),
        ):
            producer.produce("searches", value, key=key)
        assert producer.flush(60) == 0
        yield cluster


def test_pipeline_without_patterns_and_queries_has_no_matches(cluster: Cluster) -> None:
    assert MatchReader().of(cluster, shown(replace(ABOUT, queries=()))) is None


def test_queries_are_those_in_force_and_counted_among_the_newest_records(cluster: Cluster) -> None:
    found = MatchReader().of(cluster, shown(ABOUT))
    assert found is not None
    assert [(it.id, it.where, it.matches) for it in found.queries] == [
        ("bikes", "price < 300", 20),
        ("tea", "text = 'tea'", 10),
    ]
    assert (found.query_count, found.looked_at, found.problem) == (2, 32, "")
    assert len(found.newest) == SHOWN
    assert [it.timestamp_ms for it in found.newest] == sorted(
        (it.timestamp_ms for it in found.newest), reverse=True
    )


def test_matches_of_patterns_are_the_records_themselves(cluster: Cluster) -> None:
    found = MatchReader().of(cluster, shown(PATTERN))
    assert found is not None
    assert (found.patterns, found.queries) == (("small{3,} large",), ())
    values = {it.value for it in found.newest}
    assert any("price" in it for it in values)


def test_topics_that_are_gone_are_empty(cluster: Cluster) -> None:
    nodes = (Node(0, "sink", "topic nowhere", (), (), "x"),)
    about = replace(ABOUT, nodes=nodes, queries=("nothing",))
    found = MatchReader().of(cluster, shown(about))
    assert found is not None
    assert (found.newest, found.queries, found.problem) == ((), (), "")


def test_queries_are_followed_and_matches_kept_for_a_while(cluster: Cluster) -> None:
    reader = MatchReader()
    found = reader.of(cluster, shown(ABOUT), seconds_old_max=3600)
    assert reader.of(cluster, shown(ABOUT), seconds_old_max=3600) is found
    follower = reader._queries["searches"]
    read = follower._records
    again = reader.of(cluster, shown(ABOUT))
    assert again is not None
    assert found is not None
    assert again.queries == found.queries
    assert reader._queries["searches"] is follower
    assert follower._records == read > 0  # nothing was read a second time


def test_topic_of_queries_may_be_any(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 1)
    monkeypatch.setattr(module, "READ_RECORDS_MAX", 1)
    found = MatchReader().of(cluster, shown(ABOUT))
    assert found is not None
    assert found.query_count == 1
