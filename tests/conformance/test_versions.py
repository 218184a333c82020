"""Negotiation: ApiVersions, metadata by name and id, coordinators, automatic topics."""

from __future__ import annotations

import struct
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_produce import read_all
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.transactional import GROUP, find_coordinator
from tests.peers.wire import API_KEYS, Wire, frame, request_frame

ALSO_ON_A_WORKER = True

NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION, UNKNOWN_TOPIC_ID = 0, 3, 35, 100
INVALID_TOPIC_EXCEPTION, INVALID_REQUEST = 17, 42

# What Apache Kafka 4.3.1 offers to clients, transactions, security, quotas, share groups,
# replication and tiered storage apart.
EXPECTED_RANGES = {
    "produce": (0, 13),
    "fetch": (4, 18),
    "list_offsets": (1, 11),
    "metadata": (0, 13),
    "offset_commit": (2, 10),
    "offset_fetch": (1, 10),
    "find_coordinator": (0, 6),
    "join_group": (0, 9),
    "heartbeat": (0, 4),
    "leave_group": (0, 5),
    "sync_group": (0, 5),
    "describe_groups": (0, 6),
    "list_groups": (0, 5),
    "api_versions": (0, 4),
    "create_topics": (2, 7),
    "delete_topics": (1, 6),
    "delete_records": (0, 2),
    "init_producer_id": (0, 5),
    "offset_for_leader_epoch": (2, 4),
    "describe_configs": (1, 4),
    "alter_configs": (0, 2),
    "describe_log_dirs": (1, 5),
    "create_partitions": (0, 3),
    "delete_groups": (0, 2),
    "elect_leaders": (0, 2),
    "incremental_alter_configs": (0, 1),
    "list_partition_reassignments": (0, 0),
    "offset_delete": (0, 0),
    "describe_user_scram_credentials": (0, 0),
    "alter_user_scram_credentials": (0, 0),
    "describe_quorum": (0, 2),
    "describe_cluster": (0, 2),
    "consumer_group_heartbeat": (0, 1),
    "consumer_group_describe": (0, 1),
    "list_config_resources": (0, 1),
    "describe_topic_partitions": (0, 0),
}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_offers_what_clients_need(broker: BrokerUnderTest, version: int) -> None:
    with Wire(broker.bootstrap) as wire:
        fields = {"client_software_name": "test", "client_software_version": "1"}
        answer = wire.call("api_versions", version, **(fields if version >= 3 else {}))
    assert answer.error_code == NO_ERROR
    offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    for api, wanted in EXPECTED_RANGES.items():
        low, high = offered[API_KEYS[api]]
        assert (low, high) == wanted, api
    if version >= 3:
        features = {f.name: f.max_version_level for f in answer.finalized_features}
        assert features["group.version"] == 1


def test_api_versions_of_the_future_is_answered_in_version_zero(broker: BrokerUnderTest) -> None:
    header = struct.pack(">hhih4s", 18, 9, 7, 4, b"wire") + b"\x00"
    with Wire(broker.bootstrap) as wire:
        wire.send(frame(header + b"\x05name\x02v\x00"))
        content = wire.receive_frame()
        correlation_id, error_code = struct.unpack_from(">ih", content)
        assert (correlation_id, error_code) == (7, UNSUPPORTED_VERSION)
        (count,) = struct.unpack_from(">i", content, 6)
        entries = [struct.unpack_from(">hhh", content, 10 + 6 * index) for index in range(count)]
        assert (18, 0, 4) in entries
        assert wire.call("api_versions", 0).error_code == NO_ERROR


def test_api_versions_wants_a_client_name_it_can_read(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        fields = {"client_software_name": "not allowed!", "client_software_version": "1"}
        answer = wire.call("api_versions", 3, **fields)
    assert answer.error_code == INVALID_REQUEST


@pytest.mark.parametrize("version", range(14))
def test_metadata_serves_every_version(broker: BrokerUnderTest, version: int) -> None:
    topic = broker.create_topic(partitions=3)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("metadata", version, topics=({"name": topic},))
    nodes = {f"{node.host}:{node.port}": node for node in answer.brokers}
    assert len(nodes) == broker.server.brokers
    node = nodes[broker.bootstrap]
    (found,) = answer.topics
    assert (found.error_code, found.name) == (NO_ERROR, topic)
    assert sorted(part.partition_index for part in found.partitions) == [0, 1, 2]
    for part in found.partitions:
        assert part.leader_id == node.node_id
        assert list(part.replica_nodes) == list(part.isr_nodes) == [node.node_id]


def test_metadata_finds_a_topic_by_id(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    topic_id = broker.topic_id(topic)
    with Wire(broker.bootstrap) as wire:
        wanted = ({"topic_id": topic_id, "name": None}, {"topic_id": uuid.uuid4(), "name": None})
        answer = wire.call("metadata", 12, topics=wanted)
    found = {entry.topic_id: (entry.error_code, entry.name) for entry in answer.topics}
    assert found[topic_id] == (NO_ERROR, topic)
    assert UNKNOWN_TOPIC_ID in {code for code, _ in found.values()}


def test_metadata_of_all_topics_lists_internal_ones_as_such(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        find_coordinator(wire, unique("group"), GROUP)  # which makes __consumer_offsets
        answer = wire.call("metadata", 12, topics=None)
        nothing = wire.call("metadata", 12, topics=())
    internal = {entry.name: entry.is_internal for entry in answer.topics}
    assert internal[topic] is False
    assert internal["__consumer_offsets"] is True
    assert nothing.topics == ()


def test_topic_is_created_when_a_producer_asks_for_it(broker: BrokerUnderTest) -> None:
    topic = unique("auto")
    producer = Producer(broker.config())
    producer.produce(topic, b"first")
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [message.value() for message in read_all(broker, topic, 1)] == [b"first"]


def test_topic_is_not_created_where_the_client_forbids_it(broker: BrokerUnderTest) -> None:
    topic = unique("forbidden")
    with Wire(broker.bootstrap) as wire:
        fields = {"topics": ({"name": topic},), "allow_auto_topic_creation": False}
        answer = wire.call("metadata", 12, **fields)
        bad = wire.call("metadata", 12, topics=({"name": "no/slash"},))
    assert answer.topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert bad.topics[0].error_code == INVALID_TOPIC_EXCEPTION
    assert topic not in broker.admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_consumer_of_a_missing_topic_is_told(broker: BrokerUnderTest) -> None:
    consumer = Consumer(broker.config(group_id=unique("group"), allow_auto_create_topics=False))
    consumer.subscribe([unique("missing")])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()


@pytest.mark.parametrize("version", range(7))
def test_coordinator_is_found_in_every_version(broker: BrokerUnderTest, version: int) -> None:
    group = unique("group")
    with Wire(broker.bootstrap) as wire:
        if version >= 4:
            answer = wire.call("find_coordinator", version, coordinator_keys=(group,))
            (found,) = answer.coordinators
        else:
            found = wire.call("find_coordinator", version, key=group)
    assert found.error_code in (NO_ERROR, 15)  # not available while its topic is being created
    if found.error_code == NO_ERROR:
        addresses = [f"{it.host}:{it.port}" for it in broker.admin.list_topics().brokers.values()]
        assert f"{found.host}:{found.port}" in addresses
        assert len(addresses) == broker.server.brokers


def test_offset_for_leader_epoch_ends_at_the_log_end(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    producer = Producer(broker.config())
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    producer.flush(PATIENCE_SECONDS)
    with Wire(broker.bootstrap) as wire:
        known = wire.call("metadata", 12, topics=({"name": topic},)).topics[0].partitions[0]
        partition = {"partition": 0, "leader_epoch": known.leader_epoch}
        answer = wire.call(
            "offset_for_leader_epoch",
            4,
            replica_id=-1,
            topics=({"topic": topic, "partitions": ({**partition, "current_leader_epoch": -1},)},),
        )
    (found,) = answer.topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == (
        NO_ERROR,
        known.leader_epoch,
        5,
    )


def test_responses_come_in_the_order_of_their_requests(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        for number in range(200):
            api = ("metadata", 1) if number % 3 else ("api_versions", 0)
            wire.send(request_frame(*api, number))
        answered = [int.from_bytes(wire.receive_frame()[:4], "big") for _ in range(200)]
    assert answered == list(range(200))
