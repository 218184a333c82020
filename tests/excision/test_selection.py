"""Which records an excision is about: by key, by predicate, and their dead letters."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.fetching import Fetched, fetch_batches
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import MillstreamError
from millstream.excision.documents import KEY, WHERE, Selector, TopicPlan
from millstream.excision.selection import EMPTY_ANSWERS_MAX, Access, find_letters, find_topic
from millstream.query.search import SearchFailed
from tests.excision.conftest import ALICE, NUMBERS, plan_for
from tests.peers.patience import PATIENCE_SECONDS


def found(plan: TopicPlan) -> dict[int, list[int]]:
    return {it.partition: list(it.ranges) for it in plan.places}


def test_records_of_a_key_are_found_in_all_partitions(
    cluster: Cluster, topic: str, access: Access
) -> None:
    seen: list[tuple[int, int]] = []
    plan = find_topic(cluster, topic, ALICE, access=access, on_progress=lambda *it: seen.append(it))
    assert found(plan) == {0: [0, 3, 6, 9, 12], 1: [1, 4, 7, 10, 13]}
    assert plan.records == 10
    assert [(it.searched_from, it.searched_to) for it in plan.partitions] == [
        (0, 15), (0, 15), (0, 0)
    ]  # fmt: skip
    assert seen[-1] == (30, 30)


def test_key_must_be_equal_and_not_only_contained(
    cluster: Cluster, topic: str, access: Access
) -> None:
    assert found(find_topic(cluster, topic, Selector(KEY, b"alic"), access=access)) == {}


def test_predicate_finds_the_same(cluster: Cluster, topic: str, access: Access) -> None:
    where = Selector(WHERE, b"_value->>'$.email' = 'alice@example.org'")
    by_predicate = find_topic(cluster, topic, where, access=access)
    assert found(by_predicate) == found(plan_for(cluster, topic, access))


def test_bad_sql_is_refused(cluster: Cluster, topic: str, access: Access) -> None:
    with pytest.raises(SearchFailed):
        find_topic(cluster, topic, Selector(WHERE, b"no_such_column = 5"), access=access)


def test_records_of_an_aborted_transaction_are_found(
    cluster: Cluster, topic: str, access: Access
) -> None:
    producer = Producer(
        {"bootstrap.servers": access.bootstrap_servers, "transactional.id": f"tx-{topic}"}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, key="alice", value="aborted", partition=2)
    producer.flush(PATIENCE_SECONDS)
    producer.abort_transaction(PATIENCE_SECONDS)
    assert found(plan_for(cluster, topic, access))[2] == [0]


def test_dead_letters_are_found_by_the_origin_of_their_record(
    cluster: Cluster, topic: str, access: Access
) -> None:
    letters = f"dlq.{topic}"
    create_topics(cluster, [NewTopic(letters, 1)])
    producer = Producer({"bootstrap.servers": access.bootstrap_servers})
    for origin, partition, offset in ((topic, 0, 3), (topic, 0, 4), ("other", 0, 3)):
        named = {"topic": origin, "partition": str(partition), "offset": str(offset)}
        headers = [(f"__dlq.errors.{name}", text.encode()) for name, text in named.items()]
        producer.produce(letters, value="copy", headers=list(headers))
    producer.produce(letters, value="no letter", headers=[("__dlq.errors.topic", b"\xff")])
    assert producer.flush(PATIENCE_SECONDS) == 0
    (plan,) = find_letters(cluster, [letters], plan_for(cluster, topic, access))
    assert (plan.topic, plan.role, found(plan)) == (letters, "dead letters", {0: [0]})


def test_letters_of_the_key_are_found_although_their_records_are_gone(
    cluster: Cluster, topic: str, access: Access
) -> None:
    """Letters of share groups have the record's key as their own, others have it in a header."""
    letters = f"dlq.{topic}"
    create_topics(cluster, [NewTopic(letters, 1)])
    producer = Producer({"bootstrap.servers": access.bootstrap_servers})
    for origin, key, header in (
        (topic, "alice", None),
        (topic, f"{topic}/0/900", b"alice"),
        (topic, "bob", None),
        ("other", "alice", None),
    ):
        named = {"topic": origin.encode(), "partition": b"0", "offset": b"900", "key": header}
        headers = [(f"__dlq.errors.{name}", it) for name, it in named.items() if it is not None]
        producer.produce(letters, "copy", key, headers=list(headers))
    assert producer.flush(PATIENCE_SECONDS) == 0
    plan = plan_for(cluster, topic, access)
    (letter_plan,) = find_letters(cluster, [letters], plan, selector=ALICE)
    assert found(letter_plan) == {0: [0, 1]}
    assert find_letters(cluster, [letters], plan) == []


def answer_nothing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """As a leader may that was elected a moment ago."""
    left = [times]

    def fetch(*arguments: Any, **named: Any) -> Fetched:
        answer = fetch_batches(*arguments, **{**named, "wait_ms": 0})
        left[0] -= 1
        return answer._replace(records=b"") if left[0] >= 0 else answer

    monkeypatch.setattr("millstream.excision.selection.fetch_batches", fetch)


def test_search_goes_on_after_answers_without_records(
    cluster: Cluster, topic: str, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_nothing(monkeypatch, EMPTY_ANSWERS_MAX - 1)
    assert plan_for(cluster, topic, access).records == 10


def test_search_that_does_not_get_to_the_end_is_refused(
    cluster: Cluster, topic: str, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_nothing(monkeypatch, 1_000)
    with pytest.raises(MillstreamError, match=f"{topic}-0 gives nothing from offset 0 on"):
        plan_for(cluster, topic, access)


def test_compacted_log_may_end_in_nothing(
    cluster: Cluster, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"compacted-{next(NUMBERS)}"
    create_topics(cluster, [NewTopic(name, 1, {"cleanup.policy": "compact"})])
    producer = Producer({"bootstrap.servers": access.bootstrap_servers})
    producer.produce(name, "x", "alice")
    assert producer.flush(PATIENCE_SECONDS) == 0
    answer_nothing(monkeypatch, 1_000)
    assert plan_for(cluster, name, access).records == 0
