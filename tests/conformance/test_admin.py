"""Administration: topics, partitions, records, groups, the cluster; by confluent-kafka and raw."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec
from kafka import KafkaAdminClient

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import prepared
from tests.conformance.test_consume import fill
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.wire import Wire

ALSO_ON_A_WORKER = True

NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 0, 3, 100


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        future.result(PATIENCE_SECONDS)
    return int(refused.value.args[0].code())


def test_create_topic_uses_the_brokers_defaults(broker: BrokerUnderTest) -> None:
    name = unique("topic")
    broker.admin.create_topics([NewTopic(name, num_partitions=-1, replication_factor=-1)])[
        name
    ].result(PATIENCE_SECONDS)
    described = broker.admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_SECONDS)
    assert len(described.partitions) == 1
    assert [len(partition.replicas) for partition in described.partitions] == [1]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("with space", {}, KafkaError.TOPIC_EXCEPTION),
        ("..", {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, {}, KafkaError.TOPIC_EXCEPTION),
        ("fine", {"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ("fine", {"replication_factor": 3}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("fine", {"config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ("fine", {"config": {"retention": "1"}}, KafkaError.INVALID_CONFIG),
        ("fine", {"config": {"cleanup.policy": "shred"}}, KafkaError.INVALID_CONFIG),
        ("fine", {"config": {"segment.bytes": "1000"}}, KafkaError.INVALID_CONFIG),
    ],
)
def test_create_topic_refuses_nonsense(
    broker: BrokerUnderTest, name: str, options: dict[str, Any], code: int
) -> None:
    topic = NewTopic(name, **{"num_partitions": 1, "replication_factor": 1, **options})
    assert code_of(broker.admin.create_topics([topic])[name]) == code


def test_create_topic_refuses_a_second_one_and_a_colliding_name(broker: BrokerUnderTest) -> None:
    name = broker.create_topic(name=unique("a.b"))
    again = NewTopic(name, num_partitions=1, replication_factor=1)
    assert code_of(broker.admin.create_topics([again])[name]) == KafkaError.TOPIC_ALREADY_EXISTS
    colliding = name.replace(".", "_")
    topic = NewTopic(colliding, num_partitions=1, replication_factor=1)
    assert code_of(broker.admin.create_topics([topic])[colliding]) == KafkaError.TOPIC_EXCEPTION


def test_create_topic_with_validate_only_creates_nothing(broker: BrokerUnderTest) -> None:
    name = unique("topic")
    topic = NewTopic(name, num_partitions=1, replication_factor=1)
    broker.admin.create_topics([topic], validate_only=True)[name].result(PATIENCE_SECONDS)
    assert name not in broker.admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_create_topic_answers_with_its_id_and_settings(broker: BrokerUnderTest) -> None:
    name = unique("topic")
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1}
    with Wire(broker.bootstrap) as wire:
        configs = ({"name": "retention.ms", "value": "1000000"},)
        answer = wire.call(
            "create_topics", 7, topics=({**topic, "configs": configs},), timeout=10_000
        ).topics[0]
    assert (answer.error_code, answer.num_partitions) == (NO_ERROR, 2)
    assert answer.topic_id == broker.topic_id(name)
    settings = {config.name: config.value for config in answer.configs}
    assert settings["retention.ms"] == "1000000"


def test_create_topic_with_a_manual_assignment(broker: BrokerUnderTest) -> None:
    name = unique("topic")
    topic = NewTopic(name, num_partitions=2, replica_assignment=[[1], [1]])
    broker.admin.create_topics([topic])[name].result(PATIENCE_SECONDS)
    wrong = NewTopic(name + "-x", num_partitions=1, replica_assignment=[[99]])
    code = code_of(broker.admin.create_topics([wrong])[name + "-x"])
    assert code == KafkaError.INVALID_REPLICA_ASSIGNMENT


def test_delete_topic_by_name_and_by_id(broker: BrokerUnderTest) -> None:
    by_name, by_id = broker.create_topic(), broker.create_topic()
    broker.admin.delete_topics([by_name])[by_name].result(PATIENCE_SECONDS)
    with Wire(broker.bootstrap) as wire:
        topics = ({"name": None, "topic_id": broker.topic_id(by_id)},)
        answer = wire.call("delete_topics", 6, topics=topics, timeout=10_000)
        assert (answer.responses[0].error_code, answer.responses[0].name) == (NO_ERROR, by_id)
        topics = ({"name": None, "topic_id": uuid.uuid4()},)
        unknown = wire.call("delete_topics", 6, topics=topics, timeout=10_000)
        assert unknown.responses[0].error_code == UNKNOWN_TOPIC_ID
    wait_until(
        lambda: (
            not {by_name, by_id} & set(broker.admin.list_topics(timeout=PATIENCE_SECONDS).topics)
        )
    )
    code = code_of(broker.admin.delete_topics([by_name])[by_name])
    assert code == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topic_made_again_is_another_topic(broker: BrokerUnderTest) -> None:
    name = broker.create_topic()
    first_id = broker.topic_id(name)
    fill(broker, name, 5)
    broker.admin.delete_topics([name])[name].result(PATIENCE_SECONDS)
    wait_until(lambda: name not in broker.admin.list_topics(timeout=PATIENCE_SECONDS).topics)
    broker.create_topic(name=name)
    assert broker.topic_id(name) != first_id
    (offsets,) = list_offsets(broker, name, OffsetSpec.latest())
    assert offsets == 0


def list_offsets(broker: BrokerUnderTest, topic: str, spec: OffsetSpec) -> list[int]:
    partition = TopicPartition(topic, 0)
    answer = broker.admin.list_offsets({partition: spec})
    return [answer[partition].result(PATIENCE_SECONDS).offset]


def test_list_offsets_takes_every_spec_and_isolation(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 4)
    assert list_offsets(broker, topic, OffsetSpec.earliest()) == [0]
    assert list_offsets(broker, topic, OffsetSpec.latest()) == [4]
    assert list_offsets(broker, topic, OffsetSpec.max_timestamp())[0] in range(4)
    partition = TopicPartition(topic, 0)
    committed_only = broker.admin.list_offsets(
        {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    )
    assert committed_only[partition].result(PATIENCE_SECONDS).offset == 4


def test_create_partitions_grows_and_never_shrinks(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=2)
    broker.admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_SECONDS)
    assert (
        len(broker.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions) == 4
    )
    for count in (4, 1):
        code = code_of(broker.admin.create_partitions([NewPartitions(topic, count)])[topic])
        assert code == KafkaError.INVALID_PARTITIONS
    absent = unique("absent")
    code = code_of(broker.admin.create_partitions([NewPartitions(absent, 3)])[absent])
    assert code == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_delete_records_moves_the_start_and_refuses_the_future(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 10)

    def delete(offset: int) -> Any:
        partition = TopicPartition(topic, 0, offset)
        return broker.admin.delete_records([partition])[TopicPartition(topic, 0)]

    assert delete(4).result(PATIENCE_SECONDS).low_watermark == 4
    assert delete(2).result(PATIENCE_SECONDS).low_watermark == 4
    assert code_of(delete(11)) == KafkaError.OFFSET_OUT_OF_RANGE
    assert delete(-1).result(PATIENCE_SECONDS).low_watermark == 10
    assert list_offsets(broker, topic, OffsetSpec.earliest()) == [10]
    fill(broker, topic, 1)
    assert list_offsets(broker, topic, OffsetSpec.latest()) == [11]


def test_describe_cluster_names_broker_and_controller(broker: BrokerUnderTest) -> None:
    cluster = broker.admin.describe_cluster(include_authorized_operations=True).result(
        PATIENCE_SECONDS
    )
    nodes = {f"{node.host}:{node.port}": node.id for node in cluster.nodes}
    assert nodes[broker.bootstrap] == broker.node_id
    assert len(nodes) == broker.server.brokers
    assert cluster.controller.id in nodes.values()
    assert cluster.cluster_id
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("describe_cluster", 1)
    assert answer.cluster_id == cluster.cluster_id
    assert {f"{node.host}:{node.port}": node.broker_id for node in answer.brokers} == nodes


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [("classic", ConsumerGroupType.CLASSIC), ("consumer", ConsumerGroupType.CONSUMER)],
)
def test_groups_are_listed_described_and_deleted(
    broker: BrokerUnderTest, protocol: str, kind: ConsumerGroupType
) -> None:
    topic, group = broker.create_topic(partitions=2), unique("group")
    config = {"group.protocol": protocol, "client.id": "me"}
    member = prepared("confluent").join(broker.bootstrap, topic, group, config)
    try:
        member.wait_until(lambda m: len(m.partitions) == 2)
        listed = broker.admin.list_consumer_groups().result(PATIENCE_SECONDS)
        found = {entry.group_id: entry for entry in listed.valid}[group]
        assert (found.state, found.type) == (ConsumerGroupState.STABLE, kind)
        described = broker.admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
        assert described.state == ConsumerGroupState.STABLE
        assert described.type == kind
        (only,) = described.members
        assert only.client_id == "me"
        assert sorted(p.partition for p in only.assignment.topic_partitions) == [0, 1]
        busy = code_of(broker.admin.delete_consumer_groups([group])[group])
        assert busy == KafkaError.NON_EMPTY_GROUP
        member.close()
    finally:
        member.kill()
    broker.admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    listed = broker.admin.list_consumer_groups().result(PATIENCE_SECONDS)
    assert group not in {entry.group_id for entry in listed.valid}
    code = code_of(broker.admin.delete_consumer_groups([group])[group])
    assert code == KafkaError.GROUP_ID_NOT_FOUND


def test_group_nobody_knows_is_described_as_dead_or_unknown(broker: BrokerUnderTest) -> None:
    group = unique("absent")
    described = broker.admin.describe_consumer_groups([group])[group]
    try:
        assert described.result(PATIENCE_SECONDS).state == ConsumerGroupState.DEAD
    except KafkaException as unknown:
        assert unknown.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND  # noqa: PT017


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(), unique("group")
    member = prepared("confluent").join(broker.bootstrap, topic, group)
    try:
        member.wait_until(lambda m: len(m.partitions) == 1)
        with Wire(broker.coordinator(group)) as wire:
            topics = ({"name": topic, "partitions": ({"partition_index": 0},)},)
            answer = wire.call("offset_delete", 0, group_id=group, topics=topics)
    finally:
        member.kill()
    assert answer.topics[0].partitions[0].error_code == 86  # GROUP_SUBSCRIBED_TO_TOPIC


def test_elect_leaders_finds_nothing_to_do(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        topics = ({"topic": topic, "partitions": (0, 5)},)
        answer = wire.call(
            "elect_leaders", 2, election_type=0, topic_partitions=topics, timeout=10_000
        )
    codes = {
        p.partition_id: p.error_code for p in answer.replica_election_results[0].partition_result
    }
    assert codes == {0: 84, 5: UNKNOWN_TOPIC_OR_PARTITION}  # ELECTION_NOT_NEEDED


def test_describe_log_dirs_reports_size_and_space(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 10)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("describe_log_dirs", 4, topics=({"topic": topic, "partitions": (0,)},))
    (directory,) = answer.results
    (partition,) = directory.topics[0].partitions
    assert partition.partition_size > 0
    assert (partition.offset_lag, partition.is_future_key) == (0, False)
    assert directory.total_bytes >= directory.usable_bytes > 0


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_of_one_broker(broker: BrokerUnderTest, version: int) -> None:
    metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    with Wire(broker.bootstrap) as wire:
        before = wire.call("describe_quorum", version, topics=[metadata])
        broker.create_topic()
        answer = wire.call("describe_quorum", version, topics=[metadata])
        cluster = wire.call("describe_cluster", 1)
    assert (answer.error_code, answer.topics[0].topic_name) == (0, "__cluster_metadata")
    (partition,) = answer.topics[0].partitions
    voters = {it.replica_id: it for it in partition.current_voters}
    assert len(voters) == broker.server.brokers
    voter = voters[partition.leader_id]
    assert (partition.error_code, partition.partition_index) == (0, 0)
    assert partition.leader_id == voter.replica_id == cluster.controller_id
    assert (partition.leader_epoch > 0, partition.observers) == (True, ())
    earlier = before.topics[0].partitions[0].high_watermark
    assert earlier < partition.high_watermark <= voter.log_end_offset
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp > 0
    if version >= 2:
        assert {it.node_id: len(it.listeners) for it in answer.nodes} == dict.fromkeys(voters, 1)


@pytest.mark.parametrize(
    "topics",
    [
        [{"topic_name": "other", "partitions": [{"partition_index": 0}]}],
        [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 7}]}],
    ],
)
def test_describe_quorum_of_another_partition_is_refused(
    broker: BrokerUnderTest, topics: list[dict[str, Any]]
) -> None:
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("describe_quorum", 2, topics=topics)
    (partition,) = answer.topics[0].partitions
    assert answer.topics[0].topic_name == topics[0]["topic_name"]
    assert partition.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_describe_topic_partitions_pages(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=5)
    with Wire(broker.bootstrap) as wire:
        first = wire.call(
            "describe_topic_partitions", 0, topics=({"name": topic},), response_partition_limit=3
        )
        assert [p.partition_index for p in first.topics[0].partitions] == [0, 1, 2]
        cursor = {
            "topic_name": first.next_cursor.topic_name,
            "partition_index": first.next_cursor.partition_index,
        }
        assert cursor == {"topic_name": topic, "partition_index": 3}
        second = wire.call(
            "describe_topic_partitions",
            0,
            topics=({"name": topic},),
            response_partition_limit=3,
            cursor=cursor,
        )
    assert [p.partition_index for p in second.topics[0].partitions] == [3, 4]
    assert second.next_cursor is None


def test_kafka_python_admin_sees_the_same(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=2)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        cluster = admin.describe_cluster()
        assert cluster["cluster_id"]
    finally:
        admin.close()
