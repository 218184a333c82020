"""OffsetDelete."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import OFFSET_DELETE, commit, run
from tests.broker.serving import WireClient


def test_offsets_are_deleted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 1, partition=0)
        await commit(client, 2, partition=1)
        topics = [
            {"name": "orders", "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
            {"name": "nothing", "partitions": [{"partition_index": 0}]},
        ]
        answer = await client.call(OFFSET_DELETE, 0, group_id="g", topics=topics)
        codes = [[it.error_code.value for it in topic.partitions] for topic in answer.topics]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[ErrorCode.NONE, unknown], [unknown]]
        left = await server.coordinators.groups.read(
            "g", lambda shard: [key.partition for key, _ in shard.offsets.of_group("g")]
        )
        assert left == [1]

    run(tmp_path, scenario)


def test_missing_group_is_told(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(OFFSET_DELETE, 0, group_id="nowhere", topics=[])
        assert answer.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND
        answer = await client.call(OFFSET_DELETE, 0, group_id="", topics=[])
        assert answer.error_code.value == ErrorCode.INVALID_GROUP_ID

    run(tmp_path, scenario)
