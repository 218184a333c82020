"""FindCoordinator in every version."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import FIND_COORDINATOR, run
from tests.broker.serving import WireClient

NO_SUCH_KIND = 9


@pytest.mark.parametrize("version", range(4))
def test_one_key_is_found(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(FIND_COORDINATOR, version, key="anything", key_type=0)
        assert answer.error_code.value == ErrorCode.NONE
        assert (answer.host, answer.port) == server.addresses[0]
        assert answer.node_id == server.id

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(4, 7))
def test_several_keys_are_found(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        keys = ["a", "b", "c"]
        answer = await client.call(FIND_COORDINATOR, version, key_type=0, coordinator_keys=keys)
        assert [it.key for it in answer.coordinators] == keys
        assert {it.error_code.value for it in answer.coordinators} == {ErrorCode.NONE}
        assert {it.port for it in answer.coordinators} == {server.addresses[0][1]}

    run(tmp_path, scenario)


def test_first_question_makes_the_internal_topic(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        topic = server.metadata.image.topics["__consumer_offsets"]
        assert len(topic.partitions) == 5
        config = server.configs.topic("__consumer_offsets")
        assert config.cleanup_policy == {"compact"}
        assert config.segment_bytes == 104_857_600

    run(tmp_path, scenario, **{"offsets.topic.num.partitions": 5})


def test_transactional_id_is_found(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(FIND_COORDINATOR, 1, key="tx", key_type=1)
        assert answer.error_code.value == ErrorCode.NONE
        assert "__transaction_state" in server.metadata.image.topics

    run(tmp_path, scenario, **{"transaction.state.log.num.partitions": 3})


def test_share_partition_is_found_from_v6_on(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        key = "g:AAAAAAAAAAAAAAAAAAAABQ:0"
        for version, keys, expected in (
            (6, [key], ErrorCode.NONE),
            (5, [key], ErrorCode.INVALID_REQUEST),
            (6, ["no share key"], ErrorCode.INVALID_REQUEST),
        ):
            answer = await client.call(FIND_COORDINATOR, version, key_type=2, coordinator_keys=keys)
            assert answer.coordinators[0].error_code.value == expected

    run(tmp_path, scenario)


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(FIND_COORDINATOR, 3, key="g", key_type=NO_SUCH_KIND)
        assert answer.error_code.value == ErrorCode.INVALID_REQUEST
        assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)

    run(tmp_path, scenario)
