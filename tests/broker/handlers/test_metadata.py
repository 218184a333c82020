"""Metadata: brokers and topics, creation of what is missing, answers kept as bytes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Broker
from millstream.broker.metadata.cache import KEPT_REQUEST_BYTES_MAX
from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import create_topic
from tests.broker.serving import WireClient, serving
from tests.peers.wire import Wire


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_broker_and_partitions_in_every_version(
    wire: Wire, millstream: SharedBroker, version: int
) -> None:
    name = millstream.unique_topic()
    create_topic(wire, name, 2)
    answer = wire.call("metadata", version, topics=[{"name": name}])
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == millstream.bootstrap_servers
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, name)
    assert [it.partition_index for it in topic.partitions] == [0, 1]
    assert {it.leader_id for it in topic.partitions} == {broker.node_id}


def test_all_topics_are_listed_when_none_is_named(wire: Wire, millstream: SharedBroker) -> None:
    names = {millstream.unique_topic() for _ in range(3)}
    for name in names:
        create_topic(wire, name)
    assert names <= {it.name for it in wire.call("metadata", 9, topics=None).topics}
    assert names <= {it.name for it in wire.call("metadata", 0, topics=()).topics}
    assert wire.call("metadata", 9, topics=()).topics == ()


def test_answer_changes_with_the_metadata(wire: Wire, millstream: SharedBroker) -> None:
    name = millstream.unique_topic()

    def ask() -> int:
        answer = wire.call("metadata", 4, topics=[{"name": name}], allow_auto_topic_creation=False)
        return int(answer.topics[0].error_code)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [ask(), ask()] == [unknown, unknown]
    create_topic(wire, name)
    assert [ask(), ask()] == [0, 0]
    wire.call("delete_topics", 5, topic_names=(name,), timeout=1000)
    assert ask() == unknown


def test_missing_topic_is_created_where_client_and_broker_allow_it(
    wire: Wire, millstream: SharedBroker
) -> None:
    name = millstream.unique_topic()
    topics = [{"name": name}]
    refused = wire.call("metadata", 9, topics=topics, allow_auto_topic_creation=False)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    created = wire.call("metadata", 9, topics=topics, allow_auto_topic_creation=True)
    assert created.topics[0].error_code == 0
    assert len(created.topics[0].partitions) == 1


def test_missing_topic_is_not_created_where_the_broker_forbids_it() -> None:
    with (
        Broker.start(config={"auto.create.topics.enable": False}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        answer = wire.call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "x" * 250])
def test_name_that_no_topic_may_have_is_refused(wire: Wire, name: str) -> None:
    answer = wire.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topic_is_found_by_id(wire: Wire, millstream: SharedBroker) -> None:
    name = millstream.unique_topic()
    create_topic(wire, name)
    topic_id = wire.call("metadata", 12, topics=[{"name": name}]).topics[0].topic_id
    asked = [{"topic_id": topic_id, "name": None}, {"topic_id": uuid.uuid4(), "name": None}]
    found, unknown = wire.call("metadata", 12, topics=asked).topics
    assert (found.error_code, found.name) == (0, name)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


def test_authorized_operations_are_told_only_when_asked(wire: Wire) -> None:
    silent = wire.call("metadata", 8, topics=())
    assert silent.cluster_authorized_operations == -(2**31)
    asked = wire.call("metadata", 8, topics=(), include_cluster_authorized_operations=True)
    assert asked.cluster_authorized_operations > 0


def test_missing_topics_of_one_request_are_one_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            commits: list[int] = []
            server.metadata.subscribe(lambda before, now: commits.append(now.version))
            topics = [{"topic_id": None, "name": f"t{number}"} for number in range(20)]
            topics += [{"topic_id": None, "name": "t.1"}, {"topic_id": None, "name": "t_1"}]
            answer = await client.call(
                3,
                12,
                topics=topics,
                allow_auto_topic_creation=True,
                include_topic_authorized_operations=False,
            )
            errors = {it.name: it.error_code for it in answer.topics}
            assert errors.pop("t_1") == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert set(errors.values()) == {ErrorCode.NONE}
            assert len(commits) == 1

    asyncio.run(scenario())


def test_answers_to_long_requests_are_not_kept(tmp_path: Path) -> None:
    """The request is the key of the answer, and clients choose its length."""

    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            kept = server.metadata_cache._answers
            for count in (1, 2, KEPT_REQUEST_BYTES_MAX // 100):
                topics = [{"name": "x" * 100}] * count
                fields = {"topics": topics, "allow_auto_topic_creation": False}
                for _ in range(2):
                    assert len((await client.call(3, 9, **fields)).topics) == count
            assert len(kept) == 2

    asyncio.run(scenario())
