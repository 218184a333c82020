"""Topics are created, extended, deleted and led, or refused in Kafka's words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.metadata.store import registration
from millstream.broker.metadata.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    MorePartitions,
    NewTopic,
    validate_topic_name,
)
from millstream.coordination.cluster import TopicImage
from millstream.coordination.cluster_records import PartitionChangeRecord, RegisterBrokerRecord
from millstream.errors import ApiError, ErrorCode
from tests.broker.metadata.homes import Home, decided_on, home


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path, settings={"num.partitions": 4}) as opened:
        asyncio.run(opened.register())
        yield opened


def create(it: Home, topic: NewTopic, *, validate_only: bool = False) -> TopicImage:
    outcome = asyncio.run(it.topics.create([topic], validate_only=validate_only))[topic.name]
    if isinstance(outcome, ApiError):
        raise outcome
    return outcome


def test_topic_takes_the_brokers_defaults(it: Home) -> None:
    topic = create(it, NewTopic("t"))
    assert it.image.topics["t"] == topic
    assert len(topic.partitions) == 4
    assert {partition.replicas for partition in topic.partitions} == {(1,)}
    assert {partition.leader for partition in topic.partitions} == {1}


def test_topic_in_the_only_directory_says_so(it: Home) -> None:
    directory_id = it.directories.directories[0].directory_id
    assert create(it, NewTopic("t", 1)).partitions[0].directories == (directory_id,)


def test_topics_succeed_and_fail_by_themselves(it: Home) -> None:
    outcome = asyncio.run(it.topics.create([NewTopic("a"), NewTopic("b", 0), NewTopic("c")]))
    assert isinstance(outcome["b"], ApiError)
    assert set(it.image.topics) == {"a", "c"}


def test_validation_alone_creates_nothing(it: Home) -> None:
    version = it.image.version
    create(it, NewTopic("t"), validate_only=True)
    with pytest.raises(ApiError):
        create(it, NewTopic("t", 0), validate_only=True)
    assert it.image.version == version


def test_assigned_partitions_are_put_in_order(it: Home) -> None:
    topic = create(it, NewTopic("t", assignments=((1, (1,)), (0, (1,)))))
    assert len(topic.partitions) == 2


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (NewTopic("t", 0), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (NewTopic("t", PARTITIONS_PER_REQUEST_MAX + 1), ErrorCode.POLICY_VIOLATION, "large number"),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker(s)"),
        (NewTopic("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'old' already exists."),
        (NewTopic("a.b_c"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with existing topic: a_b"),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "prohibited"),
        (NewTopic("t", settings={"no.such": "1"}), ErrorCode.INVALID_CONFIG, "Unknown topic"),
        (NewTopic("t", settings={"retention.ms": None}), ErrorCode.INVALID_CONFIG, "Null value"),
        (NewTopic("t", 1, assignments=((0, (1,)),)), ErrorCode.INVALID_REQUEST, "numPartitions"),
        (NewTopic("t", -1, 1, assignments=((0, (1,)),)), ErrorCode.INVALID_REQUEST, "factor"),
        (NewTopic("t", assignments=((0, (2,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "includes broker 2, but no such broker is registered."),
        (NewTopic("t", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "empty replica list"),
        (NewTopic("t", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "the broker 1 more than once"),
        (NewTopic("t", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "consecutive 0-based"),
        (NewTopic("t", assignments=((0, (1,)), (0, (1,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "multiple manual partition assignments"),
    ],
)  # fmt: skip
def test_wrong_topic_is_refused_in_the_words_of_kafka(
    it: Home, topic: NewTopic, code: ErrorCode, message: str
) -> None:
    create(it, NewTopic("old"))
    create(it, NewTopic("a_b.c"))
    with pytest.raises(ApiError) as caught:
        create(it, topic)
    assert caught.value.code is code
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "a\n"])
def test_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "...", "a" * 249, "A-Z_0.9"])
def test_legal_name_is_accepted(name: str) -> None:
    validate_topic_name(name)


def test_name_is_free_again_after_deletion(it: Home) -> None:
    first = create(it, NewTopic("a.b"))
    asyncio.run(it.topics.delete([first.id]))
    second = create(it, NewTopic("a_b"))
    assert list(it.image.topics) == ["a_b"]
    assert first.id != second.id


def test_auto_creation_is_idempotent(it: Home) -> None:
    first = asyncio.run(it.topics.auto_create(["t"]))["t"]
    assert asyncio.run(it.topics.auto_create(["t"]))["t"] is it.image.topics["t"]
    assert first == it.image.topics["t"]
    refused = asyncio.run(it.topics.auto_create(["not legal"]))["not legal"]
    assert isinstance(refused, ApiError)


def test_topics_are_created_in_one_commit_each_by_itself(it: Home) -> None:
    commits: list[int] = []
    it.metadata.subscribe(lambda before, now: commits.append(now.version))
    outcomes = asyncio.run(it.topics.auto_create(["a.b", "not legal", "c", "a_b", "c"]))
    assert len(commits) == 1
    assert list(it.image.topics) == ["a.b", "c"]
    assert list(outcomes) == ["a.b", "not legal", "c", "a_b"]
    assert "collides with existing topic: a.b" in str(outcomes["a_b"])


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("__consumer_offsets", "compact"),
        ("__transaction_state", "compact"),
        ("__share_group_state", "delete"),
    ],
)
def test_internal_topic_has_its_own_shape(it: Home, name: str, policy: str) -> None:
    asyncio.run(it.topics.auto_create([name]))
    topic = it.image.topics[name]
    assert topic.is_internal
    assert len(topic.partitions) == 50
    assert it.configs.topic(name).cleanup_policy == {policy}
    assert it.configs.topic(name).segment_bytes == 104_857_600


def more(it: Home, topic: MorePartitions, *, validate_only: bool = False) -> None:
    outcome = asyncio.run(it.topics.create_partitions([topic], validate_only=validate_only))
    error = outcome[topic.name]
    if error is not None:
        raise error


def join(it: Home, *brokers: RegisterBrokerRecord) -> None:
    asyncio.run(it.metadata.change(lambda image: brokers))


def another(broker_id: int, rack: str | None = None, **changes: bool) -> RegisterBrokerRecord:
    made = registration(broker_id, [], epoch=broker_id, rack=rack, directories=())
    return made._replace(**changes)  # type: ignore[arg-type]


def test_replicas_are_spread_over_racks(it: Home) -> None:
    join(it, another(2, "a"), another(3, "b"), another(4, "a"), another(5, "b"))
    racks = {broker.id: broker.rack for broker in it.image.brokers.values()}
    for partition in create(it, NewTopic("t", 20, 3)).partitions:
        assert {racks[replica] for replica in partition.replicas} == {None, "a", "b"}
        assert (partition.isr, partition.leader) == (partition.replicas, partition.replicas[0])


def test_fenced_brokers_and_those_that_shut_down_get_no_replicas(it: Home) -> None:
    join(it, another(2, fenced=True), another(3, in_controlled_shutdown=True), another(4))
    made = create(it, NewTopic("t", 12, 2))
    assert {replica for it in made.partitions for replica in it.replicas} == {1, 4}
    with pytest.raises(ApiError, match=r"only 2 broker\(s\) are active"):
        create(it, NewTopic("u", 1, 3))


def test_assigned_replica_on_a_fenced_broker_is_not_in_sync(it: Home) -> None:
    join(it, another(2, fenced=True))
    [partition] = create(it, NewTopic("t", assignments=((0, (2, 1)),))).partitions
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1), (1,), 1)
    with pytest.raises(ApiError, match="for partition 0 are fenced or in controlled shutdown"):
        create(it, NewTopic("u", assignments=((0, (2,)),)))


def test_topic_is_extended_and_keeps_what_it_has(it: Home) -> None:
    before = create(it, NewTopic("t", 2))
    more(it, MorePartitions("t", 3), validate_only=True)
    assert len(it.image.topics["t"].partitions) == 2
    more(it, MorePartitions("t", 3))
    more(it, MorePartitions("t", 5, ((1,), (1,))))
    after = it.image.topics["t"]
    assert (after.id, after.partitions[:2]) == (before.id, before.partitions)
    assert len(after.partitions) == 5


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (MorePartitions("no", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (MorePartitions("t", 2), ErrorCode.INVALID_PARTITIONS, "already has 2 partition(s)"),
        (MorePartitions("t", 1), ErrorCode.INVALID_PARTITIONS, "1 would not be an increase"),
        (MorePartitions("t", 4, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "only 1 assign"),
        (MorePartitions("t", 3, ((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (MorePartitions("t", 10**9), ErrorCode.POLICY_VIOLATION, "large number"),
    ],
)
def test_wrong_extension_is_refused_in_the_words_of_kafka(
    it: Home, topic: MorePartitions, code: ErrorCode, message: str
) -> None:
    create(it, NewTopic("t", 2))
    with pytest.raises(ApiError) as caught:
        more(it, topic)
    assert caught.value.code is code
    assert message in str(caught.value)


@pytest.mark.parametrize("validate_only", [True, False])
def test_topic_with_versions_of_keys_is_not_extended(it: Home, validate_only: bool) -> None:
    """Its keys would move to partitions that do not have their versions."""
    create(it, NewTopic("t", 1, settings={"millstream.conditional.append": "version"}))
    with pytest.raises(ApiError, match="would move its keys") as caught:
        more(it, MorePartitions("t", 4), validate_only=validate_only)
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS
    assert len(it.image.topics["t"].partitions) == 1


def test_topic_with_offsets_as_the_condition_is_extended(it: Home) -> None:
    create(it, NewTopic("t", 1, settings={"millstream.conditional.append": "offset"}))
    more(it, MorePartitions("t", 4))
    assert len(it.image.topics["t"].partitions) == 4


def test_lead_is_taken_where_nobody_leads_and_anew_after_a_crash(it: Home) -> None:
    topic = create(it, NewTopic("t", 3))
    nobody = PartitionChangeRecord(0, topic.id, leader=-1, isr=())
    asyncio.run(it.metadata.change(decided_on(it.image.version, nobody)))
    asyncio.run(it.topics.claim_leadership([("t", 1), ("gone", 0)]))
    partitions = it.image.topics["t"].partitions
    assert [partition.leader for partition in partitions] == [1, 1, 1]
    assert [partition.leader_epoch for partition in partitions] == [2, 1, 0]
    assert [partition.isr for partition in partitions] == [(1,), (1,), (1,)]


def test_ten_thousand_partitions_are_one_commit(it: Home) -> None:
    version = it.image.version
    create(it, NewTopic("t", 10_000))
    assert it.image.version == version + 10_001
    assert it.image.partition_count == 10_000
