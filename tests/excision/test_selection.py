"""Which records an excision is about: by key, by predicate, and their dead letters."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.excision.documents import KEY, WHERE, Selector, TopicPlan
from millstream.excision.selection import Access, find_letters, find_topic
from millstream.query.search import SearchFailed
from tests.excision.conftest import ALICE, plan_for
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
