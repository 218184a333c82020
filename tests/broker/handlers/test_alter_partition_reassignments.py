"""AlterPartitionReassignments: every version, and an answer for each partition."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 45


def test_each_partition_has_its_answer_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 3)])
        wanted = [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "replicas": [server.id]},
                    {"partition_index": 1, "replicas": [server.id, 99]},
                    {"partition_index": 2, "replicas": None},
                    {"partition_index": 7, "replicas": [server.id]},
                ],
            }
        ]
        for version in range(2):
            answer = await client.call(KEY, version, topics=wanted, timeout=1000)
            [topic] = answer.responses
            assert answer.error_code == ErrorCode.NONE
            assert [it.error_code for it in topic.partitions] == [
                ErrorCode.NONE,
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]

    converse(tmp_path, conversation)
