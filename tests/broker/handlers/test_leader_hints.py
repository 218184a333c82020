"""A partition that another broker leads: clients learn its leader, and where that is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.broker.server import BrokerServer
from millstream.coordination.cluster_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from millstream.errors import ErrorCode
from tests.broker.serving import WireClient, serving
from tests.peers.wire import batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
OTHER, OTHER_EPOCH = 77, 9
TOPIC_ID = uuid.uuid4()

Test = Callable[[BrokerServer, WireClient], Coroutine[Any, Any, None]]


async def add_other_broker(server: BrokerServer, listener: str = "PLAINTEXT") -> None:
    """Another broker, which leads partition 1 of `shared`; partition 0 is led by this one."""
    me = server.id
    await server.metadata.change(
        lambda _: [
            RegisterBrokerRecord(
                broker_id=OTHER,
                incarnation_id=uuid.uuid4(),
                broker_epoch=5,
                endpoints=(BrokerEndpoint(listener, "elsewhere", 1234),),
                rack="r1",
            ),
            TopicRecord("shared", TOPIC_ID),
            *(
                PartitionRecord(
                    index, TOPIC_ID, (leader,), (leader,), leader=leader, leader_epoch=9
                )
                for index, leader in enumerate((me, OTHER))
            ),
        ]
    )


def run(tmp_path: Path, test: Test, listener: str = "PLAINTEXT") -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await add_other_broker(server, listener)
            await test(server, client)

    asyncio.run(main())


def produced(version: int, partition: int) -> dict[str, Any]:
    data = [{"index": partition, "records": batch([b"a"])}]
    topic: dict[str, Any] = {"name": "shared"} if version < 13 else {"topic_id": TOPIC_ID}
    return {"acks": -1, "timeout": 60_000, "topic_data": [topic | {"partition_data": data}]}


def check_hint(answer: Any, partition: Any) -> None:
    assert partition.error_code == NOT_LEADER
    leader = partition.current_leader
    assert (leader.leader_id, leader.leader_epoch) == (OTHER, OTHER_EPOCH)
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (OTHER, "elsewhere", 1234, "r1")


def test_produce_names_the_leader(tmp_path: Path) -> None:
    async def test(server: BrokerServer, client: WireClient) -> None:
        for version in (3, 9, 10, 12, 13):
            answer = await client.call(0, version, **produced(version, 0))
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            answer = await client.call(0, version, **produced(version, 1))
            partition = answer.responses[0].partition_responses[0]
            assert partition.error_code == NOT_LEADER
            if version >= 10:
                check_hint(answer, partition)
        answer = await client.call(0, 12, **produced(12, 2))
        unknown = answer.responses[0].partition_responses[0]
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, test)


def test_fetch_names_the_leader(tmp_path: Path) -> None:
    async def fetch(client: WireClient, version: int, *indexes: int) -> Any:
        partitions = [
            {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            for index in indexes
        ]
        topic: dict[str, Any] = {"topic": "shared"} if version < 13 else {"topic_id": TOPIC_ID}
        topics = [topic | {"partitions": partitions}]
        return await client.call(
            1, version, max_wait=60_000, min_bytes=1, max_bytes=1 << 20, topics=topics
        )

    async def test(server: BrokerServer, client: WireClient) -> None:
        for version in (4, 12, 13, 16, 17):
            answer = await fetch(client, version, 1)
            partition = answer.responses[0].partitions[0]
            assert partition.error_code == NOT_LEADER
            if version >= 16:
                check_hint(answer, partition)
        answer = await fetch(client, 17, 0, 1)
        by_index = {it.partition_index: it for it in answer.responses[0].partitions}
        assert by_index[0].error_code == ErrorCode.NONE
        check_hint(answer, by_index[1])

    run(tmp_path, test)


def test_hint_has_no_address_of_a_broker_that_is_down(tmp_path: Path) -> None:
    async def test(server: BrokerServer, client: WireClient) -> None:
        await server.metadata.change(lambda _: [BrokerRegistrationChangeRecord(OTHER, 5, fenced=1)])
        answer = await client.call(0, 12, **produced(12, 1))
        assert answer.responses[0].partition_responses[0].current_leader.leader_id == OTHER
        assert answer.node_endpoints == ()

    run(tmp_path, test)


def test_offsets_of_a_partition_that_another_broker_leads_are_refused(tmp_path: Path) -> None:
    async def test(server: BrokerServer, client: WireClient) -> None:
        partitions = [{"partition_index": index, "timestamp": -1} for index in (0, 1)]
        answer = await client.call(
            2, 6, replica_id=-1, topics=[{"name": "shared", "partitions": partitions}]
        )
        codes = [it.error_code for it in answer.topics[0].partitions]
        assert codes == [ErrorCode.NONE, NOT_LEADER]

    run(tmp_path, test)


async def leaders(client: WireClient, version: int) -> list[tuple[int, int, tuple[int, ...]]]:
    answer = await client.call(3, version, topics=[{"name": "shared"}])
    return [
        (it.error_code, it.leader_id, tuple(getattr(it, "offline_replicas", ())))
        for it in answer.topics[0].partitions
    ]


def test_metadata_name_the_leaders_that_are_live(tmp_path: Path) -> None:
    async def test(server: BrokerServer, client: WireClient) -> None:
        here = (ErrorCode.NONE, server.id, ())
        assert await leaders(client, 9) == [here, (ErrorCode.NONE, OTHER, ())]
        await server.metadata.change(lambda _: [BrokerRegistrationChangeRecord(OTHER, 5, fenced=1)])
        gone = (ErrorCode.LEADER_NOT_AVAILABLE, -1, (OTHER,))
        assert await leaders(client, 9) == [here, gone]
        answer = await client.call(75, 0, topics=[{"name": "shared"}], response_partition_limit=10)
        partition = answer.topics[0].partitions[1]
        assert (partition.error_code, partition.leader_id) == gone[:2]

    run(tmp_path, test)


def test_leader_without_the_clients_listener_is_not_named(tmp_path: Path) -> None:
    async def test(server: BrokerServer, client: WireClient) -> None:
        for version, code in (
            (5, ErrorCode.LEADER_NOT_AVAILABLE),
            (6, ErrorCode.LISTENER_NOT_FOUND),
        ):
            assert (await leaders(client, version))[1] == (code, -1, ())

    run(tmp_path, test, listener="ANOTHER")
